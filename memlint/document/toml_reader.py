"""TOML text to plain values: what ``tomllib.load`` gives, with what is wrong as problems instead of exceptions."""

from __future__ import annotations

import re
import sys
from typing import Any

from memlint.document.limits import MAX_DEPTH, MAX_NUMBER_LENGTH, MAX_TOML_BYTES, MAX_VALUES
from memlint.document.model import SyntaxProblem
from memlint.document.positions import BOM, Lines, excerpt, problem_at

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_LONG_NUMBER = re.compile(rf"[0-9a-fA-F_]{{{MAX_NUMBER_LENGTH},}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of ``text``; raises ValueError (TOMLDecodeError) on text that is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    import tomli

    values: dict[str, Any] = tomli.loads(text)
    return values


def read_toml(text: str) -> tuple[Any, list[SyntaxProblem]]:
    """Return values and problems of one TOML text."""
    if len(text) > MAX_TOML_BYTES:
        message = f"larger than {MAX_TOML_BYTES >> 10} KiB; memlint does not read such a TOML file"
        return None, [problem_at(text, message, 0)]
    problems: list[SyntaxProblem] = []
    base = 0
    if text.startswith(BOM):
        base = 1
        message = "the file starts with a byte order mark, which tomllib refuses; save it as UTF-8 without one"
        problems.append(problem_at(text, message, 0))
    if _suspicious(text):
        from memlint.document.toml_tree import TomlMistake, TomlTreeReader

        try:
            TomlTreeReader(text).read()
        except TomlMistake as mistake:
            return None, [*problems, problem_at(text, mistake.message, mistake.offset)]
    try:
        data = parse_toml(text[base:])
        suspect = _LONG_NUMBER.search(text)
        if suspect and _holds_long_number(data):  # in base 16, for which Python itself has no limit
            return None, [*problems, _long_number(text, suspect)]
        return data, problems
    except (ValueError, RecursionError) as error:
        problems.append(_as_problem(text, error, base))
    return _before_mistake(text[base:], problems[-1].span.line), problems


def _suspicious(text: str) -> bool:
    """Whether the text is dense enough to cost tomllib too much: a long dotted key is quadratic, nesting recurses."""
    brackets = text.count("[") + text.count("{")
    if brackets > MAX_DEPTH or brackets + text.count(",") + text.count("=") > MAX_VALUES:
        return True
    return text.count(".") > MAX_DEPTH and any(line.count(".") > MAX_DEPTH for line in text.split("\n"))


def _holds_long_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_long_number(item) for item in value.values())
    if isinstance(value, list):
        return any(_holds_long_number(item) for item in value)
    return isinstance(value, int) and value.bit_length() > 4 * MAX_NUMBER_LENGTH


def _long_number(text: str, found: re.Match[str]) -> SyntaxProblem:
    size = len(found.group())
    message = f"a number of {size:,} characters; the longest that is read has {MAX_NUMBER_LENGTH:,}"
    return problem_at(text, message, found.start())


def _as_problem(text: str, error: Exception, base: int) -> SyntaxProblem:
    message = str(error)
    place = _PLACE.search(message)
    if place is None:
        found = _LONG_NUMBER.search(text)
        if found is not None:
            return _long_number(text, found)
        return problem_at(text, excerpt(message[:1].lower() + message[1:], 160), base)
    message = message[: place.start()]
    message = excerpt(message[:1].lower() + message[1:], 160)
    if place.group(1) is None:
        return problem_at(text, message, max(len(text) - 1, 0))
    lines = Lines(text)
    line = min(int(place.group(1)), len(lines.starts))
    offset = lines.starts[line - 1] + int(place.group(2)) - 1 + (base if line == 1 else 0)
    return problem_at(text, message, min(offset, max(len(text) - 1, 0)))


def _before_mistake(text: str, line: int) -> Any:
    """Return the values of the lines before the mistake, or None, to tell what kind of file it is."""
    try:
        return parse_toml("".join(text.splitlines(keepends=True)[: line - 1])) or None
    except (ValueError, RecursionError):
        return None
