"""Changes of YAML text on key paths."""

from __future__ import annotations

import re
from typing import Any

from memlint.document.edit_flow import (
    EditRefused,
    Notation,
    Replacement,
    delete_in_brackets,
    indent_of,
    insert_in_brackets,
)
from memlint.document.edit_json import nested, step_index
from memlint.document.model import Document, KeyPath
from memlint.document.positions import Lines
from memlint.document.tree import Node, Pair
from memlint.document.yaml_facts import alias_targets, ends_of_block_scalars, indentation_step
from memlint.document.yaml_write import block_lines, flow_text, key_text, scalar_text

_COLON = re.compile(r"[ \t]*:(?=[ \t\r\n]|$)")
_COMMENT_OR_NOTHING = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?:\r\n|\n|\r|$)")


def edit_yaml(document: Document, root: Node, path: KeyPath, value: Any, *, delete: bool) -> Replacement:
    """Return the one replacement that sets or removes ``path``; raises EditRefused."""
    return _YamlEdit(document, root).edit(path, value, delete=delete)


class _YamlEdit:
    def __init__(self, document: Document, root: Node) -> None:
        self.document = document
        self.text = document.text
        self.newline = document.newline
        self.lines = Lines(document.text)
        self.root = root
        self.aliased = alias_targets(root)
        self.block_scalars = ends_of_block_scalars(root, self.text)

    def edit(self, path: KeyPath, value: Any, *, delete: bool) -> Replacement:
        node = self.root
        if node.kind == "scalar" and node.start == node.end and not delete:
            return self._fill_empty(nested(path, value))
        holder: tuple[Node, int] | None = None
        for depth, step in enumerate(path):
            self._check_own(node)
            if node.kind == "mapping" and step not in node.own_pairs() and step in node.all_pairs():
                raise EditRefused(f"`{step}` comes from a merge key (`<<`)")
            index = step_index(node, step)
            if index is None:
                if delete:
                    raise EditRefused("it is not there")
                return self._insert(node, step, nested(path[depth + 1 :], value))
            last = depth == len(path) - 1
            if last and delete:
                return self._delete(node, index, holder)
            child = node.pairs[index].value if node.kind == "mapping" else node.items[index]
            empty = child.kind == "scalar" and not child.style and child.value in ("", "null", "~", "Null", "NULL")
            if last or empty:
                if delete:
                    raise EditRefused("it is not there")
                self._check_removable(child)
                return self._replace(node, index, nested(path[depth + 1 :], value))
            holder = (node, index)
            node = child
        raise EditRefused("the whole document cannot be replaced")

    def _check_own(self, node: Node) -> None:
        if node.kind == "alias":
            raise EditRefused("it comes from an alias (`*name`)")
        if id(node) in self.aliased:
            raise EditRefused(f"it is in what the anchor `&{node.anchor}` names, which is used elsewhere too")

    def _check_removable(self, node: Node) -> None:
        """Refuse to remove or replace what other places refer to, or what is itself a reference."""
        if node.kind == "alias":
            raise EditRefused("its value is an alias (`*name`)")
        if node.anchor is not None:
            raise EditRefused(f"its value has the anchor `&{node.anchor}`")
        for pair in node.pairs:
            self._check_kept(pair.key_node)
            self._check_kept(pair.value)
        for item in node.items:
            self._check_kept(item)

    def _check_kept(self, node: Node) -> None:
        if node.kind != "alias":
            self._check_removable(node)

    def _fill_empty(self, value: Any) -> Replacement:
        if self.document.index or "\n---" in self.text.rstrip():
            raise EditRefused("the document is empty and not the only one of the file")
        block = self.newline.join(block_lines(value, "", "  "))
        joint = "" if not self.text or self.text.endswith(("\n", "\r")) else self.newline
        return Replacement(len(self.text), len(self.text), joint + block + self.newline)

    # Insert

    def _notation(self, node: Node) -> Notation:
        first = node.pairs[0].key_node if node.pairs else (self.root.pairs[0].key_node if self.root.pairs else None)
        quote = first.style if first is not None and node.flow else ""
        return Notation(
            key=lambda key: key_text(key, quote, flow=True),
            value=lambda value, _: flow_text(value, quote),
            separator=": ",
        )

    def _insert(self, node: Node, step: str | int, value: Any) -> Replacement:
        if node.flow:
            return insert_in_brackets(self.text, node, step, value, self._notation(node), self.newline)
        if node.kind == "sequence":
            return self._append_item(node, value)
        if not node.pairs:
            raise EditRefused("the mapping holds nothing but merge keys")
        first = node.pairs[0].key_node
        column = first.start - self.lines.line_start(first.start)
        prefix = self.text[self.lines.line_start(first.start) : first.start].lstrip("\ufeff")
        indent = prefix if not prefix.strip() else " " * column
        if prefix.lstrip().startswith("?") or first.style in ("|", ">"):
            raise EditRefused("the mapping is written with `?` keys")
        end = node.end
        unfinished = end in self.block_scalars and not self.text[end:].strip() and not self.text.endswith(("\n", "\r"))
        if unfinished and len(node.pairs) > 1:  # a line end would become part of that text: stand before it
            end = max(node.pairs[-2].value.end, self._colon(node.pairs[-2]))
        return self._add_lines(self._end_of_lines(end), block_lines({step: value}, indent, self._step()))

    def _append_item(self, node: Node, value: Any) -> Replacement:
        if not node.items:
            raise EditRefused("the list is empty")
        dash = self._dash(node.items[0])
        prefix = self.text[self.lines.line_start(dash) : dash].lstrip("\ufeff")
        indent = prefix if not prefix.strip() else " " * len(prefix)
        return self._add_lines(self._end_of_lines(node.end), [f"{indent}- {flow_text(value)}"])

    def _add_lines(self, at: int, added: list[str]) -> Replacement:
        block = self.newline.join(added)
        if at == len(self.text) and not self.text.endswith(("\n", "\r")):
            return Replacement(at, at, self.newline + block)
        return Replacement(at, at, block + self.newline)

    def _end_of_lines(self, end: int) -> int:
        """Return the offset behind the line that a block value ends on, and behind blank lines that belong to it."""
        if not _COMMENT_OR_NOTHING.match(self.text, end):
            raise EditRefused("something else follows on the same line")
        at = self.lines.next_line(end)
        if self.block_scalars.get(end):
            while at < len(self.text) and not self.text[at : self.lines.next_line(at)].strip():
                at = self.lines.next_line(at)
        return at

    def _step(self) -> str:
        return indentation_step(self.root, self.text, self.lines)

    # Replace

    def _replace(self, holder: Node, index: int, value: Any) -> Replacement:
        node = holder.pairs[index].value if holder.kind == "mapping" else holder.items[index]
        old = self.text[node.start : node.end]
        if holder.kind == "sequence":
            new = (
                flow_text(value)
                if isinstance(value, (dict, list))
                else self._scalar_like(node, old, value, holder.flow)
            )
            return Replacement(node.start, node.end, new)
        pair = holder.pairs[index]
        if holder.flow:
            quote = pair.key_node.style
            new = (
                flow_text(value, quote)
                if isinstance(value, (dict, list))
                else self._scalar_like(node, old, value, True)
            )
            colon = "" if ":" in self.text[pair.key_node.end : node.start] else ":"
            space = " " if node.start == node.end and not self.text[: node.start].endswith(" ") else ""
            return Replacement(node.start, node.end, colon + (" " if colon else space) + new)
        colon_end = self._colon(pair)
        is_block = node.kind in ("mapping", "sequence") and not node.flow
        short = not isinstance(value, dict) or not value or node.flow
        if short and not is_block:
            if isinstance(value, (dict, list)):
                new = flow_text(value)
            else:
                new = self._scalar_like(node, old, value, False)
            if node.start == node.end:
                return Replacement(colon_end, colon_end, " " + new)
            return Replacement(node.start, node.end, new)
        indent = " " * (pair.key_node.start - self.lines.line_start(pair.key_node.start))
        if is_block:
            return self._replace_block(pair, node, colon_end, value, indent)
        if self.lines.line_start(node.start) != self.lines.line_start(node.end) or node.style in ("|", ">"):
            raise EditRefused("its value takes several lines")
        line_end = self._end_of_lines(max(node.end, colon_end))
        tail = self.text[max(node.end, colon_end) : line_end]
        ended = tail.endswith(("\n", "\r"))
        block = self.newline.join(block_lines(value, indent + self._step(), self._step()))
        keep = tail.rstrip("\r\n") if tail.strip() else ""
        new = keep + self.newline + block + (tail[len(tail.rstrip("\r\n")) :] if ended else "")
        return Replacement(colon_end, line_end, new)

    def _replace_block(self, pair: Pair, node: Node, colon_end: int, value: Any, indent: str) -> Replacement:
        first_line = self.lines.next_line(colon_end)
        if node.tag is not None or node.start < first_line:
            raise EditRefused("its value begins on the line of the key")
        end = self._end_of_lines(node.end)
        block_start = self.lines.line_start(node.start)
        head = self.text[colon_end:block_start]  # with comments that stand before the block
        if isinstance(value, dict) and value:
            inner = indent_of(self.text, self.lines, node.start) if node.kind == "mapping" else indent + self._step()
            return Replacement(
                block_start, end, self.newline.join(block_lines(value, inner, self._step())) + self.newline
            )
        if isinstance(value, list) and value:
            inner = indent_of(self.text, self.lines, node.start) if node.kind == "sequence" else indent + self._step()
            items = [f"{inner}- {flow_text(item)}" for item in value]
            return Replacement(block_start, end, self.newline.join(items) + self.newline)
        new = flow_text(value) if isinstance(value, (dict, list)) else scalar_text(value, "", flow=False)
        return Replacement(colon_end, end, f" {new}{head}")

    def _scalar_like(self, node: Node, old: str, value: Any, flow: bool) -> str:
        if isinstance(value, bool) and old in ("True", "False"):
            return str(value)
        quote = node.style if node.style in ("'", '"') else ""
        return scalar_text(value, quote, flow=flow)

    def _colon(self, pair: Pair) -> int:
        """Return the offset behind the colon of a pair in a block mapping."""
        found = _COLON.match(self.text, pair.key_node.end)
        if found is None:
            raise EditRefused("it is written with a `?` key")
        return found.end()

    # Delete

    def _delete(self, node: Node, index: int, holder: tuple[Node, int] | None) -> Replacement:
        is_mapping = node.kind == "mapping"
        value = node.pairs[index].value if is_mapping else node.items[index]
        self._check_kept(value)
        if is_mapping:
            self._check_kept(node.pairs[index].key_node)
        if node.flow:
            return delete_in_brackets(self.text, node, index)
        if len(node.pairs if is_mapping else node.items) == 1:
            if holder is None or node.merges:
                raise EditRefused("it is the only key of the document")
            return self._replace(*holder, {} if is_mapping else [])
        if is_mapping:
            self._colon(node.pairs[index])
            start, end = node.pairs[index].key_node.start, max(value.end, self._colon(node.pairs[index]))
        else:
            start, end = self._dash(value), max(value.end, self._dash(value) + 1)
        line_start = self.lines.line_start(start)
        after = self._end_of_lines(end)
        if not self.text[line_start:start].strip(" \t\ufeff"):
            bom = 1 if line_start == 0 and self.text.startswith("\ufeff") else 0
            return Replacement(line_start + bom, after, "")
        if index + 1 == (len(node.pairs) if is_mapping else len(node.items)):
            raise EditRefused("it shares its line with what it is in")
        following = node.pairs[index + 1].key_node.start if is_mapping else self._dash(node.items[index + 1])
        if self.text[after:following].strip():
            raise EditRefused("a comment stands between it and what follows")
        return Replacement(start, following, "")

    def _dash(self, item: Node) -> int:
        """Return the offset of the dash of an item in a block list."""
        at = self.text.rfind("-", 0, item.start)
        if at < 0 or self.text[at + 1 : item.start].strip():
            raise EditRefused("it is in a list that is laid out in an unusual way")
        return at
