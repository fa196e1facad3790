"""What DeepSpeed's ZeRO holds on one GPU beside weights, states and activations, and when.

Source: DeepSpeed 0.19.8 runtime/zero, functions and files of which the comments name. Keys without an effect on the
GPU's memory there: ``allgather_bucket_size`` (runtime/utils.py all_gather_dp_groups gathers into the flat parameters
themselves, in one call or in views of them), ``allgather_partitions`` (engine.py zero_allgather_partitions, which
nothing calls), and ``overlap_comm`` in stage 3 (stage3.py: another stream, no second buffer). ``round_robin_gradients``
only gives the ranks other parameters (stage_1_and_2.py _round_robin_reorder), which is not followed.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS, PARAMETERS, TEMPORARIES, Pool, rounded
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.records import Slot
from memlint.estimate.units import Unit
from memlint.estimate.zero_gather import Item, Limits, gathered_bytes
from memlint.estimate.zero_partition import Parts, in_order, largest_sub_group
from memlint.estimate.zero_reduce import Reduction, Scatter
from memlint.job import Parallelism, TrainingJob
from memlint.units import DTYPE_BYTES

BUCKET_ELEMENTS = 500_000_000
"""reduce_bucket_size: runtime/zero/config.py, DeepSpeed 0.19.8."""
PERSISTENT_ELEMENTS = 100_000
"""stage3_param_persistence_threshold, same file."""
SUB_GROUP_ELEMENTS = 1_000_000_000
"""sub_group_size, same file."""
NORM_BYTES = 8
"""Norms of gradients are taken in fp64: runtime/zero/utils.py get_norm_dtype."""
NORM_PART = 250_000_000
"""stage3.py _constant_buffered_norm2: at most so many elements of a partition at a time."""


class Zero:
    """The buffers of DeepSpeedZeroOptimizer (stages 1 and 2) or DeepSpeedZeroOptimizer_Stage3 through one step."""

    def __init__(self, job: TrainingJob, stage: int, world: int, reduce: str) -> None:
        """``reduce``: dtype in which gradients are reduced; ``world``: ranks that share the states."""
        parallelism = job.parallelism
        hidden = job.architecture.hidden_size if job.architecture is not None else 0
        self.stage = stage
        self.world = world
        self.reduce = reduce
        self.offloads = parallelism.offload in ("optimizer", "all")
        self.capacity = _elements(parallelism.reduce_bucket_elements, hidden**2, BUCKET_ELEMENTS)
        self.threshold = _elements(parallelism.persistence_threshold_elements, 10 * hidden, PERSISTENT_ELEMENTS)
        self.sub_group = _elements(parallelism.sub_group_elements, 0, SUB_GROUP_ELEMENTS)
        self.limits = _limits(parallelism, hidden)
        # overlap_comm unset means true for stage 3 only (config.py overlap_comm_valid), where it makes no buffer;
        # stage_1_and_2.py: contiguous_gradients or cpu_offload.
        contiguous = parallelism.contiguous_gradients is not False or (stage < 3 and self.offloads)
        self.buffers = (2 if parallelism.overlap_comm and stage < 3 else 1) if contiguous else 0
        self.recompute = job.training.checkpointing.mode != "none"
        self.tied = bool(job.architecture is not None and job.architecture.tie_word_embeddings)
        # A rank alone gathers nothing: NoGatherHandle takes the partition itself, unless that rests on the host.
        self.gathers = stage == 3 and (world > 1 or parallelism.offload in ("parameters", "all"))
        self.scatter = Scatter(world, self.capacity, buffered=contiguous)
        self.reduction: Reduction | None = None
        if stage < 3:
            self.reduction = Reduction(stage, world, self.capacity, reduce)
            self.reduction.buffers = self.buffers
            self.reduction.overlaps = bool(parallelism.overlap_comm)
            self.reduction.keeps_nothing = self.offloads
            self.reduction.accumulates = job.training.gradient_accumulation_steps > 1
        self.blocks: list[tuple[Unit | None, list[Item]]] = []
        """Parameters in the order in which the model is built; None: outside all layers."""
        self.trained: list[tuple[int, list[int]]] = []
        """Elements of what trains in that order, and how often neighbours repeat."""
        self.gather_sizes = (0, 0, 0)
        self.entered = 0  # stacks of layers whose backward is not done
        self.trainable = 0
        self.largest = 0
        self.persistent = 0
        """Bytes of the parameters that stay whole on every rank, until a step (_partition_all_parameters)."""
        self.part_bytes = 0
        """Of the gradients that one rank keeps."""
        self.size = 0  # of a gradient's element
        self.sub_group_part = 0
        self.buffer: Tensor | None = None
        self.shared: Leaf | None = None
        """The embedding that is the head as well: its gradient is complete when both have given theirs."""
        self.partial: tuple[Tensor, Unit | None] | None = None  # what one use has given so far
        self.summed = False

    def persists(self, elements: int) -> bool:
        """Whether a parameter stays whole on every rank (partition_parameters.py, ds_persist)."""
        return self.stage == 3 and elements <= self.threshold

    @property
    def whole(self) -> bool:
        """Whether every layer must be run."""
        return self.scatter.whole if self.reduction is None else self.reduction.whole

    def adopt(self, unit: Unit | None, elements: int, size: int, leaf: Leaf | None = None) -> None:
        """Note a parameter of ``size`` bytes under construction; ``unit``: its layer; ``leaf``: takes its gradient."""
        if self.gathers and not self.persists(elements):
            if unit is None or not self.blocks or self.blocks[-1][0] is not unit:
                self.blocks.append((unit, []))
            self.blocks[-1][1].append((min(elements, size), size))
        elif self.gathers:
            self.persistent += rounded(size) * (unit.count if unit is not None else 1)
        if leaf is None:
            return
        count = unit.count if unit is not None else 1
        if not self.trained or self.trained[-1][0] != count:
            self.trained.append((count, []))
        place = sum([times * sum(period) for times, period in self.trained[:-1]]) + sum(self.trained[-1][1])
        self.trained[-1][1].append(elements)
        if leaf.sink is not None:
            return
        leaf.sink = _Sink(self, unit).take
        if self.tied and unit is None and self.shared is None:
            self.shared = leaf
        if self.reduction is not None:
            self.reduction.watch(leaf, unit, place, elements)
        else:
            self.scatter.watch(unit, elements)

    def settle(self, slots: Sequence[Slot]) -> None:
        """The model is built: note what is trained and how much is gathered at a time."""
        sizes = in_order(self.trained, slots)
        self.trainable = sum(sizes)
        self.largest = max([0, *sizes])
        self.size = DTYPE_BYTES[slots[0].grad_dtype] if slots else 0
        self.scatter.size, self.scatter.total = DTYPE_BYTES[self.reduce], self.trainable
        if self.reduction is not None:
            parts = self.reduction.parts = Parts(sizes, self.world)
            self.reduction.size = self.size
            self.part_bytes = parts.largest * self.size
        else:
            self.part_bytes = self.size * sum([-(-elements // self.world) for elements in sizes])
            self.sub_group_part = largest_sub_group(sizes, self.sub_group, self.world)
        if self.gathers:
            blocks = tuple([(tuple(items), unit.count if unit else 1, unit is not None) for unit, items in self.blocks])
            self.gather_sizes = gathered_bytes(blocks, self.limits, recompute=self.recompute, tied=self.tied)

    def static_bytes(self) -> int:
        """What lives through the whole step.

        Stage 3 makes its bucket once (_setup_for_real_optimizer); below it, with the optimizer on the host, there is
        room for the largest gradient (temp_grad_buffer_for_gpu_offload).
        """
        if not self.trainable:
            return 0
        elements = self.buffers * self.capacity if self.stage == 3 else self.largest * self.offloads
        return rounded(elements * DTYPE_BYTES[self.reduce])

    def begin(self, f: Tape) -> None:
        """The forward begins."""
        self._gather(f, self.gather_sizes[0])
        if self.reduction is not None:
            self.reduction.begin(f)

    def _gather(self, f: Tape, size: int) -> None:
        self.buffer = None
        if size:
            self.buffer = f.new((size,), "uint8", COMMUNICATION)

    def before_layers(self, f: Tape, x: Tensor) -> Tensor:
        """Hook what the layers are given, to know when the backward is done with them."""
        if (self.world == 1 and not self.gathers) or not f.needs(x):
            return x
        self.entered += 1
        return f.record(Tensor(x.shape, x.dtype, x.storage), _left, (x,), (), self)

    def left(self, f: Tape) -> None:
        """The backward is done with these layers."""
        self.entered -= 1
        if self.entered:
            return
        if self.reduction is not None:
            self.reduction.left(f)
        elif self.gather_sizes[2] != self.gather_sizes[1]:
            self._gather(f, self.gather_sizes[2])

    def after_layers(self, f: Tape, x: Tensor) -> Tensor:
        """Hook what the layers hand to the head, to know when the backward comes back from there."""
        through = Tensor(x.shape, x.dtype, x.storage)
        return f.record(through, _turned, (x,), (), self) if f.needs(x) else x

    def turned(self, f: Tape) -> None:
        """The head's backward is done."""
        if self.reduction is not None:
            self.reduction.turned(f)
        if self.gather_sizes[1] < self.gather_sizes[0]:
            self._gather(f, self.gather_sizes[1])

    def take(self, f: Tape, leaf: Leaf, grad: Tensor, unit: Unit | None) -> None:
        """A use of a parameter has given its gradient."""
        if self.offloads:
            # Gradients are measured before they leave (set_norm_for_param_grad_in_gpu).
            elements, most = prod(leaf.shape), -(-self.trainable // self.world)
            part = min(elements, most) if self.stage < 3 else min(-(-elements // self.world), NORM_PART)
            f.pool.touch(NORM_BYTES * part, COMMUNICATION)
        if leaf is self.shared:
            self._add_up(f, grad, unit)
        elif self.reduction is not None:
            self.reduction.take(f, leaf, grad, unit)
        else:
            self.scatter.take(f, leaf, grad, unit)

    def _add_up(self, f: Tape, grad: Tensor, unit: Unit | None) -> None:
        """input_buffer.cpp sums up all uses of a parameter; the head's, a transposed view, is not added to in place."""
        if self.partial is None:
            if grad.storage is not None:
                grad.storage.relabel(GRADIENTS)
            self.partial = grad, unit
        elif not self.summed:
            self.partial = f.new(grad.shape, grad.dtype, GRADIENTS), unit
            self.summed = True

    def finish(self, f: Tape, leaves: Sequence[Leaf], resting: int) -> None:
        """The epilogue of the backward; ``resting``: bytes of gradients that were there before it."""
        if self.partial is not None and self.shared is not None:
            (grad, unit), leaf = self.partial, self.shared
            self.partial = self.shared = None
            self.take(f, leaf, grad, unit)
            del grad
        if self.reduction is not None:
            self.reduction.finish(f, leaves, resting)
        elif self.scatter.members:
            self.scatter.reduce(f)
        self.buffer = None

    def norm(self, pool: Pool) -> None:
        """get_grad_norm_direct, before every step: this rank's largest gradient in fp64."""
        pool.add(-self.persistent, PARAMETERS)
        if self.reduction is not None and not self.offloads:
            pool.touch(self.reduction.parts.norm_bytes(self.size, NORM_BYTES) - self.part_bytes, TEMPORARIES)
        elif self.trainable and not self.offloads:
            pool.touch(NORM_BYTES * -(-self.largest // self.world), TEMPORARIES)

    def updated(self, slots: Sequence[Slot]) -> list[Slot]:
        """What one call of the optimizer updates: this rank's partition, or in stage 3 one sub group of it."""
        if self.stage < 3:
            return list(slots)
        return [Slot((min(self.sub_group_part, s.numel),), s.dtype, s.grad_dtype, 1, matrix=False) for s in slots]

    def step(self, pool: Pool, slots: Sequence[Slot], temporary: int, *, master: bool) -> None:
        """step(): gradients flattened, then in the masters' dtype, then the optimizer with its ``temporary`` bytes.

        stage_1_and_2.py single_grad_partition, which then frees the partition; stage3.py
        _prepare_fp32_grad_for_sub_group, which keeps it.
        """
        if self.offloads or not self.trainable:
            return
        elements = sum([slot.numel for slot in self.updated(slots)])
        flat = rounded(elements * self.size)
        size = DTYPE_BYTES["fp32"] if master else self.size
        converted = rounded(elements * size) if size != self.size else 0
        pool.touch(flat + converted, TEMPORARIES)
        freed = rounded(self.part_bytes) if self.stage < 3 else 0
        pool.add(-freed, GRADIENTS)
        pool.touch((converted or flat) + temporary, TEMPORARIES)
        pool.add(freed, GRADIENTS)


def _left(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    node.meta.left(f)
    return (grad,)


class _Sink:
    """Takes a parameter's gradient; knows its layer."""

    __slots__ = ("unit", "zero")

    def __init__(self, zero: Zero, unit: Unit | None) -> None:
        self.zero = zero
        self.unit = unit

    def take(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        self.zero.take(f, leaf, grad, self.unit)


def _turned(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    node.meta.turned(f)
    return (grad,)


def _elements(stated: int | None, automatic: int, default: int) -> int:
    """A size in elements; ``auto`` (-1) is what the Hugging Face integration makes of the hidden size.

    transformers 5.24 integrations/deepspeed.py trainer_config_finalize.
    """
    if stated == -1 and automatic:
        return automatic
    return default if stated is None or stated < 0 else stated


def _limits(parallelism: Parallelism, hidden: int) -> Limits:
    default = Limits()
    return Limits(
        _elements(parallelism.prefetch_bucket_elements, int(0.9 * hidden * hidden), default.prefetch),
        _elements(parallelism.max_live_elements, 0, default.live),
        _elements(parallelism.max_reuse_elements, 0, default.reuse),
    )
