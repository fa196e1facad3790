"""The CUDA caching allocator, replayed: what it reserves when micro batches differ in length.

Sources: c10/cuda/CUDACachingAllocator.cpp (torch 2.13; the rules are those of torch 1.x and 2.x): requests up to 1 MiB
come from 2 MiB segments, up to 10 MiB from 20 MiB segments, larger ones from segments of their own, a multiple of
2 MiB; the smallest free block that is large enough is taken, and split when more than 1 MiB (small pool: 512 bytes)
is left over; freed blocks join free neighbours of their segment; segments are given back only when the device is full.
A block made for a shorter sequence cannot serve a longer one, so lengths that vary leave free blocks of many sizes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from random import Random
from typing import Any, Sequence

from memlint.estimate.adapters import keeps_input
from memlint.estimate.engine.pool import Storage, rounded
from memlint.estimate.engine.tape import Tape
from memlint.hardware.overheads import cublas_workspace_bytes
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.records import replace
from memlint.units import DTYPE_BYTES, MIB

SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_REQUEST = 10 * MIB
DRAWS = 64
"""Micro batches replayed; the reserved bytes rise with every longest one so far, ever more slowly."""
SAMPLE = 4096
"""Micro batches drawn to find the quantiles of their lengths."""
ORDERS = 5
"""Random orders of the same lengths: the least, middle and highest of their reserved bytes are the interval."""
DEPTH = 8
"""Layers really run for a checkpointed model: the others add one saved input each and reuse the same blocks."""

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


class _Watched(Tape):
    """A tape that notes every allocation and free in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.pool.watch = self.note

    def note(self, storage: Storage | None, size: int) -> None:
        """Called by the pool: a storage begins (its size) or ends (0); None for scratch inside a kernel."""
        if storage is not None:
            self.events.append((id(storage), size))
        elif size:
            self.events += [(-1, size), (-1, 0)]


def quantile_lengths(job: TrainingJob, count: int = DRAWS) -> list[int]:
    """Lengths of micro batches (the longest row of each), evenly spread over the job's length statistics, ascending.

    Samples follow the gamma distribution of the stated mean and deviation; those above ``sequence_length`` are left out
    or cut.
    """
    training = job.training
    if not training.length_deviation:
        return [training.sequence_length]
    mean = float(training.length_mean or training.sequence_length)
    deviation = float(training.length_deviation)
    shape, cap = (mean / deviation) ** 2, training.sequence_length
    random = Random(0)
    batches = []
    for _ in range(SAMPLE):
        rows: list[int] = []
        while len(rows) < training.micro_batch_size:
            length = max(16, int(random.gammavariate(shape, mean / shape)))
            if length <= cap or not training.drops_long or random.random() < 1e-4:
                rows.append(min(length, cap))
        batches.append(max(rows))
    batches.sort()
    return [batches[(2 * index + 1) * SAMPLE // (2 * count)] for index in range(count)]


def replayed_reserved(
    job: TrainingJob, capability: tuple[int, int] | None = None, capacity: int | None = None
) -> tuple[int, int, int]:
    """Lowest, middle and highest peak of reserved bytes over some orders of micro batches of varying length.

    ``capacity`` bounds what can be reserved: when it is reached, free segments are given back, as on the device.
    """
    static, states, scratch, steps = _steps(job, capability)
    lengths = list(steps)
    found = []
    for order in range(ORDERS if len(lengths) > 1 else 1):
        Random(order).shuffle(lengths)
        allocator = CachingAllocator(capacity)
        try:
            for size in static:
                allocator.take(size)
            for number, length in enumerate(lengths if len(lengths) > 1 else 3 * lengths):
                allocator.replay(steps[length])
                for block in [allocator.take(size) for size in scratch]:
                    allocator.give(block)
                if not number:
                    for size in states:
                        allocator.take(size)
        except MemoryError:
            pass
        found.append(allocator.peak_reserved)
    found.sort()
    return found[0], found[len(found) // 2], found[-1]


def _steps(
    job: TrainingJob, capability: tuple[int, int] | None
) -> tuple[list[int], list[int], list[int], dict[int, list[Event]]]:
    """Blocks that stay, blocks of optimizer states and of the step's lists, and each length's allocations and frees."""
    from memlint.estimate.simulate import run_step

    architecture, training = job.architecture, job.training
    assert architecture is not None
    layers = architecture.num_hidden_layers
    alike = training.checkpointing.mode == "full" and (training.checkpointing.reentrant or not keeps_input(job))
    # A cut stack may lack the layer whose keys and values the later ones reuse (Gemma 3n and 4).
    alike = alike and not architecture.get("num_kv_shared_layers", 0)
    depth = _depth(architecture) if alike else layers
    whole = run_step(job, capability)
    static: list[int] = []
    one_list: list[int] = []
    trained = 0
    for record in whole.build.records:
        if record.host:
            continue
        for _ in range(record.count):
            static += [rounded(size) for size in record.blocks]
            if record.trainable:
                trained += 1
                one_list.append(rounded(record.numel * DTYPE_BYTES[record.dtype]))
                if not training.optimizer_in_backward:
                    static.append(rounded(record.numel * DTYPE_BYTES[record.grad_dtype]))
    workspace = 2 * rounded(cublas_workspace_bytes(capability))
    others = whole.timeline[0].components["communication"] + whole.build.buffer_bytes + workspace
    static.append(rounded(others))
    held = whole.static["optimizer_states"] - whole.paged
    states = [rounded(held // (2 * trained))] * (2 * trained) if trained and held else []
    step = whole.timeline[-1]
    lists = round((step.peak_bytes - step.end_bytes) / max(1, sum(one_list)))
    shallow = replace_fields(job, {"training.gradient_accumulation_steps": 2})
    if depth < layers:
        shallow = replace(shallow, architecture=_first_layers(architecture, depth))
    width = architecture.hidden_size * DTYPE_BYTES[training.precision.weights]
    steps: dict[int, list[Event]] = {}
    for length in quantile_lengths(job):
        if length in steps:
            continue
        tape = _Watched()
        run_step(replace_fields(shallow, {"training.sequence_length": length}), capability, full=True, tape=tape)
        if lists:
            del tape.events[-2:]  # the optimizer's lists, which come tensor by tensor from the whole model
        saved = rounded(training.micro_batch_size * length * width)
        steps[length] = [(-2 - index, saved) for index in range(layers - depth)] + tape.events
    return static, states, lists * one_list, steps


def _per_layer(architecture: Architecture) -> dict[str, Sequence[Any]]:
    """Keys of a config that say something of each layer (``layer_types``), with their lists."""
    layers = architecture.num_hidden_layers
    config = architecture.config
    return {key: v for key, v in config.items() if isinstance(v, (list, tuple)) and len(v) == layers}


def _depth(architecture: Architecture) -> int:
    """Layers to run: DEPTH, or as many as hold a layer of every kind."""
    depth = min(architecture.num_hidden_layers, DEPTH)
    for kinds in _per_layer(architecture).values():
        depth = max([depth, *[kinds.index(kind) + 1 for kind in kinds]])
    return depth


def _first_layers(architecture: Architecture, depth: int) -> Architecture:
    """The model of an architecture's first ``depth`` layers."""
    cut = {key: kinds[:depth] for key, kinds in _per_layer(architecture).items()}
    config = {**architecture.config, **cut, "num_hidden_layers": depth}
    return replace(architecture, num_hidden_layers=depth, config=config)
