"""What the caching allocator reserves when micro batches differ in length: steps of such lengths, replayed.

A block made for a shorter sequence cannot serve a longer one, so lengths that vary leave free blocks of many sizes.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Sequence

from memlint.estimate.adapters import keeps_input
from memlint.estimate.allocator import CachingAllocator, Event
from memlint.estimate.engine.pool import Storage, rounded
from memlint.estimate.engine.tape import Tape
from memlint.hardware.overheads import cublas_workspace_bytes
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.records import replace
from memlint.units import DTYPE_BYTES

DRAWS = 64
"""Micro batches replayed; the reserved bytes rise with every longest one so far, ever more slowly."""
SAMPLE = 4096
"""Micro batches drawn to find the quantiles of their lengths."""
ORDERS = 5
"""Random orders of the same lengths: the middle and highest of their reserved bytes count."""
DEPTH = 8
"""Layers really run for a checkpointed model: the others add one saved input each, where it is not on the host,
and reuse the same blocks."""


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
) -> tuple[int, int]:
    """Middle and highest peak of reserved bytes over some orders of micro batches of varying length.

    ``capacity`` bounds what can be reserved: when it is reached, free segments are given back, as on the device.
    """
    static, states, scratch, events_of = _steps(job, capability)
    lengths = list(dict.fromkeys(quantile_lengths(job)))
    found = []
    for order in range(ORDERS if len(lengths) > 1 else 1):
        Random(order).shuffle(lengths)
        allocator = CachingAllocator(capacity)
        try:
            for size in static:
                allocator.take(size)
            for number, length in enumerate(_growing(lengths) if len(lengths) > 1 else 3 * lengths):
                allocator.replay(events_of(length))
                for block in [allocator.take(size) for size in scratch]:
                    allocator.give(block)
                if not number:
                    for size in states:
                        allocator.take(size)
        except MemoryError:
            pass
        found.append(allocator.peak_reserved)
    found.sort()
    return found[len(found) // 2], found[-1]


def _growing(lengths: Sequence[int]) -> list[int]:
    """The micro batches of an order after which more may be reserved: the first two, and every longest one so far.

    A step gives back all that it took, and free neighbours join, so the next one finds whole segments: what is shorter
    than one of those before finds its blocks there. Where it does not quite (best fit splits another block first), the
    reserved bytes are at most some tenths of a percent higher, as replaying all of them shows (tests).
    """
    return [length for at, length in enumerate(lengths) if at < 2 or length > max(lengths[:at])]


def _steps(
    job: TrainingJob, capability: tuple[int, int] | None
) -> tuple[list[int], list[int], list[int], Callable[[int], list[Event]]]:
    """Blocks that stay, blocks of optimizer states and of the step's lists, and what gives a length's allocations and
    frees."""
    from memlint.estimate.simulate import run_step

    architecture, training = job.architecture, job.training
    assert architecture is not None
    layers = architecture.num_hidden_layers
    checkpointing = training.checkpointing
    alike = checkpointing.mode in ("full", "offload") and (checkpointing.reentrant or not keeps_input(job))
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
    on_host = checkpointing.mode == "offload" or checkpointing.offload
    width = architecture.hidden_size * DTYPE_BYTES[training.precision.weights]
    known: dict[int, list[Event]] = {}

    def events_of(length: int) -> list[Event]:
        if length not in known:
            tape = _Watched()
            run_step(replace_fields(shallow, {"training.sequence_length": length}), capability, full=True, tape=tape)
            if lists:
                del tape.events[-2:]  # the optimizer's lists, which come tensor by tensor from the whole model
            saved = rounded(training.micro_batch_size * length * width)
            inputs = [] if on_host else [(-2 - index, saved) for index in range(layers - depth)]
            known[length] = inputs + tape.events
        return known[length]

    return static, states, lists * one_list, events_of


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
