"""A stacked bar of plain letters: readable without colour, in a log, and by a screen reader."""

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

LEGEND = "W weights, G gradients, O optimizer states, A activations, L logits and loss, T temporaries, C communication"

WIDTH = 60


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
