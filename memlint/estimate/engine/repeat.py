"""Blocks that are run once for all equal ones, in any order among other blocks.

Equal blocks in their steady state do the same to the live bytes, each counted from where it begins. So the first one is
run forward and what it changes is noted; where another one stands, the change is counted again. The tape gets a visit
at each place. In backward the first visit reached, the last of the forward, runs the block's nodes, and the other ones
count that change again.

The tensor between two blocks, and its gradient on the way back, is a real one throughout: it stands for the output of
whichever block was counted last.
"""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Any, Iterable
from weakref import ref

from memlint.estimate.engine.change import Repeat, Shifts
from memlint.estimate.engine.entry import Entry
from memlint.estimate.engine.given import given_to
from memlint.estimate.engine.graph import Block, Node, Passing, Tensor, Visit
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES, Pool, Storage

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape


class Opened:
    """A block whose run forward is under way."""

    def __init__(self, tape: Tape, x: Tensor, *, loose: bool = False) -> None:
        """``loose``: unlike the input of its equals, this one's may be held from outside; it runs on a stand-in."""
        self.gate = None if x.node is None else Node(None, (), (), (), None, TEMPORARIES)
        self.source = Tensor(x.shape, x.dtype, None, x.node)
        storage = x.storage
        self.own: Storage | None = None
        self.mark = self.moved = 0
        if loose and storage is not None:
            self.own = storage
            storage = stand_in = Entry(storage)
            self.mark, self.moved, self.stand_in = stand_in.mark, stand_in.moved, ref(stand_in)
        self.made = Repeat()
        self.made.input = id(storage)
        self._entry: Tensor | None = Tensor(x.shape, x.dtype, storage, self.gate)
        self.nodes, self.host_bytes = len(tape.nodes), tape.host_bytes
        self.outside = tape.pool.enter(self.made)

    def entry(self) -> Tensor:
        """The input as the block sees it: its gradient waits at the gate."""
        x, self._entry = self._entry, None
        assert x is not None
        return x

    def end(
        self, tape: Tape, out: Tensor, others: Iterable[Tensor], shared: Iterable[Any], passing: Passing | None
    ) -> tuple[Block, Tensor]:
        """See :meth:`Tape.end_block`."""
        pool, nodes = tape.pool, tape.nodes[self.nodes :]
        del tape.nodes[self.nodes :]
        tape.saving = -1
        given, entries = given_to(pool, nodes, self.made)
        for tensor in (out, *others):
            if tensor.storage is not None:
                pool.hand_over(tensor.storage)
        block = Block(pool.leave(self.outside), self.made, self.gate, out.node)
        block.host_bytes = (tape.host_bytes - self.host_bytes, 0)
        block.nodes, block.given, block.passing = nodes, given, passing
        block.entry, block.moved = self.mark, self.moved
        if nodes:
            block.held = [*shared]
        if out.storage is not None:
            block.out = out.storage.size, out.storage.component
        visit = None if out.node is None else Visit(block, self.source, tape.component)
        if self.own is None:
            pool.rise(self.outside[0], sum(self.outside[0]), block.forward, block.forward.own)
        else:
            self._settle(pool, block, visit, len({id(tensor) for tensor in entries}))
        if visit is None:
            return block, out
        tape.nodes.append(visit)
        return block, Tensor(out.shape, out.dtype, out.storage, visit)

    def _settle(self, pool: Pool, block: Block, visit: Visit | None, savers: int) -> None:
        """Put the input itself in the place of its stand-in, which ``savers`` saved tensors hold."""
        (own, self.own), before = (self.own, None), self.outside[0]
        assert own is not None
        entry = self.stand_in()
        size, component = own.size, own.component
        held = getrefcount(own) > 2
        before[_assumed(component)] -= size
        shifts = {**block.forward.own, **_beside(block, size, component, held=held)}
        pool.rise(before, sum(before), block.forward, shifts)
        if entry is None:
            return
        own.relabel(entry.component)
        block.input_label = entry.component
        # Beside what is saved, this variable and the function's argument refer to it.
        block.steady = visit is not None and getrefcount(entry) == savers + 2
        if held and visit is not None and block.steady:
            pool.silently(-size, entry.component)
            visit.own = own
        elif held:
            entry.become(own)


def _assumed(component: int) -> int:
    """Component that a stand-in has for an input of this one."""
    return TEMPORARIES if component == ACTIVATIONS else component


def _beside(block: Block, size: int, component: int, *, held: bool) -> Shifts:
    """By what a run differs whose input has another label than the stand-in, or is held from outside."""
    assumed = _assumed(component)
    turned = ((assumed, size), (component, -size)) if assumed != component else ()
    shifts: Shifts = {block.moved: turned} if turned else {}
    marks = [stretch.mark for stretch in block.forward.stretches]
    if block.entry in marks:
        if held:
            shifts[block.entry] = ((component, size),) if block.moved in marks else ((assumed, size),)
        elif turned and block.moved not in marks:
            shifts[block.entry] = turned
    return {mark: shift for mark, shift in shifts.items() if mark in marks}


