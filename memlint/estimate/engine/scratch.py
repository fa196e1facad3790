"""A tape on which one part of a model runs alone, and what it notes: see engine/whole.py."""

from __future__ import annotations

from math import prod
from sys import getrefcount
from typing import Any

from memlint.estimate.engine.casts import Casts
from memlint.estimate.engine.graph import Leaf, Node, Shape, Tensor, View
from memlint.estimate.engine.pool import ACTIVATIONS, DECOMPOSED, TEMPORARIES, Pool, Storage
from memlint.estimate.engine.segments import CACHE, CAST, END, GRAD, HAND, LET, PASS, RELEASE, SAVE, STOP, Note
from memlint.estimate.engine.tape import Tape
from memlint.units import DTYPE_BYTES


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


class Own(Storage):
    """A storage of the part's. While a run counts for two, it stays in the second count once it is saved."""

    __slots__ = ("keep", "number", "scratch")

    scratch: Scratch
    keep: list[Tensor] | None
    """Saved tensors over it, which get their storages after the forward."""
    number: int
    """What it was handed out as, its bytes being no longer the part's to free; 0: nobody asks when it goes; -1: not."""

    def __del__(self) -> None:
        if self.number < 0:
            scratch, size, component = self.scratch, self.size, self.component
            pool, second = scratch.pool, scratch.both
            pool.live -= size
            pool.components[component] -= size
            if second is not None and self.keep is None:
                second.live -= size
                second.components[component] -= size
        elif self.number:
            self.scratch.cut((LET, self.number))

    def relabel(self, component: int) -> None:
        """Parts change no labels but by saving."""
        self.scratch.spoilt = True


class _Saved(Tensor):
    """A given tensor that a node saves."""

    __slots__ = ("number", "scratch")

    def __init__(self, tensor: Tensor, scratch: Scratch, number: int) -> None:
        super().__init__(tensor.shape, tensor.dtype, tensor.storage, tensor.node)
        self.scratch, self.number = scratch, number

    def __del__(self) -> None:
        self.scratch.cut((RELEASE, self.number))


class _Copies(Casts):
    """Autocast's cache of a scratch tape."""

    scratch: Scratch

    def __setitem__(self, key: int, copied: Tensor) -> None:
        scratch, storage = self.scratch, copied.storage
        place = scratch.weights.get(key)
        if place is None or type(storage) is not Own:
            scratch.spoilt = True
            return
        scratch.cut((CACHE, place, copied.shape, copied.dtype, storage.size))
        scratch.copied += storage.size
        scratch.left += storage.size
        node = copied.node
        if node is not None:
            scratch.casts[id(node)] = scratch.parameters + len(scratch.given)
        scratch.give(key, copied, node is not None)


