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
    """Storages made in the one run of a block, each of which stands for ``factor`` equal ones by now."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1


class Change:
    """What one run of a block does to the live bytes: each component at the highest point and at the end, counted from
    the beginning.
    """

    __slots__ = ("end", "growth", "highest", "rise", "traced")

    def __init__(self, highest: list[int], traced: list[int], end: list[int]) -> None:
        self.highest = highest
        self.traced = traced
        """As ``highest``, while decomposed temporaries are alive; nothing where there were none."""
        self.end = end
        self.rise = sum(highest)
        self.growth = sum(end)


Peak = tuple[int, list[int]]
"""Bytes and their components."""
NONE: Peak = (0, [])
Outside = tuple[list[int], Peak, Peak]
"""What a pool held when a block began, and its peaks until then."""


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


class Decomposed(Storage):
    """A temporary that CUDA's one kernel does not have."""

    __slots__ = ()

    def __init__(self, pool: Pool, size: int) -> None:
        pool.enter_trace()
        super().__init__(pool, size, DECOMPOSED)

    def __del__(self) -> None:
        super().__del__()
        self.pool.leave_trace()


class Pool:
    """Live bytes of one GPU, with the peak since :meth:`begin`."""

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.components = [0] * 9
        self.peak_components = [0] * 9
        self.traced: Peak = NONE
        """The peak while decomposed temporaries are alive, which ``peak`` leaves out."""
        self.decomposed = 0
        """Decomposed temporaries that are alive."""
        self.beside: Peak = NONE
        """The other peak, meanwhile."""
        self.watch: Callable[[Storage | None, int], None] | None = None
        """Told of every storage's beginning (its size) and end (0); None with a size: scratch inside a kernel."""
        self.repeat: Repeat | None = None
        """The repeat under way; storages made now belong to it."""

    def begin(self) -> None:
        """Start a phase: the peak restarts at what is live."""
        self.peak = self.live
        self.peak_components = self.components[:]
        self.traced = NONE

    def enter_trace(self) -> None:
        """A decomposed temporary is made: what is live with it counts for the traced peak alone."""
        if not self.decomposed:
            self.beside = self.peak, self.peak_components
        self.decomposed += 1

    def leave_trace(self) -> None:
        """A decomposed temporary is gone; what has been made beside it and is alive counts for both peaks."""
        self.decomposed -= 1
        if self.decomposed:
            return
        if self.peak > max(self.beside[0], self.traced[0]):
            self.traced = self.peak, self.peak_components
        self.peak, self.peak_components = self.beside
        if self.live > self.peak:
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

    def enter(self, repeat: Repeat) -> Outside:
        """Begin the one real run, forward or backward, of a block that stands for several equal ones.

        The block must be in its steady state: what it leaves alive differs from what it found by a constant, whichever
        of the equal blocks runs. What it hands over to the next one the caller releases with :meth:`hand_over`.
        """
        before = self.components[:]
        outside = before, (self.peak, self.peak_components), self.traced
        self.peak = self.live
        self.peak_components = before
        self.traced = NONE
        self.repeat = repeat
        return outside

    def leave(self, outside: Outside) -> Change:
        """End the run and say what it changed."""
        before, peak, traced = outside
        highest = [at_peak - first for at_peak, first in zip(self.peak_components, before)]
        highest_traced = [at_peak - first for at_peak, first in zip(self.traced[1], before)]
        end = [now - first for now, first in zip(self.components, before)]
        if peak[0] >= self.peak:
            self.peak, self.peak_components = peak
        if traced[0] >= self.traced[0]:
            self.traced = traced
        self.repeat = None
        return Change(highest, highest_traced, end)

    def again(self, change: Change, swap: Callable[[], None] | None = None) -> None:
        """Count an equal block, which is not run, from what the one that ran has changed.

        ``swap`` puts what that block hands over in the place of what it was given, where the two differ in size.
        """
        components = self.components
        if self.live + change.rise > self.peak:
            self.peak = self.live + change.rise
            self.peak_components = [now + more for now, more in zip(components, change.highest)]
        if change.traced and self.live + sum(change.traced) > self.traced[0]:
            traced = [now + more for now, more in zip(components, change.traced)]
            self.traced = sum(traced), traced
        after, live = [now + more for now, more in zip(components, change.end)], self.live + change.growth
        if swap is not None:
            peak = self.peak, self.peak_components
            swap()
            self.peak, self.peak_components = peak
        self.components, self.live = after, live

    def hand_over(self, storage: Storage) -> None:
        """Let a block's output (or outgoing gradient) count once: the next equal block makes its own."""
        storage.repeat = None
