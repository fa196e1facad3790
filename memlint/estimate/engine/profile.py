"""What a part of a model does to the live bytes, measured on a tape of its own: see engine/whole.py."""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.engine.graph import Node, Shape, Tensor
from memlint.estimate.engine.scratch import Given, Incoming, Scratch
from memlint.estimate.engine.segments import END, GRAD, RELEASE, Segment, segments
from memlint.estimate.engine.tape import Tape


class Profile:
    """What a part does, run without keeping anything, and with a graph."""

    __slots__ = ("backward", "forward", "kept", "out", "own_saves", "plain", "saves", "spoilt", "unpacked")

    backward: list[Segment]
    out: tuple[Shape, str, int]
    kept: list[tuple[int, int]]
    """Bytes and component of what its nodes save of its own."""

    def __init__(self, unpacked: bool) -> None:
        self.plain: list[Segment] = []
        """Its forward where nothing is kept."""
        self.forward: list[Segment] = []
        self.unpacked = unpacked
        """Its backward is one of a recomputation without reentry."""
        self.saves = self.own_saves = 0
        """How often it saves a given tensor, and one of its own."""
        self.spoilt = False
        """It must not be counted as a whole."""

    def measure(
        self,
        f: Tape,
        weights: list[Any],
        action: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        copies: list[tuple[int, Tensor]],
        *,
        recorded: bool,
    ) -> None:
        """Run the part alone; autocast has ``copies`` of some of its parameters."""
        scratch = Scratch(f, weights, inputs, copies, recorded=recorded)
        out = action(scratch, *scratch.given[: scratch.inputs])
        scratch.cut((END, 0))
        self.spoilt = not (scratch.makes(out) and self._forward(scratch, out))
        if recorded and not self.spoilt:
            root = out.node
            del out
            self.spoilt = not (isinstance(root, Node) and self._backward(scratch, root))

    def _forward(self, scratch: Scratch, out: Tensor) -> bool:
        assert out.storage is not None
        size = out.storage.size
        self.out = out.shape, out.dtype, size
        self.plain = segments(scratch.notes, [0] * 9)
        if scratch.both is not None:
            self.forward = segments(scratch.log, [0] * 9)
            self.saves, self.own_saves = scratch.numbers, scratch.saves
            kept = scratch.both.components[:]
            kept[scratch.component] -= size + scratch.copied
            self.kept = [(size, component) for component, size in enumerate(kept) if size]
        return scratch.pool.live == size + scratch.copied

    def _backward(self, scratch: Scratch, root: Node) -> bool:
        """The output is gone; its node gets the gradient that the part is given."""
        scratch.settle()
        before = scratch.pool.components[:]
        # Autocast ends before the backward; what is saved of its copies goes as given tensors do.
        scratch.autocast = None
        scratch.unpacked = self.unpacked
        shape, dtype, size = self.out
        root.grad = Incoming(shape, dtype, Given(scratch, size))
        scratch.pending.add(root)
        del root
        scratch.unwind(0)
        scratch.cut((END, 0))
        self.backward = segments(scratch.notes, before)
        gone = [segment.event[0] for segment in self.backward]
        left = scratch.pool.live == scratch.left
        return left and not scratch.spoilt and gone.count(GRAD) == 1 and gone.count(RELEASE) == self.saves
