"""Storages that know from which others fused kernels can make them again, and saved tensors that are made again."""

from __future__ import annotations

from typing import Iterable
from weakref import ReferenceType

from memlint.estimate.engine.graph import Tensor
from memlint.estimate.engine.pool import Pool, Storage


class Traced(Storage):
    """A storage of which is known how it came to be."""

    __slots__ = ("__weakref__", "before", "casts", "fixed", "fused", "kept", "sources", "used", "whole")

    def __init__(self, pool: Pool, size: int, component: int) -> None:
        self.before = (pool.peak, pool.peak_components)
        self.begin(pool, size, component)
        self.whole = self.size
        """Bytes of it where it is laid down; ``size`` is 0 while it lives inside a fused kernel only."""
        self.sources: tuple[Storage, ...] = ()
        """Those from which fused work can make it again; empty where it is laid down."""
        self.fused = False
        """Made by fused work."""
        self.kept = False
        """Saved for backward."""
        self.fixed = False
        """No buffer that backward may write its own results to."""
        self.used: int | None = None
        """How many products had run when it was first used."""
        self.casts: dict[str, ReferenceType[Storage]] = {}
        """Copies of it in other dtypes."""

    def dissolve(self, sources: Iterable[Storage]) -> None:
        """It lives inside a fused kernel: it takes no memory, but what it is made of stays."""
        self.sources = tuple(sources)
        pool = self.pool
        pool.live -= self.size
        pool.components[self.component] -= self.size
        self.size = 0
        if pool.peak > self.before[0]:
            pool.peak, pool.peak_components = self.before
            if pool.live > pool.peak:
                pool.peak, pool.peak_components = pool.live, pool.components[:]

    def lay_down(self) -> None:
        """A kernel writes it to memory, over what it is made of where nobody else needs that."""
        read, self.sources = [s for s in self.sources if isinstance(s, Traced) and s.fixed], ()
        if self.size != self.whole:
            self.size = self.whole
            self.pool.add(self.size, self.component)
        del read


class Ghost(Tensor):
    """A saved tensor that is made again from the storages it holds."""

    __slots__ = ("held",)

    def __init__(self, tensor: Tensor, held: tuple[Storage, ...]) -> None:
        super().__init__(tensor.shape, tensor.dtype, None)
        self.held = held


def origins(storage: Storage) -> tuple[Storage, ...]:
    """Where the cut to a tensor lies: at itself, or at the storages that it is made of where these are smaller."""
    if not isinstance(storage, Traced) or not storage.sources:
        return (storage,)
    missing = sum([_whole_bytes(s) for s in storage.sources if not (isinstance(s, Traced) and s.kept)])
    return (storage,) if missing >= 2 * storage.whole else storage.sources


def _whole_bytes(storage: Storage) -> int:
    return storage.whole if isinstance(storage, Traced) else storage.size


def lay_down(tensor: Tensor | None) -> None:
    """Have a tensor written to memory."""
    if tensor is not None and isinstance(tensor.storage, Traced):
        tensor.storage.lay_down()
