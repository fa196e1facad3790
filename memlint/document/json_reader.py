"""JSON text to plain values: what ``json.load`` gives, with what is wrong as problems instead of exceptions."""

from __future__ import annotations

import json
import re
from typing import Any

from memlint.document.json_tree import JsonMistake, JsonTreeReader, data_of, duplicate_pairs
from memlint.document.limits import MAX_DEPTH, MAX_PROBLEMS, MAX_SLOW_VALUES, MAX_VALUES
from memlint.document.model import SyntaxProblem
from memlint.document.positions import BOM, Lines, excerpt, problem_at

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string, up to the end of the text where it is not closed (else each quote in it would be tried), or a bracket."""


def read_json(text: str, *, hjson: bool = False) -> tuple[Any, list[SyntaxProblem]]:
    """Return values and problems of one JSON text.

    What only Hjson accepts is read all the same, and is a problem: fatal, unless ``hjson`` says that the framework
    which owns the file reads Hjson. Empty text is no JSON, as for ``json.load``.
    """
    if not text.strip(BOM + " \t\r\n"):
        return None, [problem_at(text, "the file is empty, which is no JSON", 0)]
    if _too_deep(text) or _SURROGATE.search(text):
        return _read_slowly(text, None, hjson)  # its reader knows the bounds and has the places
    doubled = False

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        made = dict(pairs)
        doubled = doubled or len(made) != len(pairs)
        return made

    try:
        # json.load refuses a byte order mark (JSONDecodeError); the reader of notes says so.
        data = json.loads(text, object_pairs_hook=mapping)
    except (ValueError, RecursionError) as error:
        return _read_slowly(text, error, hjson)
    dense = text.count(",") + text.count("[") + text.count("{") >= MAX_VALUES
    if dense and _too_many(data):
        message = f"more than {MAX_VALUES:,} values; memlint does not read such a file"
        return None, [problem_at(text, message, 0)]
    if not doubled:
        return data, []
    try:
        return data, _doubled(text, JsonTreeReader(text, limit=MAX_SLOW_VALUES).read())
    except JsonMistake:  # too many values to look for the places
        return data, [problem_at(text, "a key is given twice; the last one wins", 0, fatal=False)]


def _too_many(data: Any) -> bool:
    count = 0
    pending = [data]
    while pending and count <= MAX_VALUES:
        value = pending.pop()
        count += 1
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return count > MAX_VALUES


def _read_slowly(text: str, error: Exception | None, hjson: bool) -> tuple[Any, list[SyntaxProblem]]:
    reader = JsonTreeReader(text, limit=MAX_SLOW_VALUES)
    try:
        root = reader.read()
    except JsonMistake as mistake:
        if mistake.bound:
            return None, [problem_at(text, mistake.message, mistake.offset)]
        message, offset = mistake.message, mistake.offset
        if isinstance(error, json.JSONDecodeError) and not hjson:
            message, offset = _lower(error.msg), error.pos
            for what, start, end in reader.notes[:1]:
                if start <= error.pos <= end and what != "a string without quotes":
                    message, offset = f"{what} is not JSON", start
        partial = data_of(reader.root) if reader.root is not None else None  # tells what kind of file it is
        return partial, [problem_at(text, message, min(offset, max(len(text) - 1, 0)))]
    problems = []
    if text.startswith(BOM):
        message = "the file starts with a byte order mark, which json.load refuses; save it as UTF-8 without one"
        problems.append(problem_at(text, message, 0, fatal=not hjson))
    if reader.notes:
        what, start, end = reader.notes[0]
        more = f" (and {len(reader.notes) - 1} more such places)" if len(reader.notes) > 1 else ""
        readers = "only DeepSpeed's own hjson reader accepts it" if hjson else "json.load refuses it"
        problems.append(problem_at(text, f"{what}{more} is not JSON: {readers}", start, end, fatal=not hjson))
    elif isinstance(error, json.JSONDecodeError) and not problems:
        # The readers disagree where a string holds a raw control character, which JSON wants escaped.
        problems.append(problem_at(text, _lower(error.msg), error.pos, fatal=not hjson))
    elif error is not None and not problems:
        problems.append(problem_at(text, excerpt(_lower(str(error)), 120), root.start))
    return data_of(root), [*problems, *_doubled(text, root)]


def _doubled(text: str, root: Any) -> list[SyntaxProblem]:
    pairs = duplicate_pairs(root)
    lines = Lines(text)
    problems = []
    for first, later in pairs[:MAX_PROBLEMS]:
        line, _ = lines.position(first.key_node.start)
        message = f"`{excerpt(str(later.key))}` is given twice, first on line {line}; the last one wins"
        span = lines.span(later.key_node.start, later.key_node.end)
        problems.append(SyntaxProblem(message=message, span=span, fatal=False))
    return problems


def _too_deep(text: str) -> bool:
    """Whether brackets nest deeper than the bound; decided by their number alone in nearly every file."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _BRACKET.finditer(text):
        bracket = found.group()
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif bracket in "]}":
            depth -= 1
    return False


def _lower(message: str) -> str:
    return (message[:1].lower() + message[1:]).removesuffix(" at")
