"""Changes inside brackets: JSON whole, YAML's ``{a: 1}`` and ``[1, 2]``, TOML's inline tables and arrays."""

from __future__ import annotations

import re
from typing import Any, Callable

from memlint.document.positions import Lines
from memlint.document.tree import Node
from memlint.records import dataclass

_LINE_TAIL = re.compile(r"([ \t]*,)?([ \t]*(?:(?:#|//)[^\r\n]*)?)(?=[\r\n]|$)")


class EditRefused(Exception):
    """The change cannot be made without touching something else; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """How a format writes what stands inside brackets."""

    key: Callable[[Any], str]
    value: Callable[[Any, str], str]
    """Value and the indentation of the line it begins on (for values that take several lines)."""
    separator: str
    """Between key and value: ``": "``, ``" = "``."""
    step: str = ""
    """Indentation of what is put into empty brackets, on a line of its own; empty: it stays on their line."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One stretch of the text and what takes its place."""

    start: int
    end: int
    text: str

    def apply(self, text: str) -> str:
        """Return ``text`` with the stretch replaced."""
        return text[: self.start] + self.text + text[self.end :]


def indent_of(text: str, lines: Lines, offset: int) -> str:
    """Return the white space that the line of ``offset`` begins with."""
    start = lines.line_start(offset)
    rest = text[start : lines.next_line(offset)].lstrip("\ufeff")
    return rest[: len(rest) - len(rest.lstrip(" \t"))]


def parts_of(node: Node) -> list[tuple[int, int]]:
    """Return where each pair or item of a collection begins and ends."""
    if node.kind == "mapping":
        return [(pair.key_node.start, max(pair.value.end, pair.key_node.end)) for pair in node.pairs]
    return [(item.start, item.end) for item in node.items]


def insert_in_brackets(text: str, node: Node, key: Any, value: Any, notation: Notation, newline: str) -> Replacement:
    """Add a pair (or, where ``node`` is a list, an item) behind the last one, laid out like it."""
    lines = Lines(text)

    def written(indent: str) -> str:
        shown = notation.value(value, indent)
        return shown if node.kind == "sequence" else notation.key(key) + notation.separator + shown

    if node.merges:
        raise EditRefused("it is in a mapping with a merge key inside brackets")
    parts = parts_of(node)
    inside = (node.start + 1, node.end - 1)
    if not parts:
        if text[inside[0] : inside[1]].strip():
            raise EditRefused("there is a comment inside the empty brackets")
        indent = indent_of(text, lines, node.start)
        if notation.step:
            shown = written(indent + notation.step)
            return Replacement(*inside, f"{newline}{indent}{notation.step}{shown}{newline}{indent}")
        return Replacement(*inside, written(indent))
    start, end = parts[-1]
    line_start = lines.line_start(start)
    indent = indent_of(text, lines, start)
    if not text[line_start:start].strip(" \t\ufeff") and line_start > node.start:
        added = f"{newline}{indent}{written(indent)}"
        line = _LINE_TAIL.match(text, end)
        if line is None:  # the closing bracket stands on the same line
            return Replacement(end, end, f",{added}")
        comma, comment = line.group(1), line.group(2)
        if comma:
            return Replacement(line.end(), line.end(), f"{added},")
        return Replacement(end, line.end(), f",{comment}{added}")
    return Replacement(end, end, f", {written(indent)}")


def delete_in_brackets(text: str, node: Node, index: int) -> Replacement:
    """Remove the pair or item at ``index`` with its comma; with its lines where it has them for itself."""
    parts = parts_of(node)
    start, end = parts[index]
    if len(parts) == 1:
        if text[end : node.end - 1].strip(" \t\r\n,") or text[node.start + 1 : start].strip():
            raise EditRefused("there is a comment inside the brackets, which would be left alone")
        return Replacement(node.start + 1, node.end - 1, "")
    lines = Lines(text)
    line_start = lines.line_start(start)
    tail = _LINE_TAIL.match(text, end)
    if tail is not None and line_start > node.start and not text[line_start:start].strip():
        after = lines.next_line(end)
        if index < len(parts) - 1 or tail.group(1):
            return Replacement(line_start, after, "")
        before = parts[index - 1][1]
        gap = text[before:line_start]
        if gap.lstrip().startswith(","):
            return Replacement(before, after, gap.replace(",", "", 1))
    cut = (start, parts[index + 1][0]) if index < len(parts) - 1 else (parts[index - 1][1], end)
    if text[cut[0] : start].strip(" \t\r\n,") or text[end : cut[1]].strip(" \t\r\n,"):
        raise EditRefused("a comment stands between it and its neighbour")
    return Replacement(*cut, "")
