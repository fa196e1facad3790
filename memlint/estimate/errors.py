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


def kinds_of_layers(a: Architecture, *names: str) -> list[str]:
    """Return the kind of each layer from the first of these fields that states one.

    Raises:
        Unsupported: none does, or not for every layer.
    """
    stated = next((a.get(name) for name in names if a.get(name)), None)
    if not isinstance(stated, (list, tuple)) or len(stated) != a.num_hidden_layers:
        raise Unsupported(f"the layer kinds of this `{a.model_type}` config are not known")
    return [str(kind) for kind in stated]
