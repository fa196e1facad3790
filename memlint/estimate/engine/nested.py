"""Checkpoints inside of checkpoints, which get tensors of the forward around them by keyword.

A layer of transformers is checkpointed with its positional arguments as inputs, while its keywords are in the closure
(modeling_layers.py of 5.24). A layer inside of another one that is checkpointed, too, then has tensors in its closure
that were made within the outer checkpoint (torch 2.13 utils/checkpoint.py):

* Without reentry the forward's closure is the one that the backward runs again. What it holds stays until then, though
  the outer checkpoint keeps nothing; what the outer one's recomputation makes in its place is not used.
* With reentry there is a checkpoint inside in the recomputation alone. Its inputs are cut off from the graph, what is
  in its closure is not: its backward goes on through all that made it, and everything that its own call holds waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from memlint.estimate.engine.graph import Tensor
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES, rounded

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape


def held_inside(tape: Tape, keywords: tuple[Tensor, ...]) -> list[Tensor]:
    """What the closure of a checkpoint without reentry holds; a checkpoint around it is told of it."""
    if tape.recalled:
        return tape.recalled.pop(0)
    held = []
    for tensor in keywords:
        if tensor.storage is not None and tensor.storage.component == TEMPORARIES:
            tensor.storage.relabel(ACTIVATIONS)
        held.append(tensor.detach())
    if tape.hollow:
        tape.beside.append(held)
    return held


def captured(tape: Tape, run: Callable[..., Tensor], keywords: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """``run`` with these in its closure, which a node of a reentrant checkpoint holds as long as the graph lives."""
    for tensor in keywords:
        tape.linger(tensor)

    def call(*inputs: Tensor) -> Tensor:
        return run(*inputs, *keywords)

    return call


def settle(tape: Tape, gates: list[Any]) -> None:
    """AccumulateGrad of a reentrant checkpoint's inputs, which its backward has cut off (accumulate_grad.h).

    A gradient that is part of a larger tensor has not the strides of the input, so it is copied.
    """
    for gate in gates:
        grad = gate.grad
        if grad is not None and grad.storage is not None and grad.storage.size > rounded(grad.size):
            gate.grad = tape.like(grad)
        grad = None


def go_on_around(tape: Tape) -> None:
    """Go on with the backward of the recomputation around the checkpoint whose own nodes have run."""
    floor, gates = tape.around
    tape.unwind(floor)
    settle(tape, gates)
