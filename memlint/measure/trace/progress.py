"""Progress on stderr: one line that is rewritten on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType


class Progress:
    """Shows the phase a trace is in; used as a context manager, which clears the line."""

    def __init__(self, quiet: bool = False) -> None:
        self.shown = not quiet and sys.stderr.isatty()
        self.width = 0
        self.count = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.shown and self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()

    def __call__(self, phase: str) -> None:
        """Show a phase."""
        if not self.shown:
            return
        self.count += 1
        line = f"memlint trace: [{'#' * min(self.count, 30):<30}] {phase}"
        sys.stderr.write("\r" + line.ljust(self.width))
        sys.stderr.flush()
        self.width = max(self.width, len(line))
