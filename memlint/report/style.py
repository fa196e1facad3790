"""Colour for terminals, and nothing but text everywhere else."""

from __future__ import annotations

import os
from typing import TextIO

_CODES = {"error": "1;31", "warning": "1;33", "info": "1;36", "help": "32", "dim": "2", "bold": "1", "good": "32"}


class Style:
    """Paints words where colour is on; returns them unchanged where it is off."""

    def __init__(self, color: bool) -> None:
        """``color`` False: plain text."""
        self.color = color

    def __call__(self, kind: str, text: str) -> str:
        """Return ``text`` in the colour of ``kind``: error, warning, info, help, dim, bold, good."""
        if not self.color or kind not in _CODES:
            return text
        return f"\x1b[{_CODES[kind]}m{text}\x1b[0m"


def wants_color(choice: str, stream: TextIO) -> bool:
    """Decide for ``--color`` (auto, always, never). ``NO_COLOR`` and ``FORCE_COLOR`` count where it says auto."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    force = os.environ.get("FORCE_COLOR")
    if force:
        return force not in ("0", "false")
    return stream.isatty() and os.environ.get("TERM") != "dumb"
