"""What the estimator cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memlint.models.architecture import Architecture


class Unsupported(Exception):
    """The simulated method has no model for this architecture or setup; the message says which, in a sentence."""


def required(a: Architecture, *names: str) -> int:
    """Return the first of these fields of a config that holds a number.

    Raises:
        Unsupported: none does, and the class has no default.
    """
    for name in names:
        value = a.get(name)
        if isinstance(value, int):
            return value
    raise Unsupported(f"no memory model of a `{a.model_type}` whose config does not state `{names[0]}`")
