"""The allocator: live bytes, peak and the component of every live byte.

A storage lives exactly as long as something refers to it, as in eager PyTorch: CPython's reference counting frees it,
so a variable that keeps a tensor alive is a leak in the model just as it is in PyTorch.
"""

from __future__ import annotations

from typing import Callable

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, TEMPORARIES, COMMUNICATION, INPUTS, DECOMPOSED = range(9)
"""Indexes into component vectors, in the order of ``memlint.estimate.result.COMPONENTS``.

DECOMPOSED are temporaries that exist in a trace on fake tensors but not inside CUDA's one kernel; reported as
temporaries.
"""

ROUNDING = 512
"""Every block is a multiple of 512 bytes: kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp (torch 2.13)."""


def rounded(size: int) -> int:
    """Bytes that the caching allocator counts for a request of ``size`` bytes (0 stays 0)."""
    return (size + 511) & ~511


class Repeat:
    """One block run that stands for ``count`` identical blocks; see :meth:`Pool.enter_repeat`."""

    __slots__ = ("at_entry", "count", "factor", "outer_components", "outer_peak")

    def __init__(self, count: int) -> None:
        self.count = count
        self.factor = 1
        """How many real storages one storage of this block stands for at the moment."""
        self.at_entry: list[int] = []
        self.outer_peak = 0
        self.outer_components: list[int] = []


class Storage:
    """A block of device memory of ``size`` bytes (already rounded)."""

    __slots__ = ("component", "pool", "repeat", "size")

    def __init__(self, pool: Pool, size: int, component: int) -> None:
        size = (size + 511) & ~511
        self.pool = pool
        self.size = size
        self.component = component
        repeat = pool.repeat
        self.repeat = repeat
        live = pool.live = pool.live + size
        pool.components[component] += size
        if live > pool.peak:
            pool.peak = live
            pool.peak_components = pool.components[:]
        if pool.watch is not None:
            pool.watch(self, size)

    def __del__(self) -> None:
        pool = self.pool
        size = self.size
        repeat = self.repeat
        if repeat is not None:
            size *= repeat.factor
        pool.live -= size
        pool.components[self.component] -= size
        if pool.watch is not None:
            pool.watch(self, 0)

    def relabel(self, component: int) -> None:
        """Count the block under another component from now on (a saved temporary is an activation)."""
        components = self.pool.components
        size = self.size
        repeat = self.repeat
        if repeat is not None:
            size *= repeat.factor
        components[self.component] -= size
        components[component] += size
        self.component = component


class Pool:
    """Live bytes of one GPU, with the peak since :meth:`begin`."""

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.components = [0] * 9
        self.peak_components = [0] * 9
        self.watch: Callable[[Storage | None, int], None] | None = None
        """Told of every storage's beginning (its size) and end (0); None with a size: scratch inside a kernel."""
        self.repeat: Repeat | None = None
        """The repeat under way; storages made now belong to it."""

    def begin(self) -> None:
        """Start a phase: the peak restarts at what is live."""
        self.peak = self.live
        self.peak_components = self.components[:]

    def add(self, size: int, component: int) -> None:
        """Count ``size`` bytes that stay for good (parameters, optimizer states); negative takes them away."""
        self.live += size
        self.components[component] += size
        if self.live > self.peak:
            self.peak = self.live
            self.peak_components = self.components[:]

    def touch(self, size: int, component: int) -> None:
        """Allocate and free ``size`` bytes at once: scratch inside a kernel."""
        size = (size + 511) & ~511
        if self.watch is not None:
            self.watch(None, size)
        if self.live + size > self.peak:
            self.peak = self.live + size
            self.peak_components = self.components[:]
            self.peak_components[component] += size

    def enter_repeat(self, repeat: Repeat) -> None:
        """Begin the one real run, forward or backward, of a block that stands for ``repeat.count`` equal ones.

        The block must be in its steady state: what it leaves alive differs from what it found by a constant, whichever
        of the equal blocks runs. Then live bytes are linear in the number of the block, and both the peak over all of
        them and the state after the last follow exactly from one run.
        """
        repeat.factor = 1
        repeat.at_entry = self.components[:]
        repeat.outer_peak = self.peak
        repeat.outer_components = self.peak_components
        self.peak = self.live
        self.peak_components = self.components[:]
        self.repeat = repeat

    def leave_repeat(self, repeat: Repeat) -> None:
        """End the run: add what the other ``count - 1`` blocks leave, and take the peak of the first or last of them.

        Storages that outlive the run stand for ``count`` from now on, except those handed over to the next block, which
        the caller has released with :meth:`hand_over`.
        """
        others = repeat.count - 1
        components = self.components
        delta = [now - before for now, before in zip(components, repeat.at_entry)]
        change = sum(delta)
        if change > 0:
            self.peak += others * change
            self.peak_components = [p + others * d for p, d in zip(self.peak_components, delta)]
        if repeat.outer_peak > self.peak:
            self.peak = repeat.outer_peak
            self.peak_components = repeat.outer_components
        self.components = [c + others * d for c, d in zip(components, delta)]
        self.live += others * change
        repeat.factor = repeat.count
        self.repeat = None

    def hand_over(self, storage: Storage) -> None:
        """Let a block's output (or outgoing gradient) count once: the next equal block makes its own."""
        storage.repeat = None
