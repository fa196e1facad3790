"""A stacked bar of plain letters: readable without colour, in a log, and by a screen reader.

Where colour is on, each letter stands on the colour of its component, so that the bar reads as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate

LETTERS = {
    "parameters": "W",
    "gradients": "G",
    "optimizer_states": "O",
    "activations": "A",
    "logits": "L",
    "temporaries": "T",
    "communication": "C",
    "inputs": "I",
}
"""One letter a component; what lies beside the allocated peak is ``.``"""

LEGEND = (
    "W weights, G gradients, O optimizer states, A activations, L logits and loss, T temporaries, C communication, "
    ". context and slack"
)

WIDTH = 60
"""Letters of the longest bar where the terminal has room for it."""
NARROWEST = 10
BESIDE = 17
"""Columns of a line that are not the bar: its name, two spaces and the figure."""

_COLOURS = {"W": 67, "G": 71, "O": 133, "A": 172, "L": 167, "T": 101, "C": 73, "I": 103, ".": 240}
"""Background of a letter, of xterm's 256 colours; black letters keep a contrast above 4.5 on all but the last."""


def width_for(columns: int | None) -> int:
    """Return the letters a bar may have in a terminal of so many columns; None: not a terminal."""
    return WIDTH if columns is None else max(NARROWEST, min(WIDTH, columns - BESIDE))


def painted(letters: str, *, color: bool) -> str:
    """Return a bar or a legend's letters with the colours of the components, or as it is."""
    if not color:
        return letters
    from itertools import groupby

    parts = []
    for letter, run in groupby(letters):
        text = "".join(run)
        ink = 15 if letter == "." else 0
        colour = _COLOURS.get(letter)
        parts.append(text if colour is None else f"\x1b[38;5;{ink};48;5;{colour}m{text}\x1b[0m")
    return "".join(parts)


def bar(estimate: Estimate, scale: int, usable: int | None, width: int = WIDTH) -> str:
    """Return the peak by component, ``scale`` bytes being ``width`` letters; ``|`` stands where the memory ends."""
    letters: list[str] = []
    total = 0
    for name, letter in LETTERS.items():
        total += estimate.components.get(name, 0)
        letters += letter * (_columns(total, scale, width) - len(letters))
    letters += "." * (_columns(estimate.device_bytes, scale, width) - len(letters))
    if usable is None:
        return "".join(letters)
    end = _columns(usable, scale, width)
    letters += " " * (end - len(letters))
    return "".join([*letters[:end], "|", *letters[end:]])


def _columns(size: int, scale: int, width: int) -> int:
    return round(size * width / scale) if scale else 0