def count_again(tape: Tape, block: Block, x: Tensor, times: int) -> Tensor:
    """See :meth:`Tape.repeat_block`."""
    passing = block.passing
    if times > 1 and (passing is not None or (block.gate is None and block.root is not None)):
        # What each hands on differs in size, or the gradient goes with the first of them.
        for _ in range(times - 1):
            x = count_again(tape, block, x, 1)
        times = 1
    if passing is not None:
        tape.pool.again(block.forward, lambda: passing.forward(tape))
    else:
        tape.pool.many(block.forward, times)
    tape.host_bytes += times * block.host_bytes[0]
    block.made.factor += times
    if block.root is None:
        return x
    block.visits += times
    visit = Visit(block, x, tape.component, times)
    tape.nodes.append(visit)
    return Tensor(x.shape, x.dtype, x.storage, visit)


def count_loose(tape: Tape, block: Block, given: list[Tensor]) -> Tensor:
    """As :func:`count_again` where something outside may hold the input, which the list gives away."""
    x, pool = given.pop(), tape.pool
    own, shape, dtype = x.storage, x.shape, x.dtype
    visit = None if block.root is None else Visit(block, x, tape.component)
    del x
    assert own is not None
    size, component = own.size, own.component
    held = getrefcount(own) > 2
    gone = any(stretch.mark == block.entry for stretch in block.forward.stretches)
    pool.again(block.forward, None, _beside(block, size, component, held=held))
    if not gone:
        own.component = block.input_label
        if held and visit is not None:
            visit.own = own
    if not held:
        component = own.component
        del own
        # What the change has taken away, or what the blocks' nodes hold from now on.
        pool.silently(size, component)
    tape.host_bytes += block.host_bytes[0]
    block.made.factor += 1
    out = Tensor(shape, dtype, Storage.counted(pool, *block.out), visit)
    if visit is not None:
        block.visits += 1
        tape.nodes.append(visit)
    return out


def revisit(tape: Tape, visit: Visit) -> list[Tensor | None]:
    """The backward of equal blocks, one after the other: the gradient of the first one's input."""
    block, others = visit.block, visit.times - 1
    if others and block.backward is None:
        visit.grad = _once(tape, visit)
        others -= 1
    if others and block.backward is not None:
        tape.pool.many(block.backward, others)
        tape.host_bytes += others * block.host_bytes[1]
        block.later.factor += others
        block.visits -= others
    return [_once(tape, visit)]


def _once(tape: Tape, visit: Visit) -> Tensor | None:
    """The backward of one of the equal blocks: the gradient of its input."""
    block, pool = visit.block, tape.pool
    block.visits -= 1
    shifts: Shifts = {}
    own, visit.own = visit.own, None
    if own is not None:
        size, component = own.size, own.component
        if getrefcount(own) > 2:
            shifts[block.entry] = ((component, size),)
        else:
            # The change takes it away.
            own = None
            pool.silently(size, component)
    if block.backward is None:
        grad = _run_back(tape, block, visit, shifts)
    else:
        if not block.visits:
            _let_go(pool, block.given, shifts)
        grad = visit.grad
        visit.grad = None
        passing = block.passing
        swap = None if passing is None else lambda: passing.backward(tape, visit.place)
        pool.again(block.backward, swap, shifts)
        tape.host_bytes += block.host_bytes[1]
        block.later.factor += 1
        if block.gate is None and grad is not None and grad.storage is not None:
            # The one real gradient goes here, and has been counted already.
            pool.add(grad.storage.size, grad.storage.component)
    if not block.visits:
        block.held.clear()
    return grad


def _let_go(pool: Pool, given: list[tuple[int, Storage]], shifts: Shifts) -> None:
    """Let go what the last of the equal blocks lets go, and say from which mark of its run on it is gone."""
    while given:
        mark, storage = given.pop()
        live, component = pool.live, storage.component
        del storage
        if pool.live != live:
            shifts[mark] = ((component, pool.live - live),)
            pool.silently(live - pool.live, component)


def _run_back(tape: Tape, block: Block, visit: Visit, shifts: Shifts) -> Tensor | None:
    pool, root, floor = tape.pool, block.root, len(tape.nodes)
    count, block.made.factor = block.made.factor, 1
    if visit.grad is not None:
        block.later.input = id(visit.grad.storage)
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
    if not block.visits:
        _let_go(pool, block.given, shifts)
    pool.rise(outside[0], sum(outside[0]), block.backward, {**block.backward.own, **shifts})
    for ((component, size),) in shifts.values():
        pool.silently(size, component)
    block.host_bytes = (block.host_bytes[0], tape.host_bytes - host_bytes)
    block.made.factor = count
    gate = block.gate
    if gate is None:
        return None
    grad, gate.grad = gate.grad, None
    tape.pending.discard(gate)
    return grad
