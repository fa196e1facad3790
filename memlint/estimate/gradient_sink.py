"""Where a finished gradient goes in sharded training, and FSDP1's hooks around a unit's backward."""

from __future__ import annotations

from memlint.estimate.engine.pool import GRADIENTS, rounded
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.fully_shard import FullyShard
from memlint.estimate.units import Unit


class Sink:
    """Takes a finished gradient away from its parameter into its FSDP unit."""

    __slots__ = ("dtype", "fully", "kept", "unit")

    def __init__(self, unit: Unit, kept: int, dtype: str, fully: FullyShard | None) -> None:
        self.unit = unit
        self.kept = kept
        self.dtype = dtype
        self.fully = fully

    def take(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        """Called by the engine with the gradient of one parameter."""
        if self.fully is not None:
            self.fully.take(f, self.unit, leaf, grad, self.dtype)
            return
        if leaf.grad is True:
            kept = 0
        else:
            kept = self.kept
        if grad.storage is not None:
            grad.storage.relabel(GRADIENTS)
        unit = self.unit
        unit.gradients.append(grad)
        elements = 1
        for side in leaf.shape:
            elements *= side
        unit.gradient_elements += elements
        unit.shard_bytes += rounded(kept)


def enter_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    """The unit's backward begins: its parameters come together."""
    sharding, unit = node.meta
    sharding.gather(f, unit)
    return (grad,)


def leave_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    """The unit's backward is done: its gradients are reduced."""
    sharding, unit = node.meta
    sharding.reduce_scatter(f, unit)
    return (grad,)
