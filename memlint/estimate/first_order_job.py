"""A training job through the first-order formulas: the adapter, with a wide interval.

What a job states beyond the formulas' own inputs is applied in the plainest way: bytes per element by dtype, gradients
and states for what trains alone, states divided by the ranks that shard them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memlint.estimate.first_order import (
    OPTIMIZER_MULTIPLIERS,
    OVERHEAD_BYTES,
    Dimensions,
    dimensions_of,
    layer_activation_bytes,
    parameter_count,
)
from memlint.estimate.heads import HEADLESS
from memlint.estimate.result import COMPONENTS, Estimate, Overhead, PhasePeak
from memlint.units import DTYPE_BYTES, GIB

if TYPE_CHECKING:
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.models.architecture import Architecture

_SHARDED_BY: dict[str, tuple[bool, bool, bool]] = {
    "zero1": (False, False, True),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
    "fsdp": (True, True, True),
    "fsdp1": (True, True, True),
    "hsdp": (True, True, True),
}
"""Whether parameters, gradients, optimizer states are divided over the data-parallel ranks."""

_HANDBOOK_NAMES = (("adafactor", "adafactor"), ("lion", "lion"), ("sgd-momentum", "sgd"), ("muon", "sgd"))
"""Beginnings of optimizer names in jobs -> the handbook's; ``sgd`` and ``lomo`` keep no state, all else is Adam."""

LOW_STATIC, LOW_STATIC_UNKNOWN = 0.9, 0.7
"""Not every gradient is alive at the peak. Where the number of parameters is the formula's own, it may be 20 % high: it
knows nothing of grouped queries (Falcon-7B)."""
LOW_ACTIVATIONS, HIGH_ACTIVATIONS = 0.5, 2.0
"""What traces of today's models save per layer, as a share of ``34·d``: 0.7 (fused attention, no gated network) to 1.8
(autocast copies and a gated network: 34H + 8I bytes per token), with a margin."""
HIGH_STATIC = 1.3
"""AdamW's foreach step holds one more parameter-sized list: 20 in place of 16 bytes per parameter in fp32."""
LOGIT_BYTES = 14
"""Bytes per token and vocabulary entry at the height of an unfused fp32 cross entropy, which the formulas leave out."""


class _Trained(NamedTuple):
    elements: int
    """Trainable parameters."""
    extra: int
    """Parameters added by adapters."""


def _optimizer(name: str) -> str:
    if name in ("sgd", "lomo"):
        return "none"
    for beginning, handbook in _HANDBOOK_NAMES:
        if name.startswith(beginning):
            return handbook
    return "adam-8bit" if "8bit" in name else "adam"


def _trained(job: TrainingJob, dimensions: Dimensions, count: int) -> _Trained:
    """Return what trains: all, an adapter on every matrix of a layer, or the last layers."""
    training = job.training
    if training.method == "full":
        return _Trained(count, 0)
    if training.method == "freeze":
        layers = dimensions.num_layers if training.trainable_layers is None else training.trainable_layers
        share = min(1.0, layers / max(1, dimensions.num_layers))
        return _Trained(round(dimensions.parameters()["layers"] * share), 0)
    rank = training.lora.rank if training.lora is not None else 16
    d, ff = dimensions.hidden_size, dimensions.intermediate_size or 4 * dimensions.hidden_size
    adapter = dimensions.num_layers * rank * (8 * d + 3 * (d + ff))  # q, k, v, o and a gated network
    return _Trained(adapter, adapter)


def _weight_bytes(job: TrainingJob) -> float:
    """Return bytes of one base parameter: quantised storage, or its dtype."""
    quantization = job.training.quantization
    if quantization is not None:
        return quantization.bits / 8 + 4 / max(1, quantization.block_size)  # one fp32 scale a block
    return DTYPE_BYTES.get(job.training.precision.weights, 4)


def _base_bytes(job: TrainingJob, count: int) -> float:
    """Return bytes of the base parameters.

    A quantiser takes linear modules alone: fused experts and embeddings stay as they are, which no formula knows and
    the model's classes say, where they can be made.
    """
    if job.training.quantization is None:
        return count * _weight_bytes(job)
    from memlint.estimate.counts import parameter_records
    from memlint.estimate.errors import Unsupported
    from memlint.models.fill import UNREADABLE

    try:
        records = parameter_records(job)
    except (Unsupported, *UNREADABLE):
        return count * _weight_bytes(job)
    return sum([r.count * sum(r.blocks) for r in records if r.base])


def _rows(job: TrainingJob) -> int:
    """Return the texts of one forward's activations: those of all columns where texts are embedded."""
    training = job.training
    if training.objective != "contrastive":
        return training.micro_batch_size
    if training.embedding_mini_batch is not None:
        return min(training.embedding_mini_batch, training.micro_batch_size)
    return training.columns * training.micro_batch_size


