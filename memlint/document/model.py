"""A parsed config: values, the position of every value, and the comments that speak to memlint."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from memlint.records import dataclass, field

KeyPath = tuple[str | int, ...]


class Span(NamedTuple):
    """A place in the text; lines and columns count from 1, the end column is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntaxProblem:
    """Something that makes a document unreadable or doubtful (MEM001): broken syntax, duplicate key, wrong encoding."""

    message: str
    span: Span
    fatal: bool = True
    """False for what the framework would read all the same (a duplicate key: the last one wins)."""


@dataclass(slots=True, kw_only=True)
class Document:
    """One document of one file.

    ``data`` holds plain Python values exactly as the framework's own loader would give them (PyYAML safe_load: ``2e-5``
    is a string). Positions are computed on the first call that asks for one, since a good file never asks.
    """

    path: str
    """As the user wrote it; ``<stdin>`` for standard input without a name."""
    text: str
    format: str
    """yaml, json or toml."""
    data: Any
    problems: tuple[SyntaxProblem, ...] = ()
    index: int = 0
    """Number of the document inside a multi-document YAML file."""
    newline: str = "\n"
    _locate: Callable[[], dict[KeyPath, tuple[Span | None, Span]]] | None = None
    _spans: dict[KeyPath, tuple[Span | None, Span]] | None = field(default=None, repr=False)

    @property
    def mapping(self) -> dict[str, Any]:
        """The top-level mapping, or an empty one when the document is something else."""
        return self.data if isinstance(self.data, dict) else {}

    def spans(self) -> dict[KeyPath, tuple[Span | None, Span]]:
        """Key path -> (span of the key, span of the value); the empty path is the whole document."""
        if self._spans is None:
            self._spans = self._locate() if self._locate is not None else {}
        return self._spans

    def value_span(self, path: KeyPath) -> Span:
        """Span of the value at ``path``, or of the nearest enclosing value that exists."""
        return self._nearest(path, 1)

    def key_span(self, path: KeyPath) -> Span:
        """Span of the key at ``path``, or of the nearest enclosing key or value."""
        return self._nearest(path, 0)

    def _nearest(self, path: KeyPath, which: int) -> Span:
        spans = self.spans()
        while True:
            found = spans.get(path)
            if found is not None:
                span = found[which] or found[1]
                return span
            if not path:
                return Span(1, 1, 1, 1)
            path = path[:-1]
