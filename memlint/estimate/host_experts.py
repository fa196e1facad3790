"""Routed experts that live and compute on the CPU (``parallelism.offload: experts``), with the adapters on them.

Source: kt-kernel 0.7.2 sft/ (KTransformers, LLaMA-Factory's ``use_kt``). autograd.py KTMoEFunction saves a scalar alone
and gives the gradients of hidden states and routing weights; base.py KExpertsSFTBuffer holds everything else in pinned
host memory; lora.py _create_fused_expert_lora_buffers makes six bf16 adapter tensors for all experts of a layer, and
as many gradients, on the CPU, whatever modules PEFT was told to adapt. Rank 0 alone computes, on the rows of all ranks.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Sequence

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.optimizer import state_bytes
from memlint.estimate.records import Record, Slot
from memlint.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memlint.estimate.build import Build
    from memlint.job import Training


def stored_bytes(shape: tuple[int, ...], form: str) -> int:
    """Bytes of expert matrices [E, rows, columns] in host memory.

    kt-kernel 0.7.2 sft/amx.py: int8 with an fp32 scale for each row; fp8 with one for each block of 128 x 128; rawint4
    with a bf16 scale for 32 values; mxfp4 with a scale of 8 bits for 32.
    """
    elements, rows = prod(shape), prod(shape[:-1])
    if form == "int8":
        return elements + 4 * rows
    if form == "fp8":
        return elements + 4 * -(-elements // (128 * 128))
    if form == "rawint4":
        return elements // 2 + 2 * -(-elements // 32)
    if form == "mxfp4":
        return elements // 2 + -(-elements // 32)
    return 2 * elements


class HostExperts:
    """All experts of one sparse block as one operation: x [T, H], ids and weights [T, k] -> [T, H].

    ``gated`` False: ``up_proj`` [E, I, H] alone.
    """

    __slots__ = ("trained", "world")

    def __init__(
        self, b: Build, name: str, experts: int, hidden: int, width: int, *, gated: bool = True, bias: bool = False
    ) -> None:
        self.world = b.sharding.world
        self.trained = False
        first, rows = ("gate_up_proj", 2 * width) if gated else ("up_proj", width)
        self._keep(b, f"{name}.{first}", (experts, rows, hidden))
        self._keep(b, f"{name}.down_proj", (experts, hidden, width))
        if bias:
            self._keep(b, f"{name}.{first}_bias", (experts, rows), plain=True)
            self._keep(b, f"{name}.down_proj_bias", (experts, hidden), plain=True)
        if b.lora is None or b.frozen or b.reference or not b.lora.rank:
            return
        for leaf in ("gate", "up", "down") if gated else ("up", "down"):
            inputs, outputs = (width, hidden) if leaf == "down" else (hidden, width)
            self._keep(b, f"{name}.{leaf}_lora_a", (experts, b.lora.rank, inputs), adapter=True)
            self._keep(b, f"{name}.{leaf}_lora_b", (experts, outputs, b.lora.rank), adapter=True)

    def _keep(self, b: Build, name: str, shape: tuple[int, ...], *, adapter: bool = False, plain: bool = False) -> None:
        """Record a tensor that no GPU has."""
        trainable = b.trains(name, adapter=adapter)
        form = "bf16" if adapter or plain or trainable else b.job.parallelism.expert_format
        size = stored_bytes(shape, form)
        base = not (adapter or b.reference)
        record = Record(name, shape, "bf16", trainable, "bf16", b.count, (size,), base, b.idle)
        record.host = True
        b.records.append(record)
        self.trained = self.trained or trainable

    def __call__(self, f: Tape, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The experts' sum as it comes back from the CPU."""
        gathered = to_host(f, x, self.world)
        sent = None if weights.dtype == "fp32" else f.new(weights.shape, "fp32")
        del gathered, sent
        recorded = f.grad_enabled and (self.trained or f.needs(x, weights))
        saved = f.save(f.new((), x.dtype)) if recorded else ()
        back = from_host(f, x.shape, x.dtype, self.world)
        return f.record(back, _backward, (x, weights), saved, self.world) if recorded else back


def to_host(f: Tape, x: Tensor, world: int) -> tuple[Tensor, ...]:
    """What rank 0 makes to copy rows [T, H] to the host: those of all ranks and one tensor of them, in bf16."""
    made: tuple[Tensor, ...] = ()
    rows = (world * x.shape[0], *x.shape[1:])
    if world > 1:
        made = f.new(rows, x.dtype), f.new(rows, x.dtype)
    return made if x.dtype == "bf16" else (*made, f.new(rows, "bf16"))


def from_host(f: Tape, shape: tuple[int, ...], dtype: str, world: int) -> Tensor:
    """A bf16 result of all ranks' rows, cast, and cut into one chunk for each rank."""
    rows = (world * shape[0], *shape[1:])
    out = f.new(rows, "bf16")
    if dtype != "bf16":
        out = f.new(rows, dtype)
    if world > 1:
        chunks = f.new(rows, dtype)
        own = f.new(shape, dtype)
        del chunks, out
        return own
    return out


def _backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    world = node.meta
    sent = to_host(f, grad, world)
    del sent
    (shape, dtype), (routed, kind) = node.shapes
    grad_x = from_host(f, shape, dtype, world)
    grad_weights = f.new(routed, kind)
    return (grad_x if node.edges[0] is not None else None), (grad_weights if node.edges[1] is not None else None)


def host_expert_bytes(records: Sequence[Record], training: Training) -> int:
    """Bytes that the experts take of main memory: weights, and what is trained with gradients and optimizer states.

    What comes on top is not known: kernels' own layouts, the matrices turned for the backward, cached activations.
    """
    kept = [r for r in records if r.host]
    slots = [Slot(r.shape, r.dtype, r.grad_dtype, r.count) for r in kept if r.trainable and not r.idle]
    weights = sum([r.count * sum(r.blocks) for r in kept])
    gradients = sum([s.count * s.numel * DTYPE_BYTES[s.grad_dtype] for s in slots])
    return weights + gradients + state_bytes(training.optimizer, slots)


def left_on_gpu(model_type: str) -> str:
    """What to say of a model none of whose experts are on the host."""
    return (
        f"`parallelism.offload: experts` has no effect on `{model_type}`: it has no routed experts that are followed "
        "on the host, so all of its weights are counted on the GPU"
    )
