"""What the engine does to gradients on their way: summed, cast, and laid into the parameters."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Leaf, Shape, Tensor
from memlint.estimate.engine.pool import GRADIENTS

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape


def validated(tape: Tape, grad: Tensor, shape: Shape, dtype: str) -> Tensor:
    """validate_outputs (engine.cpp): sum to the input's shape where it was broadcast, cast to its dtype."""
    if grad.shape != shape and prod(grad.shape) != prod(shape):
        grad = tape.new(shape, grad.dtype)
    if grad.dtype != dtype:
        grad = tape.new(grad.shape, dtype)
    return grad


def accumulate(tape: Tape, leaf: Leaf, grad: Tensor, cast: bool) -> None:
    """AccumulateGrad; ``cast``: the gradient is a cast one."""
    if leaf.grad_dtype != grad.dtype:
        grad = tape.new(grad.shape, leaf.grad_dtype)
    if leaf.sink is not None:
        leaf.sink(tape, leaf, grad)
        return
    if leaf.grad is True:
        return
    if isinstance(leaf.grad, Tensor):
        # A second use of the parameter (tied weights). The product's gradient is a transposed view, which is never
        # added to in place; a cast one (autocast) is.
        if not leaf.dense:
            leaf.grad = tape.new(grad.shape, leaf.grad_dtype, GRADIENTS)
            leaf.dense = True
        return
    if grad.storage is not None and grad.storage.component != GRADIENTS:
        grad.storage.relabel(GRADIENTS)
    leaf.grad = grad
    leaf.dense = cast
