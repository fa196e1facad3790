"""Layers of a stack that are run once for all equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Hashable

from memlint.estimate.engine.tape import Leaf, Tensor

if TYPE_CHECKING:
    from memlint.estimate.build import Build
    from memlint.estimate.records import Record
    from memlint.estimate.units import Unit

Layer = Callable[..., Tensor]
Place = tuple[int, Layer, "Unit | None"]
"""A layer's index in the stack, what runs it, and what is gathered for it."""


class Part:
    """Layers that are run together, once for all equal parts of the stack."""

    __slots__ = ("anew", "buffers", "copies", "count", "layers", "leaves", "records")

    def __init__(self, layers: list[Place], count: int) -> None:
        self.layers = layers
        self.count = count
        self.records: list[Record] = []
        """Its parameters, and the bytes of its buffers."""
        self.buffers = 0
        self.leaves: list[Leaf] = []
        self.anew: Callable[[], list[Place]] | None = None
        """Makes its layers once more, of parameters that are not recorded; None: they are run once."""
        self.copies = [layers]

    @property
    def held(self) -> Hashable:
        """What its parameters are."""
        return tuple([(r.shape, r.dtype, r.trainable, r.grad_dtype) for r in self.records])

    def copy(self, number: int) -> list[Place]:
        """Layers that the stack has not run yet: after the first, those of other conditions."""
        if self.anew is None:
            return self.layers
        while len(self.copies) <= number:
            self.copies.append(self.anew())
        return self.copies[number]


def again(build: Build, part: Part, layer: Callable[[int], Place], index: int) -> Callable[[], list[Place]]:
    """What makes the layer at ``index`` once more, as if it were another of its kind."""
    then = dict(vars(build))

    def make() -> list[Place]:
        now = dict(vars(build))
        vars(build).update(then, records=[], leaves=[])
        made = layer(index)
        for leaf, before in zip(build.leaves, part.leaves):
            leaf.grad = before.grad if before.grad is True else None
            leaf.sink = before.sink
        build.made_again += build.leaves
        vars(build).update(now)
        return [made]

    return make
