"""What Python nodes hold in attributes of their own (``ctx.tensors = ...``), as long as the graph lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Tensor
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape


def linger(tape: Tape, tensor: Tensor) -> None:
    """See :meth:`Tape.linger`."""
    if tape.second is not None:
        tape.second.spoilt = True
    if tape.graphless or tensor.storage is None:
        return
    if tensor.storage.component == TEMPORARIES:
        tensor.storage.relabel(ACTIVATIONS)
    repeat = tape.pool.repeat
    # Each of equal blocks has an input of its own; what all of them were given is there once.
    given = repeat is not None and repeat.input == id(tensor.storage)
    if given and any(of is repeat and held.storage is tensor.storage for held, of in tape.lingering):
        given = False
    tape.lingering.append((tensor.detach(), repeat if given else None))


def release(tape: Tape) -> None:
    """See :meth:`Tape.release`."""
    while tape.lingering:
        tensor, repeat = tape.lingering.pop()
        assert tensor.storage is not None
        size, component = tensor.storage.size, tensor.storage.component
        del tensor
        if repeat is not None:
            tape.pool.add((1 - repeat.factor) * size, component)
