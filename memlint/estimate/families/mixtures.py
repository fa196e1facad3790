"""What distinguishes the mixture-of-experts types from one another: a row of :data:`TYPES` each.

Source: transformers 5.24 models/*/modeling_*.py of the types named.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.families.shapes import Shape
from memlint.models.architecture import Architecture
from memlint.models.traits import EXPERT_MODULES
from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What distinguishes one mixture-of-experts type."""

    shape: Shape = Shape(qkv_bias=False, o_bias=False, mlp_bias=False)
    """Attention, norms and rotary positions, as in the llama family."""
    router: str = "softmax"
    """softmax, softmax-fp32 (mixtral), softmax-float (hunyuan: all in fp32),
    top-first (granitemoe), sigmoid, sigmoid-biased (lfm2_moe), grouped, ernie, sparsemixer."""
    normalise: bool | str = "norm_topk_prob"
    """Weights are divided by their sum: a constant, or the config field that says so."""
    experts: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str | None = None
    """gated (qwen2_moe: sigmoid gate, before), after (deepseek style), before, beside (granitemoeshared)."""
    shared_width: str = ""
    """Config field of the shared expert's width, or of its number of experts' widths (``*field``)."""
    top_k: str = "num_experts_per_tok"
    name: str = "mlp"
    gate_name: str = "gate"
    shared_name: str = "shared_experts"
    gate_after: bool = True
    """The gate is made after the experts, which is the order in which an optimizer steps over them."""
    norms_before: bool = False
    """The layer's norms are made before its feed-forward."""
    sparse: Callable[[Architecture, int], bool] | None = None
    """Whether layer ``index`` is a mixture; None: all are."""


def qwen_sparse(a: Architecture, index: int) -> bool:
    """mlp_only_layers and decoder_sparse_step of the Qwen types."""
    if index in (a.get("mlp_only_layers") or ()) or int(a.get("num_experts", 0)) <= 0:
        return False
    return (index + 1) % int(a.get("decoder_sparse_step", 1)) == 0


def _after_dense(a: Architecture, index: int) -> bool:
    return index >= int(a.get("first_k_dense_replace", 0))


def _listed(a: Architecture, index: int) -> bool:
    kinds = a.get("mlp_layer_types")
    return not isinstance(kinds, (list, tuple)) or bool(kinds[index] == "sparse")


def _ernie_sparse(a: Architecture, index: int) -> bool:
    last = int(a.get("moe_layer_end_index", -1))
    last = a.num_hidden_layers - 1 if last < 0 else last
    if (index + 1) % int(a.get("moe_layer_interval", 1)):
        return False
    return int(a.get("moe_layer_start_index", 0)) <= index <= last


_DEEPSEEK: dict[str, Any] = {
    "router": "grouped",
    "experts": "n_routed_experts",
    "shared": "after",
    "shared_width": "*n_shared_experts",
}

