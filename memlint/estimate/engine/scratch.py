"""A tape on which one part of a model runs alone, and what it notes: see engine/whole.py."""

from __future__ import annotations

from math import prod
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.change import NONE
from memlint.estimate.engine.graph import Leaf, Node, Shape, Tensor, View
from memlint.estimate.engine.pool import ACTIVATIONS, DECOMPOSED, Pool, Storage
from memlint.estimate.engine.tape import Tape
from memlint.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memlint.estimate.engine.twice import Second

SAVE, STOP, CACHE, RELEASE, GRAD, HAND, PASS, LET, END = range(9)
"""What happens after a segment: a given tensor is saved, something of the part's own is, autocast caches a copy of a
parameter, a saved given tensor goes, the incoming gradient goes, a gradient for an input or a parameter is there, the
incoming one is it, the part lets go of one that it has handed out, or all is done."""


class Segment:
    """A stretch of the part's run: its highest point and its end, counted from where it begins."""

    __slots__ = ("delta", "event", "growth", "highest", "rise")

    def __init__(self, before: tuple[int, list[int]], peak: tuple[int, list[int]], now: list[int], event: Any) -> None:
        live, components = before
        self.rise = peak[0] - live
        self.highest = [high - first for high, first in zip(peak[1], components)]
        self.delta = [
            (place, last - first) for place, (last, first) in enumerate(zip(now, components)) if last != first
        ]
        self.growth = sum([size for _, size in self.delta])
        self.event = event

    def count(self, pool: Pool | Second) -> None:
        """Count it in live bytes."""
        live = pool.live
        if live + self.rise > pool.peak:
            pool.peak = live + self.rise
            pool.peak_components = [now + more for now, more in zip(pool.components, self.highest)]
        pool.live = live + self.growth
        components = pool.components
        for place, size in self.delta:
            components[place] += size


class Given(Storage):
    """Stands for a tensor that is not the part's own; ``scratch`` is told when it goes."""

    __slots__ = ("scratch",)

    def __init__(self, scratch: Scratch | None, size: int) -> None:
        self.pool, self.size, self.component, self.repeat = None, size, ACTIVATIONS, None  # type: ignore[assignment]
        self.scratch = scratch

    def __del__(self) -> None:
        if self.scratch is not None:
            self.scratch.cut((GRAD, 0))


class Incoming(Tensor):
    """The gradient that a part is given."""

    __slots__ = ()


class _Own(Storage):
    """A storage of the part's; with a number it has been handed out, and its bytes are no longer the part's to free."""

    __slots__ = ("number", "scratch")

    def __init__(self, scratch: Scratch, size: int, component: int) -> None:
        super().__init__(scratch.pool, size, component)
        self.scratch, self.number = scratch, -1

    def __del__(self) -> None:
        if self.number < 0:
            super().__del__()
        elif self.number:
            self.scratch.cut((LET, self.number))


class _Saved(Tensor):
    """A given tensor that a node saves."""

    __slots__ = ("number", "scratch")

    def __init__(self, tensor: Tensor, scratch: Scratch, number: int) -> None:
        super().__init__(tensor.shape, tensor.dtype, tensor.storage, tensor.node)
        self.scratch, self.number = scratch, number

    def __del__(self) -> None:
        self.scratch.cut((RELEASE, self.number))


class _Copies(dict[int, Tensor]):
    """Autocast's cache of a scratch tape."""

    scratch: Scratch

    def __setitem__(self, key: int, copied: Tensor) -> None:
        scratch, storage = self.scratch, copied.storage
        place = scratch.weights.get(key)
        if place is None or type(storage) is not _Own:
            scratch.spoilt = True
            return
        scratch.cut((CACHE, place, copied.shape, copied.dtype, storage.size))
        scratch.places[id(storage)] = len(scratch.given)
        scratch.given.append(copied)
        scratch.copied += storage.size
        scratch.left += storage.size
        super().__setitem__(key, copied)


