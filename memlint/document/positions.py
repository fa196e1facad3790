"""Offsets in a text to lines and columns, both counted from 1, columns in characters."""

from __future__ import annotations

import re
from bisect import bisect_right

from memlint.document.model import Span, SyntaxProblem

BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")


class Lines:
    """The line starts of one text: lines end with LF, CRLF or CR, as editors count; a byte order mark has no column."""

    def __init__(self, text: str) -> None:
        """Find the line starts of ``text``."""
        self.length = len(text)
        self.starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        self.bom = 1 if text.startswith(BOM) else 0

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of the character at ``offset``; one outside the text is moved to its nearest end."""
        offset = min(max(offset, self.bom), self.length)
        line = bisect_right(self.starts, offset)
        column = offset - self.starts[line - 1] + 1
        return line, column - self.bom if line == 1 else column

    def span(self, start: int, end: int) -> Span:
        """Return the place from ``start`` up to, not including, ``end``."""
        end = min(end, self.length)
        line, column = self.position(start)
        if start <= end and (line == len(self.starts) or end < self.starts[line]):
            return Span(line, column, line, column + end - max(start, self.bom if line == 1 else 0))
        return Span(line, column, *self.position(max(start, end)))

    def line_start(self, offset: int) -> int:
        """Return the offset of the first character of the line that ``offset`` is on."""
        return self.starts[bisect_right(self.starts, offset) - 1]

    def next_line(self, offset: int) -> int:
        """Return the offset behind the line end that follows ``offset``, or the length of the text."""
        line = bisect_right(self.starts, offset)
        return self.starts[line] if line < len(self.starts) else self.length


def span_at(text: str, start: int, end: int | None = None) -> Span:
    """Return the place of one character, or of ``start`` to ``end``, without keeping the line starts."""
    return Lines(text).span(start, start + 1 if end is None else end)


def problem_at(text: str, message: str, start: int, end: int | None = None, *, fatal: bool = True) -> SyntaxProblem:
    """Return a problem placed by offsets."""
    return SyntaxProblem(message=message, span=span_at(text, start, end), fatal=fatal)


def excerpt(value: str, limit: int = 40) -> str:
    """Return ``value`` short enough for one line of a message, with nothing in it that a terminal would obey."""
    shown = "".join(character if character.isprintable() else "\ufffd" for character in value[: limit + 1])
    return shown if len(value) <= limit else shown[:limit] + "..."
