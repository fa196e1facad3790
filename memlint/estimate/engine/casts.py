"""Autocast's cache of half-precision weights, and where the gradients of a copy go that is used more than once.

Autocast casts a leaf that requires a gradient once until it ends (``cached_cast`` in aten/src/ATen/autocast_mode.cpp,
torch 2.13), so all uses of a weight share one ToCopyBackward0. Their gradients gather there in half precision, and one
fp32 gradient is made of them where the first use stands. The recomputation of a checkpoint without reentry makes copies
of its own, but its gradients flow through the graph of the forward: to the node that the forward shared. A reentrant
one is a graph, and an autocast, of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Node, Tensor

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape

Sharing = tuple[dict[int, Node], dict[int, Node]]
"""What a checkpoint knows of an autocast's copies: those that are used more than once, and those it was given."""


class Casts(dict[int, Tensor]):
    """The half copies of one autocast by the id of what they are made of, alive until it ends."""

    __slots__ = ("given", "shared", "uses")

    def __init__(self, sharing: Sharing | None = None) -> None:
        """``sharing``: of the checkpoint whose recomputation begins."""
        self.shared, self.given = ({}, {}) if sharing is None else sharing
        self.uses: dict[int, Node] | None = None
        """Copies that the checkpointed forward under way has found here; None: there is none."""

    def clear(self) -> None:
        """End the autocast."""
        super().clear()
        self.shared, self.given = {}, {}

    def found(self, key: int, copied: Tensor) -> None:
        """Note that a copy is used again."""
        node = copied.node
        if isinstance(node, Node):
            self.shared[key] = node
            if self.uses is not None:
                self.uses[key] = node

    def begin(self) -> tuple[int, dict[int, Node] | None]:
        """Begin the forward of a checkpoint without reentry; what :meth:`end` asks for."""
        before, self.uses = (len(self), self.uses), {}
        return before

    def end(self, before: tuple[int, dict[int, Node] | None]) -> Sharing:
        """What the checkpoint's recomputation has to know."""
        (known, outer), uses = before, self.uses
        self.uses = outer
        if uses:
            for key in list(self)[known:]:
                if key not in self.given:
                    uses.pop(key, None)
            if outer is not None:
                outer.update(uses)
        return self.shared, uses or {}

    def join(self, tape: Tape, key: int, copied: Tensor) -> None:
        """Let the gradient of a copy that has just been made again flow to where the others' does."""
        node, made = self.shared.get(key), copied.node
        if node is None or not isinstance(made, Node):
            return
        if key in self.given:
            copied.node = self.given[key]
            tape.nodes.pop()
            self.found(key, copied)
        elif tape._hollow:
            # A checkpoint inside this one made it.
            copied.node = tape.nodes[-1] = node
        else:
            made.grad, node.grad = node.grad, None
            if made.grad is not None:
                tape.pending.discard(node)
                tape.pending.add(made)
