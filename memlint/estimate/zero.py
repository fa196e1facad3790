"""What DeepSpeed's ZeRO holds on one GPU beside weights, states and activations, and when.

Source: DeepSpeed 0.19.8 runtime/zero, functions and files of which the comments name. Keys without an effect on the
GPU's memory there: ``allgather_bucket_size`` (runtime/utils.py all_gather_dp_groups gathers into the flat parameters
themselves, in one call or in views of them), ``allgather_partitions`` (engine.py zero_allgather_partitions, which
nothing calls), and ``overlap_comm`` in stage 3 (stage3.py: another stream, no second buffer). ``round_robin_gradients``
only gives the ranks other parameters (stage_1_and_2.py _round_robin_reorder), which is not followed. How a gradient's
dtype changes on its way: :mod:`memlint.estimate.zero_settings`.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS, PARAMETERS, TEMPORARIES, Pool, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.records import Slot
from memlint.estimate.units import Unit
from memlint.estimate.zero_gather import Item, gathered_bytes
from memlint.estimate.zero_hooks import Sink, left, turned
from memlint.estimate.zero_partition import Parts, in_order, largest_sub_group
from memlint.estimate.zero_reduce import Reduction
from memlint.estimate.zero_scatter import Scatter
from memlint.estimate.zero_settings import (
    BUCKET_ELEMENTS,
    PERSISTENT_ELEMENTS,
    SUB_GROUP_ELEMENTS,
    elements_of,
    forms_of,
    limits_of,
)
from memlint.estimate.zero_whole import Whole
from memlint.job import TrainingJob
from memlint.units import DTYPE_BYTES

NORM_BYTES = 8
"""Norms of gradients are taken in fp64: runtime/zero/utils.py get_norm_dtype."""
NORM_PART = 250_000_000
"""stage3.py _constant_buffered_norm2: at most so many elements of a partition at a time."""


class Zero:
    """The buffers of DeepSpeedZeroOptimizer (stages 1 and 2) or DeepSpeedZeroOptimizer_Stage3 through one step.

    Stage 0 is a run without ZeRO, whose gradients DeepSpeed averages and steps all the same.
    """

    def __init__(self, job: TrainingJob, stage: int, world: int, weights: str) -> None:
        """``weights``: dtype of what trains; ``world``: ranks that share the states."""
        parallelism = job.parallelism
        hidden = job.architecture.hidden_size if job.architecture is not None else 0
        self.stage = stage
        self.world = world
        self.forms = forms = forms_of(job, stage, weights)
        self.offloads = parallelism.offload in ("optimizer", "all")
        self.capacity = elements_of(parallelism.reduce_bucket_elements, hidden**2, BUCKET_ELEMENTS)
        self.threshold = elements_of(parallelism.persistence_threshold_elements, 10 * hidden, PERSISTENT_ELEMENTS)
        self.sub_group = elements_of(parallelism.sub_group_elements, 0, SUB_GROUP_ELEMENTS)
        self.limits = limits_of(parallelism, hidden)
        # overlap_comm unset means true for stage 3 only (config.py overlap_comm_valid), where it makes no buffer;
        # stage_1_and_2.py: contiguous_gradients or cpu_offload.
        contiguous = parallelism.contiguous_gradients is not False or (stage < 3 and self.offloads)
        self.buffers = (2 if parallelism.overlap_comm and stage < 3 else 1) if contiguous else 0
        self.recompute = job.training.checkpointing.mode != "none"
        self.tied = bool(job.architecture is not None and job.architecture.tie_word_embeddings)
        # A rank alone gathers nothing: NoGatherHandle takes the partition itself, unless that rests on the host.
        self.gathers = stage == 3 and (world > 1 or parallelism.offload in ("parameters", "all"))
        self.scatter = Scatter(world, self.capacity, forms, DTYPE_BYTES[weights], buffered=contiguous)
        self.whole_gradients: Whole | None = None
        self.reduction: Reduction | None = None
        if forms.whole:
            self.whole_gradients = Whole(stage, forms, at_once=parallelism.immediate_gradients)
        elif stage < 3:
            self.reduction = Reduction(stage, world, self.capacity, forms)
            self.reduction.buffers = self.buffers
            self.reduction.overlaps = bool(parallelism.overlap_comm)
            self.reduction.keeps_nothing = self.offloads and not forms.compact
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
        if leaf.sink is not None or (self.whole_gradients is not None and not self.whole_gradients.at_once):
            return
        leaf.sink = Sink(self, unit).take
        if self.tied and unit is None and self.shared is None:
            self.shared = leaf
        if self.reduction is not None:
            self.reduction.watch(leaf, unit, place, elements)
        elif self.whole_gradients is None:
            self.scatter.watch(unit, elements)

    def settle(self, slots: Sequence[Slot]) -> None:
        """The model is built: note what is trained and how much is gathered at a time."""
        sizes = in_order(self.trained, slots)
        self.trainable = sum(sizes)
        self.largest = max([0, *sizes])
        self.size = DTYPE_BYTES[slots[0].grad_dtype] if slots else 0
        self.scatter.total = self.trainable
        if self.whole_gradients is not None:
            self.whole_gradients.settle(sizes, slots)
        elif self.reduction is not None:
            self.reduction.settle(Parts(sizes, self.world), self.size)
            self.part_bytes = self.reduction.kept
        else:
            size = DTYPE_BYTES[self.forms.summed] if slots else 0
            self.part_bytes = size * sum([-(-elements // self.world) for elements in sizes])
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
        if self.whole_gradients is not None:
            return 0
        return rounded(elements * DTYPE_BYTES[self.forms.bucket])

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
        if (self.world == 1 and not self.gathers) or self.whole_gradients is not None or not f.needs(x):
            return x
        self.entered += 1
        return f.record(Tensor(x.shape, x.dtype, x.storage), left, (x,), (), self)

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
        return f.record(through, turned, (x,), (), self) if f.needs(x) and self.whole_gradients is None else x

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
        elif self.whole_gradients is not None:
            self.whole_gradients.take(f, leaf, grad)
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
        if self.whole_gradients is not None:
            self.whole_gradients.finish(f)
        elif self.reduction is not None:
            self.reduction.finish(f, leaves, resting)
        elif self.scatter.members:
            self.scatter.reduce(f)
        self.buffer = None

    def norm(self, pool: Pool) -> None:
        """get_grad_norm_direct, before every step: this rank's largest gradient in fp64."""
        pool.add(-self.persistent, PARAMETERS)
        if self.whole_gradients is not None:
            self.whole_gradients.norm(pool)
        elif self.reduction is not None and not self.offloads:
            pool.touch(self.reduction.norm_bytes(NORM_BYTES) - self.part_bytes, TEMPORARIES)
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
        if self.whole_gradients is not None:
            self.whole_gradients.step(pool, slots, temporary, master=master)
            return
        if self.offloads or not self.trainable:
            return
        elements = sum([slot.numel for slot in self.updated(slots)])
        had = DTYPE_BYTES[self.forms.summed]
        flat = rounded(elements * had)
        size = DTYPE_BYTES["fp32"] if master else had
        converted = rounded(elements * size) if size != had else 0
        freed = rounded(self.part_bytes) if self.stage < 3 else 0
        if self.reduction is not None and self.forms.compact:
            # _get_preflattened_grad_partition: it is flat, and in the masters' dtype.
            flat = converted = freed = 0
        pool.touch(flat + converted, TEMPORARIES)
        pool.add(-freed, GRADIENTS)
        pool.touch((converted or flat) + temporary, TEMPORARIES)
        pool.add(freed, GRADIENTS)
