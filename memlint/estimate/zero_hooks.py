"""What ZeRO's model hangs into the graph: where gradients go, and when the backward passes the ends of the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.units import Unit

if TYPE_CHECKING:
    from memlint.estimate.zero import Zero


class Sink:
    """Takes a parameter's gradient; knows its layer."""

    __slots__ = ("unit", "zero")

    def __init__(self, zero: Zero, unit: Unit | None) -> None:
        self.zero = zero
        self.unit = unit

    def take(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        """Called by the engine with the gradient of one use."""
        self.zero.take(f, leaf, grad, self.unit)


def left(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    """The backward is done with a stack of layers."""
    node.meta.left(f)
    return (grad,)


def turned(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    """The backward comes back from the head."""
    node.meta.turned(f)
    return (grad,)
