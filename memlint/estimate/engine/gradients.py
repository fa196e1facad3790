"""What the engine does to gradients on their way: summed, cast, and laid into the parameters."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Block, Leaf, Node, Shape, Tensor, Visit
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
        if leaf.awaited > 1 or leaf.held is not None:
            _hold(tape, leaf, grad, cast)
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


def await_all(nodes: Iterable[Node]) -> None:
    """Tell the parameters how many gradients each gets: the engine sums them before it adds them to the one that is
    there (compute_dependencies and InputBuffer in engine.cpp), so those of a tied matrix wait for the last.
    """
    seen: set[Block] = set()
    for node in nodes:
        for edge in node.edges:
            if type(edge) is Leaf:
                edge.awaited += 1
        if type(node) is Visit and node.block not in seen:
            seen.add(node.block)
            await_all(node.block.nodes)


def _hold(tape: Tape, leaf: Leaf, grad: Tensor, cast: bool) -> None:
    leaf.awaited -= 1
    if leaf.held is None:
        leaf.held, leaf.dense = grad, cast
        return
    if not leaf.dense:
        # Equal blocks share it: it is not one for each of them.
        equals, tape.pool.repeat = tape.pool.repeat, None
        leaf.held, leaf.dense = tape.like(leaf.held), True
        tape.pool.repeat = equals
    if leaf.awaited <= 0 and tape.pool.repeat is None:
        # What equal blocks share is held until the last of them, or the end of backward.
        leaf.held = None
