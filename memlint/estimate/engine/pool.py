"""The allocator: live bytes, peak and the component of every live byte.

A storage lives exactly as long as something refers to it, as in eager PyTorch: CPython's reference counting frees it,
so a variable that keeps a tensor alive is a leak in the model just as it is in PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from memlint.estimate.engine.change import NONE, Change, Cut, Outside, Peak, Repeat, Shift, Shifts, Stretch

if TYPE_CHECKING:
    from memlint.estimate.engine.twice import Second

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


class Storage:
    """A block of device memory of ``size`` bytes (already rounded)."""

    __slots__ = ("component", "pool", "repeat", "size")

    def begin(self, pool: Pool, size: int, component: int) -> None:
        """Count it. This is no ``__init__``: a call of a class without one takes half as long, and an estimate's time
        goes into storages, tensors and nodes.
        """
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

    @classmethod
    def counted(cls, pool: Pool, size: int, component: int) -> Storage:
        """A block that is among the live bytes already."""
        made = cls()
        made.pool, made.size, made.component, made.repeat = pool, size, component, None
        return made

    def relabel(self, component: int) -> None:
        """Count the block under another component from now on (a saved temporary is an activation)."""
        pool = self.pool
        components = pool.components
        size = self.size
        repeat = self.repeat
        if repeat is not None:
            size *= repeat.factor
        running = pool.repeat
        given = running is not None and repeat is not running and running.input != id(self)
        if given:
            # Of the blocks that are counted like this one, none finds it as this one did.
            pool.cut(pool.mark(), ((self.component, -size), (component, size)))
        components[self.component] -= size
        components[component] += size
        self.component = component
        if given:
            pool.restart()


class Decomposed(Storage):
    """A temporary that CUDA's one kernel does not have."""

    __slots__ = ()

    def __init__(self, pool: Pool, size: int) -> None:
        if pool.second is not None:
            pool.second.spoilt = True
        pool.enter_trace()
        self.begin(pool, size, DECOMPOSED)

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
        self.cuts: list[Cut] = []
        """The peaks of the run under way between its marks."""
        self.marks = 0
        self.second: Second | None = None
        """The count of a recomputation that goes along."""

    def begin(self) -> None:
        """Start a phase: the peak restarts at what is live."""
        self.restart()

    def restart(self) -> None:
        """Let the peaks begin anew at what is live."""
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
        if self.second is not None:
            self.second.spoilt = True
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
        if self.second is not None:
            self.second.touch(size, component)
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

    def mark(self) -> int:
        """A new mark, for something that a block lets go."""
        self.marks += 1
        return self.marks

    def cut(self, mark: int, shift: Shift = ()) -> bool:
        """Note the peaks of the run under way until something is let go that outlives it in some of the equal blocks,
        or is labelled anew that comes so to the next.

        Whether one is under way; the caller lets go and calls :meth:`restart`.
        """
        if self.repeat is None:
            return False
        self.cuts.append(((self.peak, self.peak_components), self.traced, mark, shift))
        return True

    def leave(self, outside: Outside) -> Change:
        """End the run and say what it changed; the peaks are those outside, for the caller to :meth:`rise` from."""
        before, peak, traced = outside
        change = Change(before, self.cuts, (self.peak, self.peak_components), self.traced, self.components)
        self.cuts.clear()
        self.peak, self.peak_components = peak
        self.traced = traced
        self.repeat = None
        return change

    def rise(self, base: list[int], live: int, change: Change, shifts: Shifts | None = None) -> None:
        """Let the peaks be what a run that changes ``base``, ``live`` bytes, comes to."""
        if not shifts:
            self._reach(base, live, change.highest, change.traced)
            return
        base = base[:]
        for stretch in change.stretches:
            self._reach(base, live, stretch, stretch)
            for component, size in shifts.get(stretch.mark, ()):
                base[component] += size
                live += size

    def _reach(self, base: list[int], live: int, highest: Stretch, traced: Stretch) -> None:
        if live + highest.rise > self.peak:
            self.peak = live + highest.rise
            self.peak_components = [now + more for now, more in zip(base, highest.highest)]
        if traced.traced and live + traced.traced_rise > self.traced[0]:
            self.traced = live + traced.traced_rise, [now + more for now, more in zip(base, traced.traced)]

    def again(self, change: Change, swap: Callable[[], None] | None = None, shifts: Shifts | None = None) -> None:
        """Count an equal block, which is not run, from what the one that ran has changed.

        ``swap`` puts what that block hands over in the place of what it was given, where the two differ in size.
        """
        components, live = self.components, self.live
        self.rise(components, live, change, shifts)
        after, live = [now + more for now, more in zip(components, change.end)], live + change.growth
        for component, size in [pair for shift in shifts.values() for pair in shift] if shifts else ():
            after[component] += size
            live += size
        if swap is not None:
            peak = self.peak, self.peak_components
            swap()
            self.peak, self.peak_components = peak
        self.components, self.live = after, live

    def many(self, change: Change, times: int) -> None:
        """Count so many equal blocks one after the other: where each adds something the last comes highest, else the
        first.
        """
        if change.growth <= 0:
            self.again(change)
        self.components = [now + (times - 1) * more for now, more in zip(self.components, change.end)]
        self.live += (times - 1) * change.growth
        if change.growth > 0:
            self.again(change)

    def silently(self, size: int, component: int) -> None:
        """Count ``size`` bytes that are there in the stead of others: no peak comes of it."""
        self.live += size
        self.components[component] += size

    def hand_over(self, storage: Storage) -> None:
        """Let a block's output (or outgoing gradient) count once: the next equal block makes its own."""
        storage.repeat = None
