"""What transformers' config classes compute in ways that the rules of defaults.jsonl cannot say.

Each function mirrors the ``__post_init__`` or a property of one class (transformers 5.24,
``models/<type>/configuration_<type>.py``). ``before`` runs ahead of the rules and reads names that older checkpoints
still use; ``after`` runs last.
"""

from __future__ import annotations

import math
from typing import Any, Mapping

from memlint.models import special_layers as kinds
from memlint.models.special_layers import Step, Values, layers, rename

LEGACY_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}
"""configuration_utils.py: _LEGACY_LAYER_TYPE_REMAP."""


def _gpt_bigcode(values: Values, stated: Mapping[str, Any]) -> None:
    values["num_key_value_heads"] = 1 if values.get("multi_query") else values.get("n_head")


def _falcon(values: Values, stated: Mapping[str, Any]) -> None:
    """FalconAttention (modeling_falcon.py): grouped heads only in the new architecture or without multi_query."""
    grouped = values.get("new_decoder_architecture") or not values.get("multi_query")
    values["num_key_value_heads"] = values.get("num_kv_heads") if grouped else 1
    values["rotary"] = not values.get("alibi")
    values["intermediate_size"] = values.get("ffn_hidden_size")
    values.setdefault("num_ln_in_parallel_attn", 2 if values.get("new_decoder_architecture") else 1)


def _falcon_h1(values: Values, stated: Mapping[str, Any]) -> None:
    width = values.get("mamba_d_ssm") or values["mamba_expand"] * values["hidden_size"]
    values["mamba_intermediate_size"] = int(width)
    if values.get("mamba_d_head") in (None, "auto"):
        values["mamba_d_head"] = int(width) // values["mamba_n_heads"]


def _gemma3n(values: Values, stated: Mapping[str, Any]) -> None:
    width = values.get("intermediate_size")
    if isinstance(width, int):
        values["intermediate_size"] = [width] * layers(values)


def _zamba2(values: Values, stated: Mapping[str, Any]) -> None:
    values["attention_head_dim"] = values["head_dim"] = 2 * values["hidden_size"] // values["num_attention_heads"]
    values["layer_types"] = values.get("layers_block_type")


def _olmo_hybrid(values: Values, stated: Mapping[str, Any]) -> None:
    """OlmoHybridConfig: keys take three quarters of a head's share of the width, values twice as much; a model of fewer
    than four layers has its full attention in the last one.
    """
    kinds = values.get("layer_types")
    if not stated.get("layer_types") and kinds and "full_attention" not in kinds:
        values["layer_types"] = [*kinds[:-1], "full_attention"]
    if values.get("linear_key_head_dim") is None:
        values["linear_key_head_dim"] = int(0.75 * values["hidden_size"] / values["linear_num_key_heads"])
    if values.get("linear_value_head_dim") is None:
        values["linear_value_head_dim"] = 2 * values["linear_key_head_dim"]


def _bailing_hybrid(values: Values, stated: Mapping[str, Any]) -> None:
    """The class reads head_dim for its linear layers before it sets head_dim to the rotary share."""
    values["linear_head_dim"] = stated.get("head_dim") or 128


def _falcon_mamba(values: Values, stated: Mapping[str, Any]) -> None:
    values["use_mambapy"] = bool(stated.get("use_falcon_mambapy"))


def _t5(values: Values, stated: Mapping[str, Any]) -> None:
    """T5Config: ``gated-gelu`` is two input matrices and gelu_new.

    The class forces tie_word_embeddings to true and reads a stated false as "do not scale the decoder's output"; but
    from_pretrained leaves a head untied that differs from the embedding in the checkpoint (modeling_utils.py:
    tie_weights), which is what a stated false means in every published T5 of that kind. So the statement is kept.
    """
    words = str(values.get("feed_forward_proj") or "relu").split("-")
    values["is_gated_act"] = words[0] == "gated"
    values["dense_act_fn"] = "gelu_new" if words == ["gated", "gelu"] else words[-1]
    values["hidden_act"] = values["dense_act_fn"]
    values["tie_word_embeddings"] = stated.get("tie_word_embeddings") is not False
    values["scale_decoder_outputs"] = values["tie_word_embeddings"]


def _mpt(values: Values, stated: Mapping[str, Any]) -> None:
    inner = values.get("attn_config")
    inner = inner if isinstance(inner, Mapping) else {}
    values["intermediate_size"] = int(values["d_model"] * (values.get("expansion_ratio") or 4))
    values["attention_dropout"] = inner.get("attn_pdrop") or 0.0


def _dbrx(values: Values, stated: Mapping[str, Any]) -> None:
    attention, experts = values.get("attn_config"), values.get("ffn_config")
    if isinstance(attention, Mapping):
        values["num_key_value_heads"] = attention.get("kv_n_heads") or values.get("n_heads")
        values["attention_dropout"] = attention.get("attn_pdrop") or 0.0
    if isinstance(experts, Mapping):
        values["ffn_config"] = experts = {**experts, "hidden_size": values.get("d_model")}
        values["intermediate_size"] = experts.get("ffn_hidden_size")
        values["num_experts"] = values["num_local_experts"] = experts.get("moe_num_experts")
        values["num_experts_per_tok"] = experts.get("moe_top_k")
        activation = experts.get("ffn_act_fn")
        values["hidden_act"] = activation.get("name", "silu") if isinstance(activation, Mapping) else "silu"


def _mamba2(values: Values, stated: Mapping[str, Any]) -> None:
    if values.get("time_step_rank") in (None, "auto"):
        values["time_step_rank"] = math.ceil(values["hidden_size"] / 16)
    values.setdefault("intermediate_size", int(values["expand"] * values["hidden_size"]))


