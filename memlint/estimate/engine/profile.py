"""What a part of a model does to the live bytes, measured on a tape of its own: see engine/whole.py."""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.engine.graph import Node, Shape, Tensor
from memlint.estimate.engine.scratch import END, GRAD, RELEASE, Given, Incoming, Scratch, Segment, makes
from memlint.estimate.engine.tape import Tape


class Profile:
    """What a part does, run without keeping anything, and with a graph."""

    __slots__ = ("backward", "forward", "kept", "out", "own_saves", "plain", "saves", "spoilt", "unpacked")

    backward: list[Segment]
    out: tuple[Shape, str, int]
    kept: list[tuple[int, int]]
    """Bytes and component of what its nodes save of its own."""

    def __init__(self, unpacked: bool) -> None:
        self.plain: list[Segment] | None = None
        """Its forward where nothing is kept."""
        self.forward: list[Segment] | None = None
        self.unpacked = unpacked
        """Its backward is one of a recomputation without reentry."""
        self.saves = self.own_saves = 0
        """How often it saves a given tensor, and one of its own."""
        self.spoilt = False
        """It must not be counted as a whole."""

    def measure(
        self, f: Tape, weights: list[Any], action: Callable[..., Tensor], inputs: tuple[Tensor, ...], *, recorded: bool
    ) -> None:
        """Run the part alone, in the ways that are still to be known."""
        if recorded and self.forward is None and not self.spoilt:
            self.spoilt = not self._graph(Scratch(f, weights, inputs), action)
        if (f._hollow or not recorded) and not self.spoilt:
            self.spoilt = not self._plain(Scratch(f, weights, inputs), action)
        if self.spoilt:
            self.forward = self.plain = []

    def _plain(self, scratch: Scratch, action: Callable[..., Tensor]) -> bool:
        scratch.hollow = True
        scratch.hollow_asked = False
        out = action(scratch, *scratch.given[:])
        scratch.cut((END, 0))
        if scratch.hollow_asked or not makes(scratch, out) or out.storage is None:
            return False
        size = out.storage.size
        self.out = out.shape, out.dtype, size
        self.plain = scratch.segments([0] * 9)
        return scratch.pool.live == size + scratch.copied

    def _graph(self, scratch: Scratch, action: Callable[..., Tensor]) -> bool:
        out = action(scratch, *scratch.given[:])
        scratch.cut((END, 0))
        root = out.node
        if not makes(scratch, out) or out.storage is None or not isinstance(root, Node):
            return False
        shape, dtype, size = self.out = out.shape, out.dtype, out.storage.size
        self.forward = scratch.segments([0] * 9)
        self.saves, self.own_saves = scratch.numbers, scratch.saves
        pool, component = scratch.pool, scratch.component
        del out
        before = pool.components[:]
        kept = before[:]
        kept[component] -= scratch.copied
        self.kept = [(size, component) for component, size in enumerate(kept) if size]
        pool.restart()
        # Autocast ends before the backward; what is saved of its copies goes as given tensors do.
        scratch.autocast = None
        scratch.unpacked = self.unpacked
        root.grad = Incoming(shape, dtype, Given(scratch, size))
        scratch.pending.add(root)
        del root
        scratch.unwind(0)
        scratch.cut((END, 0))
        self.backward = scratch.segments(before)
        gone = [segment.event[0] for segment in self.backward]
        return (
            not scratch.spoilt
            and pool.live == scratch.left
            and gone.count(GRAD) == 1
            and gone.count(RELEASE) == self.saves
        )