class Scratch(Tape):
    """A tape on which one part runs alone."""

    def __init__(self, like: Tape, weights: list[Any], inputs: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.counts_twice = False
        self.component, self.autocast, self.adapters = like.component, like.autocast, like.adapters
        self.grad_enabled, self.one_kernel_silu = like.grad_enabled, like.one_kernel_silu
        self.log: list[tuple[tuple[int, list[int]], list[int], Any]] = []
        self.spoilt = False
        self.given: list[Tensor] = []
        self.weights = {id(weight): place for place, weight in enumerate(weights)}
        self.gates = {id(w.node): len(inputs) + n for n, w in enumerate(weights) if w.node is not None}
        self.cast_cache = copies = _Copies()
        copies.scratch = self
        self.copied = 0
        self.places: dict[int, int] = {}
        self.numbers = self.handed = 0
        self.left = 0
        """Bytes of the copies, and of gradients that have been handed out: they stay."""
        for place, x in enumerate(inputs):
            gate = None if x.node is None else Leaf(x.shape, x.dtype)
            given = Tensor(x.shape, x.dtype, Given(None, 0 if x.storage is None else x.storage.size), gate)
            self.given.append(given)
            self.places[id(given.storage)] = place
            self.gates[id(gate)] = place
        if len({id(x.storage) for x in inputs}) < len(inputs):
            self.spoilt = True

    def new(self, shape: Shape, dtype: str, component: int | None = None) -> Tensor:
        """See :meth:`Tape.new`."""
        if component == DECOMPOSED:
            self.spoilt = True
            return super().new(shape, dtype, component)
        size = prod(shape) * DTYPE_BYTES[dtype]
        return Tensor(shape, dtype, _Own(self, size, self.component if component is None else component))

    def execute(self, node: Node) -> None:
        """See :meth:`Unwinding.execute`."""
        for edge in node.edges:
            if isinstance(edge, Node) and edge.grad is not None and type(edge.grad.storage) is Given:
                # Whether one adds to it in place depends on who else has it.
                self.spoilt = True
        super().execute(node)

    def cut(self, event: Any) -> None:
        """Note what has been until an event."""
        pool = self.pool
        self.log.append(((pool.peak, pool.peak_components), pool.components[:], event))
        self.spoilt = self.spoilt or pool.traced is not NONE
        pool.restart()

    def segments(self, before: list[int]) -> list[Segment]:
        """What has been noted since ``before``; of saves of the part's own only the last matters."""
        last = max([n for n, (_, _, event) in enumerate(self.log) if event[0] in (STOP, SAVE)], default=-1)
        made = []
        highest: tuple[int, list[int]] | None = None
        for number, (peak, now, event) in enumerate(self.log):
            if highest is None or peak[0] > highest[0]:
                highest = peak
            if event[0] == STOP and number != last:
                continue
            made.append(Segment((sum(before), before), highest, now, event))
            before, highest = now, None
        self.log = []
        return made

    def save(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """See :meth:`Tape.save`."""
        if self._hollow:
            return super().save(*tensors)
        kept: list[Tensor | None] = []
        for tensor in tensors:
            place = None if tensor is None else self.places.get(id(tensor.storage))
            if tensor is None or place is None:
                super().save(tensor)
                kept.append(tensor)
                if tensor is not None:
                    self.cut((STOP, 0))
            else:
                self.cut((SAVE, place, tensor.shape, tensor.dtype))
                kept.append(_Saved(tensor, self, self.numbers))
                self.numbers += 1
        return tuple(kept)

    def _accumulate(self, leaf: Leaf, grad: Tensor, cast: bool = False) -> None:
        storage, found = grad.storage, self.gates.get(id(leaf))
        if found is None or not isinstance(storage, (_Own, Given)):
            self.spoilt = True
        elif isinstance(storage, Given):
            self.spoilt = self.spoilt or storage.scratch is None or type(grad) is View
            self.cut((PASS, found, cast, type(grad) is Incoming, grad.shape, grad.dtype))
        elif storage.number >= 0:
            self.spoilt = True
        else:
            shared = getrefcount(storage) > 3
            self.handed += shared
            number = storage.number = self.handed if shared else 0
            size, label = storage.size, storage.component
            self.left += size
            self.cut((HAND, found, cast, number, type(grad), grad.shape, grad.dtype, size, label))


def makes(scratch: Scratch, out: Tensor) -> bool:
    """Whether a part's output is its own and nothing else's."""
    storage = out.storage
    return (
        type(storage) is _Own
        and storage.component == scratch.component
        and getrefcount(storage) == 3
        and not scratch.lingering
        and not scratch.spoilt
    )
