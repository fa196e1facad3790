"""The CUDA caching allocator: which blocks and segments serve a run of allocations and frees.

Sources: c10/cuda/CUDACachingAllocator.cpp (torch 2.13; the rules are those of torch 1.x and 2.x): requests up to 1 MiB
come from 2 MiB segments, up to 10 MiB from 20 MiB segments, larger ones from segments of their own, a multiple of
2 MiB; the smallest free block that is large enough is taken, and split when more than 1 MiB (small pool: 512 bytes)
is left over; freed blocks join free neighbours of their segment; segments are given back only when the device is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Sequence

from memlint.units import MIB

SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_REQUEST = 10 * MIB
Event = tuple[int, int]
"""(key, bytes): an allocation; 0 bytes: the end of the storage with that key."""


class _Block:
    __slots__ = ("address", "after", "before", "free", "size", "small")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address, self.size, self.small = address, size, small
        self.free = False
        self.before: _Block | None = None
        self.after: _Block | None = None


class CachingAllocator:
    """One device's allocator, a single stream; ``capacity`` bytes, None: no limit."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = 0
        self.peak_reserved = 0
        self.top = 0
        self.blocks: dict[int, _Block] = {}
        self.idle: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        """Free blocks of the large and the small pool as (size, address), in order."""

    def take(self, size: int) -> _Block:
        """Allocate ``size`` bytes (already rounded to 512). Raises MemoryError when the device is full."""
        small = size <= SMALL
        idle = self.idle[small]
        at = bisect_left(idle, (size, -1))
        block = self.blocks[idle.pop(at)[1]] if at < len(idle) else self._segment(size, small)
        left = block.size - size
        if left >= 512 if small else left > SMALL:
            rest = _Block(block.address + size, left, small)
            rest.free = True
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            block.size = size
            self.blocks[rest.address] = rest
            insort(idle, (left, rest.address))
        block.free = False
        return block

    def _segment(self, size: int, small: bool) -> _Block:
        if small:
            wanted = SMALL_SEGMENT
        elif size < LARGE_REQUEST:
            wanted = LARGE_SEGMENT
        else:
            wanted = -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
        if self.capacity is not None and self.reserved + wanted > self.capacity:
            self.release()
            if self.reserved + wanted > self.capacity:
                raise MemoryError
        block = _Block(self.top, wanted, small)
        self.top += wanted + 1  # never next to another segment's blocks
        self.blocks[block.address] = block
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def give(self, block: _Block) -> None:
        """Free a block and join it with free neighbours."""
        idle = self.idle[block.small]
        after = block.after
        if after is not None and after.free:
            self._forget(after, idle)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        before = block.before
        if before is not None and before.free:
            del self.blocks[block.address]
            idle.pop(bisect_left(idle, (before.size, before.address)))
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            block = before
        block.free = True
        insort(idle, (block.size, block.address))

    def _forget(self, block: _Block, idle: list[tuple[int, int]]) -> None:
        idle.pop(bisect_left(idle, (block.size, block.address)))
        del self.blocks[block.address]

    def release(self) -> None:
        """Give whole free segments back (empty_cache), as the allocator does before it reports that memory is out."""
        for small, idle in self.idle.items():
            kept = []
            for size, address in idle:
                block = self.blocks[address]
                if block.before is None and block.after is None:
                    self.reserved -= size
                    del self.blocks[address]
                else:
                    kept.append((size, address))
            self.idle[small] = kept

    def replay(self, events: Sequence[Event]) -> None:
        """Run one step's allocations and frees; what it leaves is freed."""
        live: dict[int, _Block] = {}
        for key, size in events:
            if size:
                live[key] = self.take(size)
            elif key in live:
                self.give(live.pop(key))
        for block in live.values():
            self.give(block)