def _qwen(values: Values, stated: Mapping[str, Any]) -> None:
    """First-generation Qwen: intermediate_size counts both gated halves (modeling_qwen.py halves it)."""
    if isinstance(values.get("intermediate_size"), int):
        values["intermediate_size"] //= 2
    values["layer_types"] = ["full_attention"] * layers(values)


def _deepseek(values: Values, stated: Mapping[str, Any]) -> None:
    """DeepseekConfig: dense throughout unless it states routed experts, no shared experts unless it states them."""
    values["n_routed_experts"] = stated.get("n_routed_experts") or 0
    values["n_shared_experts"] = stated.get("n_shared_experts") or 0
    values["num_experts_per_tok"] = stated.get("num_experts_per_tok")
    values["norm_topk_prob"] = bool(stated.get("norm_topk_prob"))
    dense = stated.get("first_k_dense_replace") or 0
    values["first_k_dense_replace"] = dense if values["n_routed_experts"] else layers(values)


def _nomic_bert(values: Values, stated: Mapping[str, Any]) -> None:
    """NomicBertConfig sets tie_word_embeddings beside its fields."""
    values["tie_word_embeddings"] = stated.get("tie_word_embeddings") is not False


def _paligemma(values: Values, stated: Mapping[str, Any]) -> None:
    text, vision = values.get("text_config"), values.get("vision_config")
    if isinstance(text, dict) and isinstance(vision, dict):
        side = int(vision.get("image_size") or 0) // max(int(vision.get("patch_size") or 1), 1)
        text["num_image_tokens"] = side * side
        if text.get("use_bidirectional_attention") is None:
            text["use_bidirectional_attention"] = True
        vision["projection_dim"] = values.get("projection_dim")


def _t5gemma(values: Values, stated: Mapping[str, Any]) -> None:
    """T5GemmaConfig says of its second part that it is the decoder, whatever that part states."""
    decoder = values.get("decoder")
    if isinstance(decoder, dict):
        decoder["is_decoder"] = True


def _tied_if_text_is(values: Values, stated: Mapping[str, Any]) -> None:
    """Before transformers 5 these classes kept tie_word_embeddings in the text part."""
    text = values.get("text_config")
    if not values.get("tie_word_embeddings") and isinstance(text, Mapping) and text.get("tie_word_embeddings"):
        values["tie_word_embeddings"] = True


BEFORE: dict[str, Step] = {
    "bloom": rename(n_embed="hidden_size"),
    "falcon": rename(n_embed="hidden_size", n_head_kv="num_kv_heads"),
    "nemotron_h": kinds.nemotron_h_before,
    "glm_moe_dsa": rename(num_experts="n_routed_experts"),
    "deepseek_v32": rename(num_experts="n_routed_experts"),
    "qwen": _qwen,
    "deepseek": _deepseek,
}

AFTER: dict[str, Step] = {
    **dict.fromkeys(
        (
            "qwen2",
            "qwen3",
            "qwen2_vl_text",
            "qwen2_5_vl_text",
            "qwen2_5_omni_text",
            "deepseek_ocr2_encoder",
            "neomme",
        ),
        kinds.sliding_after_max_window,
    ),
    "qwen2_moe": kinds.qwen2_moe,
    "qwen3_moe": kinds.window_only_when_used,
    "smollm3": kinds.smollm3,
    "llama4_text": kinds.llama4_text,
    "cohere2_moe": kinds.cohere2_moe,
    "gpt_neo": kinds.gpt_neo,
    "gpt_bigcode": _gpt_bigcode,
    "falcon": _falcon,
    "jamba": kinds.jamba,
    "bamba": kinds.bamba,
    "falcon_h1": _falcon_h1,
    "lfm2": kinds.lfm2,
    "lfm2_moe": kinds.lfm2,
    "nemotron_h": kinds.nemotron_h_after,
    "kimi_linear": kinds.kimi_linear,
    "ernie4_5_moe": kinds.ernie4_5_moe,
    "mimo_v2_flash": kinds.mimo_v2_flash,
    "dots1": kinds.dots1,
    "gemma3_text": kinds.gemma_bidirectional,
    "gemma3n_text": _gemma3n,
    "gemma4_text": kinds.last_layer_full,
    "gemma4_unified_text": kinds.last_layer_full,
    "exaone4": kinds.exaone4,
    "recurrent_gemma": kinds.recurrent_gemma,
    "zamba": kinds.zamba,
    "zamba2": _zamba2,
    "mpt": _mpt,
    "dbrx": _dbrx,
    "mamba2": _mamba2,
    "nomic_bert": _nomic_bert,
    "olmo_hybrid": _olmo_hybrid,
    "falcon_mamba": _falcon_mamba,
    "bailing_hybrid": _bailing_hybrid,
    "paligemma": _paligemma,
    "t5gemma": _t5gemma,
    **dict.fromkeys(("resnet", "convnext", "convnextv2", "segformer"), kinds.stages),
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pop2piano"), _t5),
    **dict.fromkeys(
        (
            "llava",
            "llava_next_video",
            "llava_onevision",
            "qwen2_vl",
            "qwen2_5_vl",
            "glm4v",
            "glm46v",
            "glm4v_moe",
            "fast_vlm",
            "minimax_m3_vl",
            "hunyuan_vl",
            "glm_ocr",
            "paddleocr_vl",
            "perception_lm",
            "video_llama_3",
        ),
        _tied_if_text_is,
    ),
}
