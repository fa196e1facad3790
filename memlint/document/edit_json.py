"""Changes of JSON text on key paths."""

from __future__ import annotations

import json
from typing import Any

from memlint.document.edit_flow import (
    EditRefused,
    Notation,
    Replacement,
    delete_in_brackets,
    indent_of,
    insert_in_brackets,
)
from memlint.document.model import Document, KeyPath
from memlint.document.positions import Lines
from memlint.document.tree import Node


def edit_json(document: Document, root: Node, path: KeyPath, value: Any, *, delete: bool) -> Replacement:
    """Return the one replacement that sets or removes ``path``; raises EditRefused."""
    text = document.text
    gap = text[root.pairs[0].key_node.end : root.pairs[0].value.start] if root.pairs else ""
    notation = Notation(
        key=lambda key: json.dumps(str(key), ensure_ascii=False),
        value=_writer(document),
        separator=gap if gap.strip() == ":" and "\n" not in gap else ": ",
        step=json_indent(text),
    )
    node = root
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        index = step_index(node, step)
        if index is None:
            if delete:
                raise EditRefused("it is not there")
            return insert_in_brackets(text, node, step, nested(path[depth + 1 :], value), notation, document.newline)
        if last and delete:
            return delete_in_brackets(text, node, index)
        child = node.pairs[index].value if node.kind == "mapping" else node.items[index]
        if last or (child.kind == "scalar" and child.value is None and not delete):
            shown = notation.value(nested(path[depth + 1 :], value), indent_of(text, Lines(text), child.start))
            return Replacement(child.start, child.end, shown)
        node = child
    raise EditRefused("the whole file cannot be replaced")


def step_index(node: Node, step: str | int) -> int | None:
    """Return the place of a key or item in a collection, None for one to be added; raises EditRefused."""
    if node.kind == "mapping":
        found = [index for index, pair in enumerate(node.pairs) if pair.key == step and type(pair.key) is type(step)]
        if len(found) > 1:
            raise EditRefused(f"`{step}` is given twice")
        return found[0] if found else None
    if node.kind == "sequence" and isinstance(step, int) and 0 <= step <= len(node.items):
        return step if step < len(node.items) else None
    raise EditRefused(f"there is no mapping that could hold `{step}`")


def nested(rest: KeyPath, value: Any) -> Any:
    """Return ``value`` inside new mappings for the keys of ``rest``."""
    for step in reversed(rest):
        if isinstance(step, int):
            raise EditRefused("the list that it is in does not exist")
        value = {step: value}
    return value


def _writer(document: Document) -> Any:
    step = json_indent(document.text)

    def write(value: Any, indent: str) -> str:
        pretty = step if isinstance(value, dict) and value and step else None
        shown = json.dumps(value, ensure_ascii=False, indent=pretty)
        return shown.replace("\n", document.newline + indent)

    return write


def json_indent(text: str) -> str:
    """Return one step of the text's indentation, or the empty text where it stands on one line."""
    for line in text.splitlines()[1:]:
        if line.strip():
            return line[: len(line) - len(line.lstrip(" \t"))] or "  "
    return ""