class Scratch(Tape):
    """A tape on which one part runs alone: with a graph it counts the run that keeps nothing too."""

    def __init__(
        self,
        like: Tape,
        weights: list[Any],
        inputs: tuple[Tensor, ...],
        copies: list[tuple[int, Tensor]],
        *,
        recorded: bool,
    ) -> None:
        super().__init__()
        self.counts_twice = False
        self.hollow, self.hollow_asked = True, False
        self.both = Pool() if recorded else None
        """The run that keeps what is saved, while ``pool`` is that which does not; later ``pool`` itself."""
        self.pool.second = self.both  # type: ignore[assignment]
        self.component, self.autocast, self.adapters = like.component, like.autocast, like.adapters
        self.grad_enabled, self.one_kernel_silu = like.grad_enabled, like.one_kernel_silu
        self.notes: list[Note] = []
        """Of ``pool``."""
        self.stop: Note | None = None
        self.log: list[Note] = []
        """Of the other."""
        self.keeps: list[tuple[int, int, list[Tensor]]] = []
        self.spoilt = len({id(x.storage) for x in inputs}) < len(inputs)
        self.given: list[Tensor] = []
        self.weights = {id(weight): place for place, weight in enumerate(weights)}
        self.gates = {id(w.node): len(inputs) + n for n, w in enumerate(weights) if w.node is not None}
        self.cast_cache = cache = _Copies()
        cache.scratch = self
        self.inputs, self.parameters = len(inputs), len(weights)
        self.casts: dict[int, int] = {}
        """Nodes of copies that autocast caches, and their places among the edges."""
        self.places: dict[int, int] = {}
        self.numbers = self.handed = 0
        self.copied = self.left = 0
        """Bytes of the copies; and of gradients that have been handed out, too: they stay."""
        for place, x in enumerate(inputs):
            gate = None if x.node is None else Leaf(x.shape, x.dtype)
            given = Tensor(x.shape, x.dtype, Given(None, 0 if x.storage is None else x.storage.size), gate)
            self.given.append(given)
            self.places[id(given.storage)] = place
            self.gates[id(gate)] = place
        for place, x in copies:
            self.give(id(weights[place]), Tensor(x.shape, x.dtype, Given(None, 0)), x.node is not None)

    def give(self, key: int, copied: Tensor, needs: bool) -> None:
        """Let a parameter's copy in autocast's cache be no more of the part's own than its inputs."""
        if needs:
            edge = self.parameters + len(self.given)
            copied.node = gate = Leaf(copied.shape, copied.dtype)
            self.gates[id(gate)] = edge
        self.places[id(copied.storage)] = len(self.given)
        self.given.append(copied)
        dict.__setitem__(self.cast_cache, key, copied)

    def settle(self) -> None:
        """Go on where the forward has ended, with what it has kept."""
        assert self.both is not None
        self.pool, self.both = self.both, None
        self.notes = []
        for size, component, tensors in self.keeps:
            storage = self._own(size, component)
            for tensor in tensors:
                tensor.storage = storage
            tensors.clear()
        self.pool.restart()

    def _own(self, size: int, component: int) -> Own:
        storage = Own()
        storage.scratch, storage.size, storage.component = self, size, component
        storage.keep, storage.number, storage.repeat = None, -1, None
        return storage

    def new(self, shape: Shape, dtype: str, component: int | None = None) -> Tensor:
        """See :meth:`Tape.new`."""
        if component is None:
            component = self.component
        elif component == DECOMPOSED:
            self.spoilt = True
            component = self.component
        size = (prod(shape) * DTYPE_BYTES[dtype] + 511) & ~511
        pool = self.pool
        live = pool.live = pool.live + size
        pool.components[component] += size
        if live > pool.peak:
            pool.peak = live
            pool.peak_components = pool.components[:]
        second = self.both
        if second is not None:
            live = second.live = second.live + size
            second.components[component] += size
            if live > second.peak:
                second.peak = live
                second.peak_components = second.components[:]
        return Tensor(shape, dtype, self._own(size, component))

    def save(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """See :meth:`Tape.save`."""
        second = self.both
        if second is None:
            return ()
        saved: list[Tensor | None] = []
        for tensor in tensors:
            if tensor is None:
                saved.append(None)
                continue
            storage = tensor.storage
            place = self.places.get(id(storage))
            if place is not None:
                self.cut((SAVE, place, tensor.shape, tensor.dtype))
                saved.append(_Saved(tensor, self, self.numbers))
                self.numbers += 1
                continue
            self.saves += 1
            if isinstance(storage, Own):
                if storage.keep is None:
                    component, size = storage.component, storage.size
                    if component == TEMPORARIES:
                        component = ACTIVATIONS
                        second.components[TEMPORARIES] -= size
                        second.components[ACTIVATIONS] += size
                    storage.keep = []
                    self.keeps.append((size, component, storage.keep))
                tensor = Tensor(tensor.shape, tensor.dtype, None, tensor.node)
                storage.keep.append(tensor)
            saved.append(tensor)
            self.stop = (second.peak, second.peak_components), second.components[:], (STOP, 0)
        return tuple(saved)

    def unwind(self, floor: int) -> None:
        """See :meth:`Unwinding.unwind`: the node of a copy runs on what has come together there."""
        nodes = self.nodes
        while len(nodes) > floor:
            node = nodes.pop()
            if id(node) in self.casts:
                self.cut((CAST, self.casts[id(node)]))
            elif node.grad is not None:
                self.execute(node)
            else:
                node.saved = ()

    def execute(self, node: Node) -> None:
        """See :meth:`Unwinding.execute`."""
        for edge in node.edges:
            if isinstance(edge, Node) and edge.grad is not None and type(edge.grad.storage) is Given:
                # Whether one adds to it in place depends on who else has it.
                self.spoilt = True
        super().execute(node)

    def cut(self, event: Any) -> None:
        """Note what has been until an event."""
        second = self.both
        if second is not None:
            if self.stop is not None and event[0] != SAVE:
                # Of saves of the part's own only the last matters; the peak goes on.
                self.log.append(self.stop)
            self.stop = None
            self.log.append(((second.peak, second.peak_components), second.components[:], event))
            second.restart()
            if event[0] != CACHE and event[0] != END:
                return
        pool = self.pool
        self.notes.append(((pool.peak, pool.peak_components), pool.components[:], event))
        pool.restart()

    def _accumulate(self, leaf: Leaf, grad: Tensor, cast: bool = False) -> None:
        storage, found = grad.storage, self.gates.get(id(leaf))
        if found is None or not isinstance(storage, (Own, Given)):
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

    def makes(self, out: Tensor) -> bool:
        """Whether a part's output is its own and nothing else's."""
        storage = out.storage
        return (
            type(storage) is Own
            and storage.keep is None
            and storage.component == self.component
            and getrefcount(storage) == 3
            and not (self.lingering or self.hollow_asked or self.spoilt)
        )
