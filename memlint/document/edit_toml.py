"""Changes of TOML text on key paths."""

from __future__ import annotations

import json
import re
from typing import Any

from memlint.document.edit_flow import EditRefused, Notation, Replacement, delete_in_brackets, insert_in_brackets
from memlint.document.edit_json import nested, step_index
from memlint.document.model import Document, KeyPath
from memlint.document.positions import Lines
from memlint.document.tree import Node

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPREAD = ("root", "table", "element", "implied", "dotted")


def edit_toml(document: Document, root: Node, path: KeyPath, value: Any, *, delete: bool) -> Replacement:
    """Return the one replacement that sets or removes ``path``; raises EditRefused."""
    text, newline = document.text, document.newline
    lines = Lines(text)
    node = root
    in_element = False
    for depth, step in enumerate(path):
        index = step_index(node, step)
        if index is None:
            if delete:
                raise EditRefused("it is not there")
            rest = path[depth + 1 :]
            if node.flow:
                return insert_in_brackets(text, node, step, nested(rest, value), _notation(), newline)
            if node.kind == "sequence":
                raise EditRefused("a new `[[table]]` cannot be added")
            if (rest or isinstance(value, dict)) and not in_element and node.style in ("root", "table", "implied"):
                return _new_table(text, newline, path[: depth + 1], nested(rest, value))
            if node.style == "implied":
                return _new_table(text, newline, path[:depth], {str(step): nested(rest, value)})
            return _insert_line(text, newline, lines, node, step, nested(rest, value))
        child = node.pairs[index].value if node.kind == "mapping" else node.items[index]
        if depth == len(path) - 1:
            if child.style in (*_SPREAD, "tables"):
                raise EditRefused("it is a table, which may be spread over the file")
            if not delete:
                return Replacement(child.start, child.end, _value(value, child.style))
            if node.flow:
                return delete_in_brackets(text, node, index)
            start = lines.line_start(node.pairs[index].key_node.start)
            start += 1 if start == 0 and text.startswith("\ufeff") else 0
            return Replacement(start, lines.next_line(child.end), "")
        in_element = in_element or child.style == "tables"
        node = child
    raise EditRefused("the whole file cannot be replaced")


def _notation() -> Notation:
    return Notation(key=_key, value=lambda value, _: _value(value), separator=" = ")


def _insert_line(text: str, newline: str, lines: Lines, node: Node, key: Any, value: Any) -> Replacement:
    direct = [pair for pair in node.pairs if pair.value.style not in ("table", "element", "implied", "tables")]
    line = f"{_key(key)} = {_value(value)}"
    if direct:
        pair = direct[-1]
        while pair.value.style == "dotted" and pair.value.pairs:
            pair = pair.value.pairs[-1]
        prefix = text[lines.line_start(pair.key_node.start) : pair.key_node.start].lstrip("\ufeff")
        if node.style != "dotted":  # `a.b = 1` is one of this table's own lines: what counts is only its indentation
            prefix = prefix[: len(prefix) - len(prefix.lstrip())]
        at = lines.next_line(pair.value.end)
        if at == len(text) and not text.endswith("\n"):
            return Replacement(at, at, f"{newline}{prefix}{line}")
        return Replacement(at, at, f"{prefix}{line}{newline}")
    if node.style == "root":
        at = 1 if text.startswith("\ufeff") else 0
        return Replacement(at, at, line + newline + (newline if text.strip() else ""))
    at = lines.next_line(node.end)
    if at == len(text) and not text.endswith("\n"):
        return Replacement(at, at, newline + line)
    return Replacement(at, at, line + newline)


def _new_table(text: str, newline: str, path: KeyPath, value: dict[str, Any]) -> Replacement:
    """Add ``[path]`` at the end of the file; a mapping inside goes into brackets, or, alone, into the header."""
    while len(value) == 1 and isinstance(only := next(iter(value.values())), dict) and only:
        path = (*path, next(iter(value)))
        value = only
    if any(isinstance(step, int) for step in path):
        raise EditRefused("it is inside a list of tables")
    written = [f"[{'.'.join(_key(step) for step in path)}]"]
    written.extend(f"{_key(key)} = {_value(item)}" for key, item in value.items())
    ended = not text or text.endswith("\n")
    before = "" if not text.strip() else newline if ended else newline * 2
    return Replacement(len(text), len(text), before + newline.join(written) + (newline if ended else ""))


def _key(key: Any) -> str:
    text = str(key)
    return text if _BARE.fullmatch(text) else _value(text)


def _value(value: Any, quote: str = "") -> str:
    if value is None:
        raise EditRefused("TOML has no null")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        if quote == "'" and "'" not in value and value.isprintable():
            return f"'{value}'"
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return "{ " + pairs + " }" if pairs else "{}"
    raise EditRefused(f"a value of type {type(value).__name__} cannot be written")
