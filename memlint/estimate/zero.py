"""What DeepSpeed's ZeRO holds on one GPU beside weights, states and activations, and when.

Source: DeepSpeed 0.19.8 runtime/zero, functions and files of which the comments name. Keys without an effect on the
GPU's memory there: ``allgather_bucket_size`` (runtime/utils.py all_gather_dp_groups gathers into the flat parameters
themselves, in one call or in views of them), ``allgather_partitions`` (engine.py zero_allgather_partitions, which
nothing calls), ``round_robin_gradients`` (stage_1_and_2.py _round_robin_reorder only reorders the partitions), and
``overlap_comm`` in stage 3 (stage3.py: another stream, no second buffer).
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS, TEMPORARIES, Pool, rounded
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.records import Slot
from memlint.estimate.units import Unit
from memlint.estimate.zero_gather import Item, Limits, gathered_bytes
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
        # overlap_comm unset means true for stage 3 only (config.py overlap_comm_valid), where it makes no buffer.
        # stage_1_and_2.py: contiguous_gradients or cpu_offload.
        contiguous = parallelism.contiguous_gradients is not False or (stage < 3 and self.offloads)
        self.buffers = (2 if parallelism.overlap_comm and stage < 3 else 1) if contiguous else 0
        self.recompute = job.training.checkpointing.mode != "none"
        self.tied = bool(job.architecture is not None and job.architecture.tie_word_embeddings)
        # A rank alone gathers nothing: NoGatherHandle takes the partition itself, unless that rests on the host.
        self.gathers = stage == 3 and (world > 1 or parallelism.offload in ("parameters", "all"))
        self.accumulates = job.training.gradient_accumulation_steps > 1
        self.blocks: list[tuple[Unit | None, list[Item]]] = []
        """Parameters in the order in which the model is built; None: outside all layers."""
        self.gather_sizes = (0, 0)
        self.trainable = 0
        self.largest = 0
        self.part_bytes = 0
        self.buffer: Tensor | None = None
        """Gathered parameters."""
        self.bucket: Tensor | None = None
        self.partition: Tensor | None = None
        self.held: Tensor | None = None
        """A gradient larger than the bucket, reduced as it is once the next one comes."""
        self.filled = 0

    def persists(self, elements: int) -> bool:
        """Whether a parameter stays whole on every rank (partition_parameters.py, ds_persist)."""
        return self.stage == 3 and elements <= self.threshold

    def adopt(self, unit: Unit | None, elements: int, size: int) -> None:
        """Note a parameter of ``size`` bytes under construction; ``unit`` is its layer."""
        if self.gathers and not self.persists(elements):
            if unit is None or not self.blocks or self.blocks[-1][0] is not unit:
                self.blocks.append((unit, []))
            self.blocks[-1][1].append((min(elements, size), size))

    def settle(self, slots: Sequence[Slot]) -> None:
        """The model is built: note what is trained and how much is gathered at a time."""
        self.trainable = sum([slot.numel * slot.count for slot in slots])
        self.largest = max([0, *[slot.numel for slot in slots]])
        self.part_bytes = sum([s.count * rounded(-(-s.numel // self.world) * DTYPE_BYTES[s.grad_dtype]) for s in slots])
        if self.gathers:
            blocks = tuple([(tuple(items), unit.count if unit else 1, unit is not None) for unit, items in self.blocks])
            self.gather_sizes = gathered_bytes(blocks, self.limits, recompute=self.recompute, tied=self.tied)

    @property
    def copied(self) -> int:
        """Elements that a full bucket copies to reduce them.

        Stages 1 and 2: allreduce_bucket flattens the slices of a bucket that belong to several ranks; stage 3:
        coalesced_collectives.py reduce_scatter_coalesced interleaves the ranks' shares.
        """
        return min(self.capacity, self.trainable) if self.world > 1 or self.stage == 3 else 0

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

    def _gather(self, f: Tape, size: int) -> None:
        self.buffer = None
        if size:
            self.buffer = f.new((size,), "uint8", COMMUNICATION)

    def after_layers(self, f: Tape, x: Tensor) -> Tensor:
        """Hook what the layers hand to the head, to know when the backward comes back from there."""
        through = Tensor(x.shape, x.dtype, x.storage)
        return f.record(through, _turned, (x,), (), self) if f.needs(x) else x

    def turned(self, f: Tape) -> None:
        """The head's backward is done."""
        self._reducing(f)
        if self.gather_sizes[1] < self.gather_sizes[0]:
            self._gather(f, self.gather_sizes[1])

    def _reducing(self, f: Tape) -> None:
        """stage_1_and_2.py setup_buckets, at the first gradient of each backward: whole buckets, whatever trains; and
        copy_grads_in_partition, at the first that is reduced.
        """
        if self.stage == 3 or self.bucket is not None or f.pool.repeat is not None:
            return
        # Without buffers the gradients that wait for a reduction take as much.
        elements = self.buffers * self.capacity or min(self.capacity, self.trainable)
        self.bucket = f.new((elements,), self.reduce, COMMUNICATION)
        if self.stage == 2 and not self.offloads:
            self.partition = f.new((self.part_bytes,), "uint8", GRADIENTS)

    def take(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        """reduce_independent_p_g_buckets_and_remove_grads: a gradient goes into the bucket."""
        self._reducing(f)
        elements = prod(leaf.shape)
        self._norm_on_the_way(f, elements)
        if elements > self.capacity:
            self.held = grad
            if grad.storage is not None:
                grad.storage.relabel(GRADIENTS)
                f.pool.hand_over(grad.storage)
            return
        self.held = None
        self.filled += elements
        # Among equal layers, of which one is run for all, a bucket smaller than the model may be full at any of them.
        if self.filled > self.capacity or (f.pool.repeat is not None and self.capacity < self.trainable):
            self.filled = elements
            f.pool.touch(self.copied * DTYPE_BYTES[self.reduce], COMMUNICATION)

    def _norm_on_the_way(self, f: Tape, elements: int) -> None:
        """set_norm_for_param_grad_in_gpu: with the optimizer on the host, gradients are measured before they leave."""
        if self.offloads:
            share = -(-elements // self.world)
            part = min(share, NORM_PART) if self.stage == 3 else min(elements, -(-self.trainable // self.world))
            f.pool.touch(NORM_BYTES * part, COMMUNICATION)

    def finish(self, f: Tape, leaves: Sequence[Leaf], resting: int) -> None:
        """The epilogue of the backward; ``resting``: bytes of gradients that were there before it.

        Buckets and gathered parameters go; stage 1 reduces here (reduce_gradients) and keeps its partition only.
        """
        if self.stage == 1:
            size = DTYPE_BYTES[self.reduce]
            part = 0 if self.offloads else self.part_bytes
            f.pool.touch(part + max(0, self.copied - min(self.capacity, self.trainable)) * size, COMMUNICATION)
            for leaf in leaves:
                leaf.grad = None
            f.pool.add(part - resting, GRADIENTS)
        else:
            self.held = None
            f.pool.touch(self.copied * DTYPE_BYTES[self.reduce], COMMUNICATION)
        if self.partition is not None and not self.accumulates:
            f.kept.append(self.partition)
        self.held = self.bucket = self.buffer = self.partition = None
        self.filled = 0

    def norm(self, pool: Pool) -> None:
        """get_grad_norm_direct, before every step: this rank's largest gradient in fp64."""
        if self.trainable and not self.offloads:
            share = -(-self.largest // self.world)
            part = -(-self.trainable // self.world)
            pool.touch(NORM_BYTES * (share if self.stage == 3 else min(self.largest, part)), TEMPORARIES)

    def updated(self, slots: Sequence[Slot]) -> list[Slot]:
        """What one call of the optimizer updates: this rank's partition, or in stage 3 one sub group of it, which
        closes with the parameter that fills it (_create_fp16_sub_groups).
        """
        if self.stage < 3:
            return list(slots)
        most = max(self.sub_group, -(-self.largest // self.world))
        return [Slot((min(most, s.numel),), s.dtype, s.grad_dtype, 1, matrix=False) for s in slots]

    def step(self, pool: Pool, slots: Sequence[Slot], temporary: int, *, master: bool) -> None:
        """step(): gradients flattened, then in the masters' dtype, then the optimizer with its ``temporary`` bytes.

        stage_1_and_2.py single_grad_partition, which then frees the partition; stage3.py
        _prepare_fp32_grad_for_sub_group, which keeps it.
        """
        if self.offloads or not self.trainable:
            return
        part = -(-self.trainable // self.world)
        elements = sum([slot.numel for slot in self.updated(slots)])
        flat = rounded(elements * (self.part_bytes // part))
        size = DTYPE_BYTES["fp32"] if master else self.part_bytes // part
        converted = rounded(elements * size) if size != self.part_bytes // part else 0
        pool.touch(flat + converted, TEMPORARIES)
        freed = self.part_bytes if self.stage < 3 else 0
        pool.add(-freed, GRADIENTS)
        pool.touch((converted or flat) + temporary, TEMPORARIES)
        pool.add(freed, GRADIENTS)


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
