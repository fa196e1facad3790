"""The first-order textbook formulas: training memory from a handful of dimensions.

V vocabulary, d hidden size, L layers, h heads, ff inner size of the feed-forward network, B micro batch, T tokens of
one sequence. For a GPT-2 shaped decoder with an untied head:

* parameters ``V·d + T·d + L·(4d² + 4d + 2·d·ff + ff + d + 4d) + d·V + 2d``: token and position embeddings; per layer
  the four attention projections with biases, the two feed-forward matrices with biases and two layer norms; head and
  last norm;
* bytes per parameter: 2 for half-precision weights, 4 for fp32 gradients, 8 for two fp32 Adam moments, 14 in all;
* activations ``B·T·(34·d + 5·h·T)`` bytes per layer in half precision: Korthikanti et al., arXiv 2205.05198, equation
  2; one layer's worth when every layer is checkpointed;
* 512 MiB for the CUDA context and the rest.

They know nothing of grouped-query attention, gated feed-forward networks, fused attention, the logits, or when each
byte is alive: that is what :mod:`memlint.estimate.simulate` is for. All sizes in bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from memlint.records import dataclass
from memlint.units import MIB

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.models.architecture import Architecture

OPTIMIZER_MULTIPLIERS: Mapping[str, float] = {
    "adam": 2.0,  # two moments
    "lion": 1.0,  # one momentum
    "sgd": 1.0,  # one momentum
    "adafactor": 0.1,  # row and column statistics in place of a second moment
    "adam-8bit": 0.5,  # two moments of one byte
    "none": 0.0,
}
"""Optimizer state in copies of the fp32 trainable parameters."""

OVERHEAD_BYTES = 512 * MIB
"""CUDA context, libraries and buffers."""


@dataclass(kw_only=True, frozen=True, slots=True)
class Dimensions:
    """The sizes that the formulas need."""

    hidden_size: int
    num_layers: int
    num_heads: int
    vocab_size: int = 0
    intermediate_size: int | None = None
    """None: four times the hidden size."""
    max_length: int = 0
    """Rows of the position embedding; 0 where positions are not learned."""
    tied_head: bool = False
    """The head shares the embedding's matrix; counted once."""
    experts: int = 1
    """Feed-forward networks of one layer (mixture of experts)."""
    feed_forward_matrices: int = 2
    """3 for a gated network."""

    def parameters(self) -> dict[str, int]:
        """Return parameter counts by part: embedding, positions, layers, head, final_norm."""
        d, ff = self.hidden_size, self.intermediate_size or 4 * self.hidden_size
        feed_forward = self.feed_forward_matrices * d * ff + ff + d
        layer = 4 * d * d + 4 * d + self.experts * feed_forward + 4 * d
        return {
            "embedding": self.vocab_size * d,
            "positions": self.max_length * d,
            "layers": self.num_layers * layer,
            "head": 0 if self.tied_head else d * self.vocab_size,
            "final_norm": 2 * d,
        }


@dataclass(kw_only=True, frozen=True, slots=True)
class FirstOrder:
    """What the formulas give for one GPU. Sizes in bytes."""

    parameters: int
    """Number of parameters (elements)."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    overhead_bytes: int

    @property
    def static_bytes(self) -> int:
        """Parameters, gradients and optimizer states."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        """Everything, overhead included."""
        return self.static_bytes + self.activation_bytes + self.overhead_bytes


def layer_activation_bytes(dimensions: Dimensions, batch_size: int, sequence_length: int) -> int:
    """Return ``B·T·(34·d + 5·h·T)``: what one layer saves for backward, in bytes, in half precision."""
    score_bytes = 5 * dimensions.num_heads * sequence_length
    return batch_size * sequence_length * (34 * dimensions.hidden_size + score_bytes)


def first_order(
    dimensions: Dimensions,
    *,
    batch_size: int,
    sequence_length: int,
    optimizer: str = "adam",
    checkpointing: bool = False,
    bytes_per_parameter: float = 2,
    bytes_per_gradient: float = 4,
    bytes_per_state: float = 4,
    parameters: int | None = None,
    overhead_bytes: int = OVERHEAD_BYTES,
) -> FirstOrder:
    """Apply the formulas. ``parameters`` replaces the counted number (a nominal 7e9, or an exact count).

    ``optimizer`` is a key of :data:`OPTIMIZER_MULTIPLIERS` (KeyError otherwise); ``bytes_per_state`` the size of one
    optimizer state element.
    """
    count = sum(dimensions.parameters().values()) if parameters is None else parameters
    layers = 1 if checkpointing else dimensions.num_layers
    return FirstOrder(
        parameters=count,
        parameter_bytes=round(count * bytes_per_parameter),
        gradient_bytes=round(count * bytes_per_gradient),
        optimizer_bytes=round(count * OPTIMIZER_MULTIPLIERS[optimizer] * bytes_per_state),
        activation_bytes=layers * layer_activation_bytes(dimensions, batch_size, sequence_length),
        overhead_bytes=overhead_bytes,
    )


def dimensions_of(architecture: Architecture) -> Dimensions:
    """Return the formulas' sizes of a HF architecture: what its config says under the usual names."""
    get = architecture.get
    hidden = architecture.hidden_size
    rotary = any(get(name) is not None for name in ("rope_theta", "rope_parameters", "rope_scaling", "rotary"))
    experts = _first(architecture, "num_local_experts", "num_experts", "n_routed_experts") or 1
    inner = _first(architecture, "intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size")
    if experts > 1:
        inner = _first(architecture, "moe_intermediate_size") or inner
    return Dimensions(
        hidden_size=hidden,
        num_layers=architecture.num_hidden_layers,
        num_heads=_first(architecture, "num_attention_heads", "n_head", "num_heads") or max(1, hidden // 128),
        vocab_size=architecture.vocab_size,
        intermediate_size=inner,
        max_length=0 if rotary else architecture.max_position_embeddings or 0,
        tied_head=architecture.tie_word_embeddings,
        experts=experts,
        feed_forward_matrices=3 if get("hidden_act", get("hidden_activation")) in ("silu", "swish") else 2,
    )


def _first(architecture: Architecture, *names: str) -> int | None:
    """Return the first of these config fields that is a positive whole number."""
    for name in names:
        value = architecture.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def parameter_count(architecture: Architecture) -> tuple[int, bool]:
    """Return the number of parameters, and whether it is exact (its family is known) or the formula's."""
    from memlint.estimate.errors import Unsupported
    from memlint.estimate.simulate import count_parameters  # lazily: the formulas serve without the simulator

    if architecture.family != "unknown":
        try:
            return count_parameters(architecture), True
        except Unsupported:
            pass
    return sum(dimensions_of(architecture).parameters().values()), False


def estimate_first_order(job: TrainingJob, target: Target | None = None) -> Estimate:
    """Estimate a job with the formulas: crude, and with an interval that says so.

    Raises ValueError when the job has no architecture.
    """
    from memlint.estimate.first_order_job import estimate

    return estimate(job, target)
