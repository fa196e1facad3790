"""Changes inside brackets: JSON whole, YAML's ``{a: 1}`` and ``[1, 2]``, TOML's inline tables and arrays."""

from __future__ import annotations

from typing import Any, Callable

from memlint.document.positions import Lines
from memlint.document.tree import Node
from memlint.records import dataclass


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
        return Replacement(end, end, f",{newline}{indent}{written(indent)}")
    return Replacement(end, end, f", {written(indent)}")


def delete_in_brackets(text: str, node: Node, index: int) -> Replacement:
    """Remove the pair or item at ``index`` with its comma."""
    parts = parts_of(node)
    start, end = parts[index]
    if index > 0:
        before = parts[index - 1][1]
        if index == len(parts) - 1:
            return Replacement(before, end, "")
        return Replacement(start, parts[index + 1][0], "")
    if len(parts) > 1:
        return Replacement(start, parts[1][0], "")
    rest = text[end : node.end - 1]
    if rest.strip(" \t\r\n,") or text[node.start + 1 : start].strip():
        raise EditRefused("there is a comment inside the brackets, which would be left alone")
    return Replacement(node.start + 1, node.end - 1, "")
