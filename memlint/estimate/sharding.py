"""How parameters, gradients and states are divided over data-parallel GPUs, and the buffers that dividing costs.

Sources: torch 2.13 nn/parallel/distributed.py (DDP buckets); DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py, stage3.py
(when its buffers live: :mod:`memlint.estimate.zero`).
"""

from __future__ import annotations

from math import prod
from typing import Callable

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.fully_shard import FullyShard, padded
from memlint.estimate.gradient_sink import Sink, enter_backward, leave_backward
from memlint.estimate.records import Record, Slot
from memlint.estimate.units import Unit
from memlint.estimate.zero import Zero
from memlint.job import TrainingJob
from memlint.records import dataclass, field, replace
from memlint.units import DTYPE_BYTES


@dataclass(slots=True)
class Sharding:
    """The data-parallel scheme of a run. ``world`` is the number of GPUs the states are divided over."""

    kind: str
    world: int
    compute: str
    """dtype of gathered parameters."""
    reduce: str
    """dtype in which gradients are reduced."""
    gradient: str | None
    """dtype of a parameter's own gradient; None: as the parameter."""
    offload: str
    reshard: bool
    bucket_view: bool
    wrap: str
    fully: FullyShard | None = None
    """FSDP2's own lifetimes; None: those of FSDP1, where a unit is gathered into its parameters."""
    zero: Zero | None = None
    """DeepSpeed's own lifetimes."""
    current: Unit | None = None
    units: list[Unit] = field(default_factory=list)

    @classmethod
    def of(cls, job: TrainingJob, world: int) -> Sharding:
        """Read the scheme from a job; a single GPU divides nothing but still has DeepSpeed's master weights."""
        parallelism, precision = job.parallelism, job.training.precision
        kind = {"fsdp1": "fsdp", "hsdp": "fsdp", "fsdp2": "fsdp"}.get(parallelism.strategy, parallelism.strategy)
        if kind == "device-map":
            kind = "none"
        if kind in ("ddp", "fsdp") and world <= 1:
            kind = "none"
        if kind in ("none", "ddp") and parallelism.offload in ("parameters", "all"):
            # Frozen layers rest in host memory and are fetched one at a time (axolotl's layer_offloading).
            kind = "fetched"
        divided = parallelism.shard if parallelism.strategy == "hsdp" and parallelism.shard else world
        compute = precision.autocast or precision.weights
        fully = None
        if kind == "fsdp" and parallelism.strategy != "fsdp1":
            fully = FullyShard(
                world=max(1, divided),
                compute=precision.autocast,
                reduce=compute,
                reshard=parallelism.reshard_after_forward,
                replicated=parallelism.strategy == "hsdp",
            )
            fully.keeps_gradients = parallelism.offload not in ("optimizer", "all")
        zero = None
        if kind in ("zero0", "zero1", "zero2", "zero3"):
            divided = 1 if kind == "zero0" else divided
            zero = Zero(job, int(kind[-1]), max(1, divided), compute)
        return cls(
            kind=kind,
            fully=fully,
            world=max(1, divided),
            compute=compute,
            reduce=compute,
            gradient=precision.gradients if zero is None else "fp32" if zero.forms.leaves else None,
            offload=parallelism.offload,
            reshard=parallelism.reshard_after_forward,
            zero=zero,
            bucket_view=parallelism.gradient_as_bucket_view,
            wrap=parallelism.wrap,
        )

    @property
    def gathers(self) -> bool:
        """Whether a layer's parameters come together only while it runs."""
        return self.kind in ("zero3", "fsdp", "fetched")

    @property
    def host_states(self) -> bool:
        """Whether optimizer states, and the gradients they take, are in host memory."""
        return self.offload in ("optimizer", "all")

    @property
    def deepspeed(self) -> bool:
        """Whether DeepSpeed's optimizer wrapper runs the step."""
        return self.zero is not None

    def part(self, elements: int) -> int:
        """Elements of one rank's share (padded)."""
        return -(-elements // self.world)

    def parameter_bytes(self, record: Record) -> int:
        """Bytes of a parameter tensor as it rests on one GPU."""
        if record.host:
            return 0
        if not self.gathers or (self.kind == "fetched" and record.trainable):
            return sum([rounded(b) for b in record.blocks])
        if self.zero is not None and self.zero.gathers and self.zero.persists(record.numel):
            return sum([rounded(b) + rounded(-(-b // self.world)) for b in record.blocks])
        if self.offload in ("parameters", "all"):
            return 0
        if self.kind == "fsdp" and len(record.blocks) == 1 and record.numel:
            return rounded(record.blocks[0] * padded(record.shape, self.world) // (record.numel * self.world))
        return sum([rounded(-(-b // self.world)) for b in record.blocks])

    def slots(self, slots: list[Slot], *, master: bool) -> list[Slot]:
        """The tensors that this rank's optimizer updates.

        DeepSpeed flattens everything into one partition, in fp32 when it keeps master weights (stage_1_and_2.py
        single_partition_of_fp32_groups); FSDP2 shards each tensor along its first dimension.
        """
        if self.kind == "zero0":
            # FP16_UnfusedOptimizer keeps an fp32 copy of each.
            # FP16_UnfusedOptimizer's copies are not the tensors that the Trainer told bitsandbytes of.
            return [replace(s, dtype="fp32", grad_dtype="fp32", fp32_states=False) for s in slots] if master else slots
        if self.deepspeed:
            total = sum(s.numel * s.count for s in slots)
            if not total:
                return []
            dtype = "fp32" if master else slots[0].dtype
            return [Slot((self.part(total),), dtype, dtype, 1, matrix=False)]
        if self.kind == "fsdp":
            return [
                replace(s, shape=(-(-s.shape[0] // self.world), *s.shape[1:]), after=-(-s.after // self.world))
                if s.shape
                else s
                for s in slots
            ]
        return slots

    def gradient_bytes(self, slots: list[Slot]) -> int:
        """Bytes of all gradients as they rest on one GPU between backward and step."""
        if self.zero is not None and self.zero.whole_gradients is not None and self.zero.whole_gradients.at_once:
            return 0
        if self.kind in ("zero2", "zero3", "fsdp"):
            if self.host_states and (self.zero is None or self.zero.reduction is None or not self.zero.forms.compact):
                return 0
            if self.zero is not None:
                return rounded(self.zero.part_bytes)
            return sum([s.count * rounded(self.part(s.numel) * DTYPE_BYTES[s.grad_dtype]) for s in slots])
        return sum([s.count * s.grad_bytes for s in slots])

    def host_bytes(self, records: list[Record], slots: list[Slot]) -> int:
        """Host memory of one GPU's process beside the optimizer states: offloaded gradients and weights.

        DeepSpeed steps on the CPU with fp32 gradients (stage_1_and_2.py: `single_partition_of_fp32_groups[i].grad` on
        the offload device), which makes the 16 bytes a parameter of its own `estimate_zero2_model_states_mem_needs`.
        """
        total = 0
        if self.host_states:
            size = DTYPE_BYTES["fp32"] if self.deepspeed else 0
            total += sum([s.count * self.part(s.numel) * (size or DTYPE_BYTES[s.grad_dtype]) for s in slots])
        if self.gathers and self.offload in ("parameters", "all"):
            kept = [r for r in records if not (self.kind == "fetched" and r.trainable)]
            total += sum([r.count * -(-sum(r.blocks) // self.world) for r in kept])
        return total

    def static_communication(self, slots: list[Slot]) -> int:
        """Buffers that live through the whole step."""
        if self.kind == "ddp":
            return 0 if self.bucket_view else sum(s.count * rounded(s.numel * DTYPE_BYTES[s.grad_dtype]) for s in slots)
        if self.zero is not None:
            self.zero.settle(slots)
            return self.zero.static_bytes()
        return 0

    def unit(self, count: int = 1) -> Unit:
        """Begin a unit, which stands for ``count`` equal ones; parameters made from now on belong to it."""
        self.current = Unit(count=count)
        self.units.append(self.current)
        return self.current

    def carve(self, *, tied: bool, head: str | None, apart: bool = False) -> None:
        """Give embedding and tail units of their own, as accelerate does for a model with an output head ``head``.

        accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model: the input embedding; the final norm with the output
        head (and a tied embedding), which stays gathered; the root keeps the rest. ``apart``: see FullyShard.
        """
        fully = self.fully
        if fully is None or self.wrap != "layer":
            return
        root = self.current
        fully.tied, fully.apart = tied, apart
        fully.tail = self.unit()
        fully.embedding = None if tied else self.unit()
        fully.head = head
        self.current = root

    def adopt(
        self, leaf: Leaf | None, shape: tuple[int, ...], compute_bytes: int, grad_dtype: str, name: str, count: int
    ) -> None:
        """Note a parameter of the unit under construction and divert its gradient.

        ``count``: so many equal ones outside all layers (of an idle tower); equal layers are units of their own.
        """
        if self.kind in ("none", "ddp") or (self.kind == "fetched" and leaf is not None):
            return
        unit = self.current
        elements = prod(shape)
        times = count if unit is self.units[0] else 1
        if self.fully is not None and unit is not None and self.fully.rests_in_root(name):
            unit, times = self.units[0], unit.count
        if self.zero is not None:
            for _ in range(times):
                self.zero.adopt(None if unit is self.units[0] else unit, elements, compute_bytes, leaf)
            return
        if self.fully is not None:
            if unit is self.units[0]:
                unit = self.fully.end_of(name) or unit
            assert unit is not None
            size = compute_bytes * padded(shape, self.world) // elements
            unit.gathered_bytes += times * size
            unit.whole_bytes += times * rounded(size)
        elif unit is not None and self.gathers:
            unit.gathered_bytes += times * compute_bytes
        if leaf is None:
            return
        kept = 0 if self.host_states else self.part(elements) * DTYPE_BYTES[grad_dtype]
        assert unit is not None
        leaf.sink = Sink(unit, kept, grad_dtype, self.fully).take

    def run(self, f: Tape, unit: Unit | None, block: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
        """Run a layer with its parameters gathered, in forward and again around its backward."""
        if unit is None or not self.gathers or self.zero is not None:
            return block(f, x, *others)
        if self.fully is not None:
            return self.fully.run(f, unit, block, x, others)
        self.gather(f, unit)
        if f.needs(x):
            through = Tensor(x.shape, x.dtype, x.storage)
            x = f.record(through, leave_backward, (x,), (), (self, unit))
        out = block(f, x, *others)
        del x
        if self.reshard:
            unit.buffer = None
        if f.needs(out):
            out = f.record(Tensor(out.shape, out.dtype, out.storage), enter_backward, (out,), (), (self, unit))
        return out

    def begin(self, f: Tape, root: Unit) -> None:
        """Gather what is outside all layers before the forward; it stays until backward ends."""
        for unit in self.units:
            unit.begin()
        if self.fully is not None:
            self.fully.begin(f, root)
        elif self.zero is not None:
            self.zero.begin(f)
        elif self.gathers:
            self.gather(f, root)

    def finish(self, f: Tape, leaves: list[Leaf], resting: int) -> None:
        """End of backward: reduce what is left (units whose input needed no gradient, and the root); ``resting``: bytes
        of gradients from before it.
        """
        if self.zero is not None:
            self.zero.finish(f, leaves, resting)
            return
        if not self.gathers:
            return
        if self.fully is not None:
            self.fully.finish(f, self.units)
            return
        for unit in self.units:
            self.reduce_scatter(f, unit)
            unit.buffer = None

    def gather(self, f: Tape, unit: Unit) -> None:
        """All-gather into whole parameters."""
        if unit.buffer is None:
            unit.buffer = f.new((unit.gathered_bytes,), "uint8", COMMUNICATION)

    def reduce_scatter(self, f: Tape, unit: Unit) -> None:
        """Post-backward: flat input of all gradients in the reduce dtype, then the rank's own part stays."""
        if unit.gradients:
            flat = f.new((unit.gradient_elements,), self.reduce, COMMUNICATION)
            unit.gradients.clear()
            kept = f.new((unit.shard_bytes,), "uint8", GRADIENTS) if unit.shard_bytes else None
            unit.gradient_elements = 0
            unit.shard_bytes = 0
            if kept is not None:
                f.kept.append(kept)
            del flat
        unit.buffer = None
