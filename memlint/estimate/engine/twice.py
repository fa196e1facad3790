"""One forward of a checkpointed block that stands for two: the one that keeps nothing, and its recomputation.

Both run the same operations on the same shapes. They differ in what dies: the first lets go of every tensor as Python
does, the second keeps those that are saved, up to the last one (early stop). So the first run counts both: a storage
that is saved leaves the first count when Python lets it go, and stays in the second. The recomputation then takes the
nodes of the first run, gives the saved tensors storages again, and counts the highest point on the way there.

Where the two runs may differ in more than that (an operation that asks which one it is in, autocast's copies from
before the block, checkpoints inside) the first run is what it was, and the block runs again.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Callable

from memlint.estimate.engine.casts import Casts
from memlint.estimate.engine.graph import Node, Shape, Tensor
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES, Pool, Storage, rounded

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape


class Second:
    """The live bytes of the recomputation, counted from where it begins."""

    __slots__ = (
        "active",
        "alive",
        "components",
        "inputs",
        "keeps",
        "live",
        "peak",
        "peak_components",
        "places",
        "spoilt",
        "stop",
    )

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        self.places = {id(tensor.storage): place for place, tensor in enumerate(inputs)}
        self.inputs: list[tuple[Tensor, int]] = []
        """Saved tensors over the block's inputs, whose storages the recomputation brings, and their places."""
        self.active = True
        self.alive = 0
        """Storages of both runs that Python has not let go."""
        self.live = self.peak = 0
        self.components = [0] * 9
        self.peak_components = [0] * 9
        self.keeps: list[tuple[int, int, list[Tensor]]] = []
        """Bytes and component of storages that are saved, and the saved tensors over them."""
        self.stop: tuple[int, list[int]] | None = None
        """Highest point until the last save, with its components."""
        self.spoilt = False
        """The recomputation cannot be told from this run."""

    def new(self, pool: Pool, shape: Shape, dtype: str, size: int, component: int) -> Tensor:
        """Allocate a tensor in both runs, as :meth:`Tape.new` does."""
        storage = Double()
        storage.pool, storage.size, storage.component = pool, size, component
        storage.repeat = pool.repeat
        storage.keep = None
        storage.second = self
        self.alive += 1
        live = pool.live = pool.live + size
        pool.components[component] += size
        if live > pool.peak:
            pool.peak = live
            pool.peak_components = pool.components[:]
        live = self.live = self.live + size
        self.components[component] += size
        if live > self.peak:
            self.peak = live
            self.peak_components = self.components[:]
        return Tensor(shape, dtype, storage)

    def uneven(self, pool: Pool, first: int, again: int, component: int) -> Tensor:
        """Allocate a buffer that has ``first`` bytes in the first run and ``again`` in the recomputation."""
        self.alive += 1
        live = self.live = self.live + rounded(again)
        self.components[component] += rounded(again)
        if live > self.peak:
            self.peak = live
            self.peak_components = self.components[:]
        return Tensor((again,), "uint8", Uneven(pool, first, again, component, self))

    def touch(self, size: int, component: int) -> None:
        """Count scratch inside a kernel."""
        if self.live + size > self.peak:
            self.peak = self.live + size
            self.peak_components = self.components[:]
            self.peak_components[component] += size

    def save(self, given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """What a node keeps of tensors in the recomputation; their storages come with it."""
        saved: list[Tensor | None] = []
        for tensor in given:
            storage = None if tensor is None else tensor.storage
            if tensor is None or storage is None:
                saved.append(tensor)
            elif id(storage) in self.places:
                copy = Tensor(tensor.shape, tensor.dtype, None, tensor.node)
                self.inputs.append((copy, self.places[id(storage)]))
                saved.append(copy)
            elif isinstance(storage, Double) and storage.second is self:
                tensors = storage.keep
                if tensors is None:
                    component, size = storage.component, storage.size
                    if isinstance(storage, Uneven):
                        size += storage.more
                    if component == TEMPORARIES:
                        self.components[TEMPORARIES] -= size
                        self.components[ACTIVATIONS] += size
                        component = ACTIVATIONS
                    tensors = storage.keep = []
                    self.keeps.append((size, component, tensors))
                copy = Tensor(tensor.shape, tensor.dtype, None, tensor.node)
                tensors.append(copy)
                saved.append(copy)
            else:
                # What the block was given: labelled already, or it will be by the recomputation's save.
                self.spoilt = self.spoilt or storage.component == TEMPORARIES
                saved.append(tensor)
        self.stop = self.peak, self.peak_components
        return tuple(saved)


class Double(Storage):
    """A storage of both runs."""

    __slots__ = ("keep", "second")

    keep: list[Tensor] | None
    """Saved tensors over it."""
    second: Second

    def __del__(self) -> None:
        pool, size, component = self.pool, self.size, self.component
        second = self.second
        if second.active:
            second.alive -= 1
            if self.keep is None:
                second.live -= size
                second.components[component] -= size
        if self.repeat is not None:
            size *= self.repeat.factor
        pool.live -= size
        pool.components[component] -= size

    def relabel(self, component: int) -> None:
        """See :class:`Storage`."""
        second = self.second
        if second.active and self.keep is None:
            second.components[self.component] -= self.size
            second.components[component] += self.size
        elif second.active:
            second.spoilt = True
        super().relabel(component)


class Uneven(Double):
    """A storage whose size differs from run to run."""

    __slots__ = ("more",)

    def __init__(self, pool: Pool, first: int, again: int, component: int, second: Second) -> None:
        self.begin(pool, first, component)
        self.keep, self.second = None, second
        self.more = rounded(again) - self.size
        """Further bytes in the recomputation."""

    def __del__(self) -> None:
        self._leave()
        super().__del__()

    def relabel(self, component: int) -> None:
        """See :class:`Storage`."""
        if self._leave():
            self.second.live += self.more
            self.second.components[component] += self.more
        super().relabel(component)

    def _leave(self) -> bool:
        second = self.second
        if not second.active or self.keep is not None:
            return False
        second.live -= self.more
        second.components[self.component] -= self.more
        return True


class _Cache(Casts):
    """Autocast's cache, which notes when a copy from before the block is used."""

    before: frozenset[int] = frozenset()
    hit = False

    def get(self, key: int, default: Any = None) -> Any:
        if key in self.before:
            self.hit = True
        return super().get(key, default)


class Ready:
    """A recomputation that need not run: its nodes, and what it does to the live bytes."""

    __slots__ = ("gates", "highest", "inputs", "keeps", "nodes", "rise", "root")

    def __init__(self, second: Second, gates: list[Node], nodes: list[Node], root: Any) -> None:
        assert second.stop is not None
        self.rise, self.highest = second.stop
        self.keeps, self.inputs = second.keeps, second.inputs
        self.gates = gates
        self.nodes = nodes
        self.root = root

    def begin(self, tape: Tape, inputs: list[Tensor]) -> None:
        """Stand where the recomputation ends."""
        for tensor, place in self.inputs:
            tensor.storage = inputs[place].storage
        pool = tape.pool
        if pool.live + self.rise > pool.peak:
            pool.peak = pool.live + self.rise
            pool.peak_components = [now + more for now, more in zip(pool.components, self.highest)]
        for size, component, tensors in self.keeps:
            pool.silently(size, component)
            storage = Storage.counted(pool, size, component)
            storage.repeat = pool.repeat
            for tensor in tensors:
                tensor.storage = storage
            # What of the first run is still alive knows this list.
            tensors.clear()
        self.keeps.clear()
        self.inputs.clear()
        tape.nodes += self.nodes
        self.nodes = []


def may_stand_for_both(tape: Tape, inputs: tuple[Tensor, ...]) -> bool:
    """Whether a checkpointed block's first run may count its recomputation too."""
    if not tape.counts_twice or tape.second is not None or tape.pool.watch is not None:
        return False
    for tensor in inputs:
        node = tensor.node
        if node is None or (isinstance(node, Node) and not node.edges and node.backward is not None):
            return False
    return bool(inputs)


def run_for_both(tape: Tape, run: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, Second, Any]:
    """The first run of a block; the count of its recomputation, and the gates of its inputs."""
    gates = [Node(None, (), (), (), None, TEMPORARIES) for _ in inputs]
    given = [Tensor(t.shape, t.dtype, t.storage, gate) for t, gate in zip(inputs, gates)]
    second = tape.second = tape.pool.second = Second(inputs)
    cache = None
    outer = tape.cast_cache
    if tape.autocast is not None and outer:
        cache = tape.cast_cache = _Cache()
        cache.update(outer)
        cache.shared, cache.given, cache.uses = outer.shared, outer.given, outer.uses
        cache.before = frozenset(outer)
    known = len(outer)
    out = run(*given)
    # Beside its output and autocast's copies nothing must outlive the block: the recomputation would make it again.
    left = [out, *list(tape.cast_cache.values())[known:]]
    mine = {id(t.storage) for t in left if isinstance(t.storage, Double) and t.storage.second is second}
    second.spoilt = second.spoilt or second.alive != len(mine)
    del left
    if cache is not None:
        second.spoilt = second.spoilt or cache.hit
        tape.cast_cache = outer
        outer.update(cache)
    tape.second = tape.pool.second = None
    second.active = False
    return out, second, gates


def are_plain(nodes: list[Node], second: Second) -> bool:
    """Whether nodes hold no tensors but those that :meth:`Second.save` gave them."""
    for node in nodes:
        backward, meta = node.backward, node.meta
        if backward is None and hasattr(node, "unwind"):
            meta = None
        elif type(backward) is not FunctionType or backward.__closure__ is not None:
            return False
        for tensor in node.saved:
            if tensor is not None and isinstance(tensor.storage, Double) and tensor.storage.second is second:
                return False
        if meta is not None and not _is_plain(meta):
            return False
    return True


def _is_plain(meta: Any) -> bool:
    kind = type(meta)
    if kind is tuple:
        return all(map(_is_plain, meta))
    return meta is None or kind in (str, int, bool, float) or kind.__name__ in ("_Parts", "QuantizedWeight")
