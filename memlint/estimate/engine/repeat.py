"""Blocks that are run once for all equal ones, in any order among other blocks.

Equal blocks in their steady state do the same to the live bytes, each counted from where it begins. So the first one is
run forward and what it changes is noted; where another one stands, the change is counted again. The tape gets a visit
at each place. In backward the first visit reached, the last of the forward, runs the block's nodes, and the other ones
count that change again.

The tensor between two blocks, and its gradient on the way back, is a real one throughout: it stands for the output of
whichever block was counted last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from memlint.estimate.engine.graph import Block, Node, Passing, Tensor, Visit
from memlint.estimate.engine.pool import TEMPORARIES, Repeat

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape


class Opened:
    """A block whose run forward is under way."""

    def __init__(self, tape: Tape, x: Tensor) -> None:
        self.gate = None if x.node is None else Node(None, (), (), (), None, TEMPORARIES)
        self.source = Tensor(x.shape, x.dtype, None, x.node)
        self.input = id(x.storage)
        self.first, self.host_bytes = len(tape.nodes), tape.host_bytes
        self.made = Repeat()
        self.outside = tape.pool.enter(self.made)

    def entry(self, x: Tensor) -> Tensor:
        """The input as the block sees it: its gradient waits at the gate."""
        return Tensor(x.shape, x.dtype, x.storage, self.gate)

    def end(
        self, tape: Tape, out: Tensor, others: Iterable[Tensor], shared: Iterable[Any], passing: Passing | None
    ) -> tuple[Block, Tensor]:
        """See :meth:`Tape.end_block`."""
        nodes = tape.nodes[self.first :]
        del tape.nodes[self.first :]
        tape.saving = -1
        held = [*shared, *self._given(nodes)] if nodes else []
        for tensor in (out, *others):
            if tensor.storage is not None:
                tape.pool.hand_over(tensor.storage)
        block = Block(tape.pool.leave(self.outside), self.made, self.gate, out.node)
        block.host_bytes = (tape.host_bytes - self.host_bytes, 0)
        block.nodes, block.held, block.passing = nodes, held, passing
        if out.node is None:
            return block, out
        visit = Visit(block, self.source, tape.component)
        tape.nodes.append(visit)
        return block, Tensor(out.shape, out.dtype, out.storage, visit)

    def _given(self, nodes: list[Node]) -> list[Any]:
        """What nodes save of tensors that were there before the block, beside its input."""
        saved = [tensor.storage for node in nodes for tensor in node.saved if tensor is not None]
        return [s for s in saved if s is not None and s.repeat is not self.made and id(s) != self.input]


def revisit(tape: Tape, visit: Visit) -> list[Tensor | None]:
    """The backward of one of the equal blocks: the gradient of its input."""
    block = visit.block
    block.visits -= 1
    if block.backward is None:
        grad = _run_back(tape, block, visit)
    else:
        grad = visit.grad
        visit.grad = None
        passing = block.passing
        swap = None if passing is None else lambda: passing.backward(tape, visit.place)
        tape.pool.again(block.backward, swap)
        tape.host_bytes += block.host_bytes[1]
        block.later.factor += 1
        if block.gate is None and grad is not None and grad.storage is not None:
            # The one real gradient goes here, and has been counted already.
            tape.pool.add(grad.storage.size, grad.storage.component)
    if not block.visits:
        block.held.clear()
    return [grad]


def _run_back(tape: Tape, block: Block, visit: Visit) -> Tensor | None:
    pool, root, floor = tape.pool, block.root, len(tape.nodes)
    count, block.made.factor = block.made.factor, 1
    outside, host_bytes = pool.enter(block.later), tape.host_bytes
    if visit.grad is not None and isinstance(root, Node):
        root.grad = visit.grad
        visit.grad = None
        tape.pending.add(root)
    block.root = root = None
    tape.nodes += block.nodes
    block.nodes.clear()
    tape.unwind(floor)
    for node in tape.pending:
        if node.grad is not None and node.grad.storage is not None:
            pool.hand_over(node.grad.storage)
    block.backward = pool.leave(outside)
    block.host_bytes = (block.host_bytes[0], tape.host_bytes - host_bytes)
    block.made.factor = count
    gate = block.gate
    if gate is None:
        return None
    grad, gate.grad = gate.grad, None
    tape.pending.discard(gate)
    return grad
