"""What distinguishes the hybrid types, and which kind each of their layers is (see :mod:`.hybrid`)."""

from __future__ import annotations

from memlint.estimate.errors import kinds_of_layers
from memlint.estimate.families.mixtures import Mixture, qwen_sparse
from memlint.estimate.families.shapes import Shape
from memlint.models.architecture import Architecture
from memlint.records import dataclass

Kind = tuple[str, bool]
"""Mixer (mamba, attention, delta, mlp, moe, both) and whether the feed-forward is a mixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """What distinguishes one hybrid type."""

    shape: Shape = Shape(qkv_bias=False, o_bias=False, mlp_bias=False)
    rope: bool = True
    mixer: str = "mamba"
    """Name of the state-space module in a layer."""
    feed_forward: str = "feed_forward"
    second_norm: str = "pre_ff_layernorm"
    final_norm: str = "final_layernorm"
    embed: str = "embed_tokens"
    branch_scale: bool = False
    embed_scale: bool = False
    single: bool = False
    """nemotron_h: a layer is one norm and one mixer of any kind."""
    order: str = "mixer mlp norms"
    """Parts of a layer in the order in which they are made, and so stepped over."""


TYPES: dict[str, Hybrid] = {
    "bamba": Hybrid(shape=Shape(rope_cat=True), order="mlp norms mixer"),
    "granitemoehybrid": Hybrid(
        shape=Shape(),
        second_norm="post_attention_layernorm",
        final_norm="norm",
        branch_scale=True,
        embed_scale=True,
        order="norms mlp mixer",
    ),
    "jamba": Hybrid(rope=False),
    "falcon_h1": Hybrid(shape=Shape(), embed_scale=True, order="mlp mixer norms"),
    "nemotron_h": Hybrid(
        shape=Shape(norm="olmo2"),
        rope=False,
        final_norm="norm_f",
        embed="embeddings",
        single=True,
        order="norms mixer",
    ),
    "qwen3_next": Hybrid(
        shape=Shape(norm="gemma", qk_norm="head", rope_cat=True),
        mixer="linear_attn",
        feed_forward="mlp",
        second_norm="post_attention_layernorm",
        final_norm="norm",
    ),
}
TYPES["qwen3_5_text"] = TYPES["qwen3_5_moe_text"] = TYPES["qwen3_next"]
"""model_type -> hybrid."""

MODULES = {"olmo_hybrid": "olmo_hybrid", "minimax": "minimax", "zamba2": "zamba2"}
"""Types whose model stands in a module of its own; it loads on first use."""

DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Types whose linear attention is the gated delta rule."""

GRANITE = Mixture(
    router="top-first",
    experts="num_local_experts",
    width="intermediate_size",
    name="block_sparse_moe",
    gate_name="router",
    gate_after=False,
)
JAMBA = Mixture(
    router="softmax",
    normalise=False,
    experts="num_experts",
    width="intermediate_size",
    gate_name="router",
    gate_after=False,
)
QWEN = Mixture(
    shared="gated",
    shared_width="shared_expert_intermediate_size",
    shared_name="shared_expert",
    gate_after=False,
    sparse=qwen_sparse,
)


def layer_kinds(a: Architecture) -> list[Kind]:
    """Mixer and feed-forward of each layer, from layers_block_type or layer_types and the experts' fields."""
    words = {
        "linear_attention": "delta" if a.model_type in DELTA else "mamba",
        "mamba": "mamba",
        "full_attention": "attention",
        "attention": "attention",
        "moe": "moe",
        "mlp": "mlp",
    }
    if a.model_type == "falcon_h1":
        return [("both", False)] * a.num_hidden_layers
    kinds = [words.get(name, "mamba") for name in kinds_of_layers(a, "layers_block_type", "layer_types")]
    return [(kind, _sparse(a, index)) for index, kind in enumerate(kinds)]


def _sparse(a: Architecture, index: int) -> bool:
    if a.model_type == "jamba":
        counts = a.get("layers_num_experts")
        if isinstance(counts, (list, tuple)) and len(counts) > index:
            return int(counts[index]) > 1
        period, offset = int(a.get("expert_layer_period", 2)), int(a.get("expert_layer_offset", 1))
        return int(a.get("num_experts", 16)) > 1 and index % period == offset
    if a.model_type == "qwen3_next":
        return qwen_sparse(a, index)
    if a.model_type == "qwen3_5_moe_text":
        return True
    return bool(a.get("num_local_experts", 0)) if a.model_type == "granitemoehybrid" else False