TYPES: dict[str, Mixture] = {
    "mixtral": Mixture(
        router="softmax-fp32",
        normalise=True,
        experts="num_local_experts",
        width="intermediate_size",
        gate_after=False,
    ),
    "qwen2_moe": Mixture(
        shape=Shape(qkv_bias="qkv_bias", o_bias=False, mlp_bias=False),
        shared="gated",
        shared_width="shared_expert_intermediate_size",
        shared_name="shared_expert",
        gate_after=False,
        sparse=qwen_sparse,
    ),
    "qwen3_moe": Mixture(shape=Shape(qk_norm="head", mlp_bias=False), sparse=qwen_sparse),
    "mellum": Mixture(shape=Shape(qk_norm="head", mlp_bias=False, local_rope=True), sparse=_listed),
    "qwen3_vl_moe_text": Mixture(
        shape=Shape(qk_norm="head", mlp_bias=False, rope_rows=True), normalise=True, sparse=qwen_sparse
    ),
    "qwen3_omni_moe_text": Mixture(
        shape=Shape(qk_norm="head", mlp_bias=False, rope_rows=True), normalise=True, sparse=qwen_sparse
    ),
    "olmoe": Mixture(shape=Shape(qk_norm="full", mlp_bias=False), width="intermediate_size", gate_after=False),
    "flex_olmo": Mixture(
        shape=Shape(norm="olmo2", norms="post", qk_norm="full", mlp_bias=False, rope_fp32=True),
        width="intermediate_size",
        gate_after=False,
    ),
    "granitemoe": Mixture(
        shape=Shape(branch_scale=True, embed_scale=True),
        router="top-first",
        experts="num_local_experts",
        width="intermediate_size",
        name="block_sparse_moe",
        gate_name="router",
        gate_after=False,
        norms_before=True,
    ),
    "granitemoeshared": Mixture(
        shape=Shape(branch_scale=True, embed_scale=True),
        router="top-first",
        experts="num_local_experts",
        width="intermediate_size",
        name="block_sparse_moe",
        gate_name="router",
        shared="beside",
        shared_width="shared_intermediate_size",
        gate_after=False,
        norms_before=True,
    ),
    "minimax_m2": Mixture(
        shape=Shape(qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm="full", rope_cat=True),
        router="sigmoid",
        experts="num_local_experts",
        width="intermediate_size",
        gate_after=False,
    ),
    "glm4_moe": Mixture(
        shape=Shape(o_bias=False, mlp_bias=False, qk_norm="head", rope_cat=True), sparse=_after_dense, **_DEEPSEEK
    ),
    "glm4_moe:plain": Mixture(
        shape=Shape(o_bias=False, mlp_bias=False, rope_cat=True), sparse=_after_dense, **_DEEPSEEK
    ),
    "glm4v_moe_text": Mixture(
        shape=Shape(o_bias=False, mlp_bias=False, rope_cat=True, rope_rows=True), sparse=_after_dense, **_DEEPSEEK
    ),
    "deepseek": Mixture(
        shape=Shape(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias=False),
        sparse=_after_dense,
        **{**_DEEPSEEK, "router": "softmax"},
    ),
    "dots1": Mixture(shape=Shape(mlp_bias=False, qk_norm="head"), sparse=_after_dense, **_DEEPSEEK),
    "solar_open": Mixture(shape=Shape(o_bias=False, mlp_bias=False), **_DEEPSEEK),
    "exaone_moe": Mixture(
        shape=Shape(qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm="head", rope_only_local=True),
        sparse=_listed,
        router="grouped",
        shared="after",
        shared_width="*num_shared_experts",
    ),
    "ernie4_5_moe": Mixture(
        shape=Shape(
            qkv_bias="use_bias",
            o_bias="use_bias",
            mlp_bias="use_bias",
            rope_fp32=True,
            rope_pairs=True,
            rope_float=True,
        ),
        router="ernie",
        shared="before",
        shared_width="*moe_num_shared_experts",
        gate_after=False,
        sparse=_ernie_sparse,
    ),
    "hunyuan_v1_moe": Mixture(
        shape=Shape(
            mlp_bias=False, qk_norm="head", norm_after_rope=True, qk_names=("query_layernorm", "key_layernorm")
        ),
        router="softmax-float",
        normalise=True,
        width="intermediate_size",
        top_k="moe_topk",
        shared="before",
        shared_width="intermediate_size",
        shared_name="shared_mlp",
        gate_name="gate.wg",
        gate_after=False,
    ),
    "hy_v3": Mixture(
        shape=Shape(qk_norm="head"),
        sparse=_listed,
        shared="after",
        shared_width="*num_shared_experts",
        gate_after=False,
    ),
    "phimoe": Mixture(
        shape=Shape(norm="layer", mlp_bias=False),
        router="sparsemixer",
        experts="num_local_experts",
        width="intermediate_size",
        gate_name="router",
        gate_after=False,
    ),
}
TYPES["sarvam_moe"], TYPES["granitemoe_swa"] = TYPES["glm4_moe"], TYPES["granitemoeshared"]
"""model_type -> mixture. A type missing here runs as qwen3_moe without norms of q and k."""


def mixture_of(a: Architecture) -> Mixture:
    """The row of a model type; a plain Qwen-like mixture where there is none."""
    if EXPERT_MODULES in a.traits:
        return TYPES["deepseek"]
    if a.model_type in ("glm4_moe", "sarvam_moe") and not a.get("use_qk_norm", False):
        return TYPES["glm4_moe:plain"]
    return TYPES.get(a.model_type, Mixture())