def _activations(job: TrainingJob, dimensions: Dimensions) -> int:
    """Return the handbook's activation bytes on one GPU; doubled where the forward computes in fp32."""
    training, parallel = job.training, job.parallelism
    tokens = max(1, training.sequence_length // max(1, parallel.context))
    rows = _rows(job)
    layer = layer_activation_bytes(dimensions, rows, tokens)
    if training.checkpointing.mode == "selective":  # the paper's own: attention scores are recomputed, eq. 4
        layer = 34 * dimensions.hidden_size * rows * tokens
    layers = 1 if training.checkpointing.mode in ("full", "offload") else dimensions.num_layers
    compute = training.precision.autocast or training.precision.weights
    scale = 2 if compute == "fp32" else 1
    return layer * layers * scale // max(1, parallel.tensor)


def _fused_scores(job: TrainingJob, dimensions: Dimensions) -> int:
    """Return the part of the activations that fused attention never keeps: ``5·h·T`` per token."""
    if job.training.attention == "eager" or job.training.checkpointing.mode == "selective":
        return 0
    activations = _activations(job, dimensions)
    scores = 5 * dimensions.num_heads * job.training.sequence_length
    return round(activations * scores / (34 * dimensions.hidden_size + scores))


def _ranks(job: TrainingJob, target: Target | None) -> int:
    parallel = job.parallelism
    gpus = parallel.gpus or (target.gpus if target is not None else 1)
    return max(1, gpus // max(1, parallel.tensor * parallel.pipeline * parallel.context))


def estimate(job: TrainingJob, target: Target | None = None) -> Estimate:
    """See :func:`memlint.estimate.first_order.estimate_first_order`."""
    architecture = job.architecture
    if architecture is None:
        raise ValueError("the job has no architecture")
    dimensions = dimensions_of(architecture)
    count, exact = parameter_count(architecture)
    trained = _trained(job, dimensions, count)
    static = _static(job, _ranks(job, target), count, trained)
    activations = _activations(job, dimensions)
    allocated = sum(static.values()) + activations
    components = dict.fromkeys(COMPONENTS, 0) | static | {"activations": activations}
    tokens = job.training.micro_batch_size * job.training.sequence_length
    logits = (
        0
        if job.training.loss in HEADLESS or job.training.objective == "contrastive"
        else LOGIT_BYTES * tokens * architecture.vocab_size
    )
    least = round((activations - _fused_scores(job, dimensions)) * LOW_ACTIVATIONS)
    low = round(sum(static.values()) * (LOW_STATIC if exact else LOW_STATIC_UNKNOWN)) + least
    high = round(sum(static.values()) * HIGH_STATIC + activations * HIGH_ACTIVATIONS) + logits + GIB
    peak = PhasePeak(phase="backward", peak_bytes=allocated, end_bytes=sum(static.values()), components=components)
    return Estimate(
        method="first-order",
        parameters=count,
        trainable_parameters=trained.elements,
        allocated_bytes=allocated,
        reserved_bytes=allocated,
        device_bytes=allocated + OVERHEAD_BYTES,
        low_bytes=low,
        high_bytes=max(high, allocated + 2 * OVERHEAD_BYTES),
        phase="backward",
        components=components,
        static=static,
        forward_end_activation_bytes=activations,
        timeline=(peak,),
        overheads=(
            Overhead(
                name="fixed",
                low_bytes=0,
                expected_bytes=OVERHEAD_BYTES,
                high_bytes=2 * OVERHEAD_BYTES,
                source="the first-order method's allowance for context and buffers",
            ),
        ),
        assumptions=(*job.assumptions, *_notes(architecture, exact)),
    )


def _static(job: TrainingJob, ranks: int, count: int, trained: _Trained) -> dict[str, int]:
    """Return parameters, gradients and optimizer states on one GPU."""
    precision = job.training.precision
    adapter = DTYPE_BYTES.get(job.training.lora.dtype, 4) if job.training.lora is not None else 4
    trainable = precision.trainable_weights or precision.weights
    master = 4 if precision.master_weights else 0
    state = DTYPE_BYTES.get(precision.optimizer or ("fp32" if master or trained.extra else trainable), 4)
    gradient = adapter if trained.extra else DTYPE_BYTES.get(precision.gradients or trainable, 4)
    states = OPTIMIZER_MULTIPLIERS[_optimizer(job.training.optimizer)] * state
    whole = {
        "parameters": _base_bytes(job, count) + trained.extra * adapter,
        "gradients": trained.elements * gradient * (0 if job.training.optimizer_in_backward else 1),
        "optimizer_states": trained.elements * (states + master),
    }
    divided = _SHARDED_BY.get(job.parallelism.strategy, (False, False, False))
    parts = max(1, job.parallelism.tensor) * max(1, job.parallelism.pipeline)
    return {
        name: round(size / parts / (ranks if is_divided else 1))
        for (name, size), is_divided in zip(whole.items(), divided, strict=True)
    }


def _notes(architecture: Architecture, exact: bool) -> tuple[str, ...]:
    known = "the exact count" if exact else f"the formula's count, because `{architecture.model_type}` is not known"
    return (
        f"first-order formulas: parameters are {known}; activations are B*T*(34*d + 5*h*T) bytes per layer, one "
        f"layer's worth "
        "when checkpointed; logits and optimizer temporaries are left out, so the interval is wide",
    )
