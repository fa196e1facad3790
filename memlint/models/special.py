"""What transformers' config classes compute in ways that the rules of defaults.jsonl cannot say.

Each function mirrors the ``__post_init__`` or a property of one class (transformers 5.24,
``models/<type>/configuration_<type>.py``). ``before`` runs ahead of the rules and reads names that older checkpoints
still use; ``after`` runs last.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping

from memlint.models.derive import MAX_LAYERS

Values = dict[str, Any]
Step = Callable[[Values, Mapping[str, Any]], None]
"""(values so far, fields that the config states) -> changes ``values``."""

LEGACY_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}
"""configuration_utils.py: _LEGACY_LAYER_TYPE_REMAP."""


def layers(values: Mapping[str, Any], name: str = "num_hidden_layers") -> int:
    """Return the number of layers, within bounds; 0 when it is not a number."""
    count = values.get(name)
    return count if isinstance(count, int) and 0 <= count <= MAX_LAYERS else 0


def _rename(**names: str) -> Step:
    def step(values: Values, stated: Mapping[str, Any]) -> None:
        for old, new in names.items():
            if stated.get(old) is not None:
                values[new] = stated[old]

    return step


def _sliding_after_max_window(values: Values, stated: Mapping[str, Any]) -> None:
    """qwen2, qwen3 and the text parts of Qwen's vision models: window only where it is switched on."""
    if not values.get("use_sliding_window"):
        values["sliding_window"] = None
    if stated.get("layer_types") is None:
        window, first = values.get("sliding_window"), values.get("max_window_layers") or 0
        values["layer_types"] = [
            "sliding_attention" if window is not None and i >= first else "full_attention" for i in range(layers(values))
        ]


def _qwen2_moe(values: Values, stated: Mapping[str, Any]) -> None:
    if not values.get("use_sliding_window"):
        values["sliding_window"] = 0
    if stated.get("layer_types") is None:
        on, last = values.get("use_sliding_window"), values.get("max_window_layers") or 0
        values["layer_types"] = [
            "sliding_attention" if (i + 1) % 2 and i < last and on else "full_attention" for i in range(layers(values))
        ]


def _window_only_when_used(values: Values, stated: Mapping[str, Any]) -> None:
    if not values.get("use_sliding_window"):
        values["sliding_window"] = None


def _smollm3(values: Values, stated: Mapping[str, Any]) -> None:
    if stated.get("layer_types") is None:
        windowed = values.get("use_sliding_window") and values.get("sliding_window") is not None
        rope = values.get("no_rope_layers") or []
        values["layer_types"] = ["sliding_attention" if windowed and not has else "full_attention" for has in rope]


def _llama4_text(values: Values, stated: Mapping[str, Any]) -> None:
    interval, step = values.get("no_rope_layer_interval") or 4, values.get("interleave_moe_layer_step") or 1
    if not stated.get("no_rope_layers"):
        values["no_rope_layers"] = [int((i + 1) % interval != 0) for i in range(layers(values))]
    if stated.get("moe_layers") is None:
        values["moe_layers"] = list(range(step - 1, layers(values), step))
    if stated.get("layer_types") is None:
        chunk = values.get("attention_chunk_size")
        values["layer_types"] = [
            "chunked_attention" if rope and chunk is not None else "full_attention" for rope in values["no_rope_layers"]
        ]


def _gpt_neo(values: Values, stated: Mapping[str, Any]) -> None:
    kinds: list[str] = []
    for item in values.get("attention_types") or [[["global", "local"], 12]]:
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], list) and isinstance(item[1], int):
            kinds += item[0] * min(max(item[1], 0), MAX_LAYERS)
    values["attention_layers"] = kinds[:MAX_LAYERS]


def _gpt_bigcode(values: Values, stated: Mapping[str, Any]) -> None:
    values["num_key_value_heads"] = 1 if values.get("multi_query") else values.get("n_head")


def _falcon(values: Values, stated: Mapping[str, Any]) -> None:
    """FalconAttention (modeling_falcon.py): grouped heads only in the new architecture or without multi_query."""
    grouped = values.get("new_decoder_architecture") or not values.get("multi_query")
    values["num_key_value_heads"] = values.get("num_kv_heads") if grouped else 1
    values["rotary"] = not values.get("alibi")
    values["intermediate_size"] = values.get("ffn_hidden_size")
    values.setdefault("num_ln_in_parallel_attn", 2 if values.get("new_decoder_architecture") else 1)


def _jamba(values: Values, stated: Mapping[str, Any]) -> None:
    period, offset = values.get("expert_layer_period") or 1, values.get("expert_layer_offset") or 0
    values["layers_num_experts"] = [
        values.get("num_experts", 1) if i % period == offset else 1 for i in range(layers(values))
    ]


def _bamba(values: Values, stated: Mapping[str, Any]) -> None:
    attention = set(values.get("attn_layer_indices") or ())
    values["layers_block_type"] = [
        "full_attention" if i in attention else "linear_attention" for i in range(layers(values))
    ]


def _falcon_h1(values: Values, stated: Mapping[str, Any]) -> None:
    width = values.get("mamba_d_ssm") or values["mamba_expand"] * values["hidden_size"]
    values["mamba_intermediate_size"] = int(width)
    if values.get("mamba_d_head") in (None, "auto"):
        values["mamba_d_head"] = int(width) // values["mamba_n_heads"]


def _lfm2(values: Values, stated: Mapping[str, Any]) -> None:
    _rename(tie_embedding="tie_word_embeddings", block_ff_dim="intermediate_size")(values, stated)
    if stated.get("layer_types") is None:
        full = values.get("full_attn_idxs")
        values["layer_types"] = [
            "full_attention" if full is None or i in full else "conv" for i in range(layers(values))
        ]


_NEMOTRON_H = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def _nemotron_h_before(values: Values, stated: Mapping[str, Any]) -> None:
    _rename(
        mamba_n_groups="n_groups",
        mamba_d_conv="conv_kernel",
        mamba_expand="expand",
        mamba_conv_bias="use_conv_bias",
        mamba_chunk_size="chunk_size",
    )(values, stated)
    pattern = stated.get("hybrid_override_pattern")
    if isinstance(pattern, str) and stated.get("layers_block_type") is None and stated.get("layer_types") is None:
        values["layers_block_type"] = [_NEMOTRON_H.get(letter, "mlp") for letter in pattern[:MAX_LAYERS]]


def _nemotron_h_after(values: Values, stated: Mapping[str, Any]) -> None:
    values["num_hidden_layers"] = len(values.get("layers_block_type") or ())


def _kimi_linear(values: Values, stated: Mapping[str, Any]) -> None:
    inner = stated.get("linear_attn_config")
    inner = inner if isinstance(inner, Mapping) else {}
    for old, new in (
        ("head_dim", "linear_head_dim"),
        ("num_heads", "linear_num_heads"),
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    ):
        if inner.get(old) is not None:
            values[new] = inner[old]
    if stated.get("layer_types") is None:
        full = inner.get("full_attn_layers")
        if isinstance(full, list):
            values["layer_types"] = [
                "full_attention" if i + 1 in full else "linear_attention" for i in range(layers(values))
            ]
        else:
            values["layer_types"] = [
                "full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers(values))
            ]


def _ernie4_5_moe(values: Values, stated: Mapping[str, Any]) -> None:
    if values.get("moe_layer_end_index", -1) == -1:
        values["moe_layer_end_index"] = layers(values) - 1


def _mimo_v2_flash(values: Values, stated: Mapping[str, Any]) -> None:
    if stated.get("layer_types") is None:
        values["layer_types"] = [
            "full_attention" if i == 0 or not (i + 1) % 6 else "sliding_attention" for i in range(layers(values))
        ]
    if stated.get("sliding_window_size") is not None:
        values["sliding_window"] = stated["sliding_window_size"] + 1


def _dots1(values: Values, stated: Mapping[str, Any]) -> None:
    if stated.get("layer_types") is None:
        first, window = values.get("max_window_layers") or 0, values.get("sliding_window")
        values["layer_types"] = [
            "sliding_attention" if window is not None and i >= first else "full_attention" for i in range(layers(values))
        ]


def _gemma_bidirectional(values: Values, stated: Mapping[str, Any]) -> None:
    if values.get("use_bidirectional_attention") is True and values.get("sliding_window"):
        values["sliding_window"] = values["sliding_window"] // 2 + 1


def _gemma3n(values: Values, stated: Mapping[str, Any]) -> None:
    width = values.get("intermediate_size")
    if isinstance(width, int):
        values["intermediate_size"] = [width] * layers(values)


def _last_layer_full(values: Values, stated: Mapping[str, Any]) -> None:
    """gemma4_text: every sixth layer and the last one attend to everything."""
    if stated.get("layer_types") is None:
        values["layer_types"] = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers(values))]
    if values.get("layer_types"):
        values["layer_types"] = [*values["layer_types"][:-1], "full_attention"]


def _exaone4(values: Values, stated: Mapping[str, Any]) -> None:
    if values.get("sliding_window") is None and stated.get("layer_types") is None:
        values["layer_types"] = ["full_attention"] * layers(values)


def _recurrent_gemma(values: Values, stated: Mapping[str, Any]) -> None:
    kinds = values.get("block_types") or ["recurrent", "recurrent", "attention"]
    values["layers_block_type"] = [
        "linear_attention" if kinds[i % len(kinds)] == "recurrent" else "sliding_attention" for i in range(layers(values))
    ]
    values["layer_types"] = values["layers_block_type"]


def _zamba(values: Values, stated: Mapping[str, Any]) -> None:
    values.setdefault("attention_head_dim", 2 * values["hidden_size"] // values["num_attention_heads"])
    if stated.get("layers_block_type") is None:
        period, offset = values.get("attn_layer_period") or 6, values.get("attn_layer_offset") or 4
        values["layers_block_type"] = ["linear_attention", "linear_attention", "hybrid"] + [
            "hybrid" if i % period == offset else "linear_attention" for i in range(max(layers(values) - 3, 0))
        ]


def _zamba2(values: Values, stated: Mapping[str, Any]) -> None:
    values["attention_head_dim"] = values["head_dim"] = 2 * values["hidden_size"] // values["num_attention_heads"]
    values["layer_types"] = values.get("layers_block_type")


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
    """First-generation Qwen: intermediate_size counts both gated halves (modeling_qwen.py: ``intermediate_size // 2``)."""
    if isinstance(values.get("intermediate_size"), int):
        values["intermediate_size"] //= 2
    values["layer_types"] = ["full_attention"] * layers(values)


def _deepseek(values: Values, stated: Mapping[str, Any]) -> None:
    """First-generation DeepSeek MoE: shared experts side by side, the first layers dense."""
    shared = stated.get("n_shared_experts") or 0
    values["num_experts"] = stated.get("n_routed_experts") or values.get("num_experts")
    values["shared_expert_intermediate_size"] = int(shared) * int(values.get("moe_intermediate_size") or 0)
    values["mlp_only_layers"] = list(range(min(int(stated.get("first_k_dense_replace") or 0), layers(values))))


def _paligemma(values: Values, stated: Mapping[str, Any]) -> None:
    text, vision = values.get("text_config"), values.get("vision_config")
    if isinstance(text, dict) and isinstance(vision, dict):
        side = int(vision.get("image_size") or 0) // max(int(vision.get("patch_size") or 1), 1)
        text["num_image_tokens"] = side * side
        if text.get("use_bidirectional_attention") is None:
            text["use_bidirectional_attention"] = True
        vision["projection_dim"] = values.get("projection_dim")


def _tied_if_text_is(values: Values, stated: Mapping[str, Any]) -> None:
    """Before transformers 5 these classes kept tie_word_embeddings in the text part."""
    text = values.get("text_config")
    if not values.get("tie_word_embeddings") and isinstance(text, Mapping) and text.get("tie_word_embeddings"):
        values["tie_word_embeddings"] = True


BEFORE: dict[str, Step] = {
    "bloom": _rename(n_embed="hidden_size"),
    "falcon": _rename(n_embed="hidden_size", n_head_kv="num_kv_heads"),
    "nemotron_h": _nemotron_h_before,
    "glm_moe_dsa": _rename(num_experts="n_routed_experts"),
    "deepseek_v32": _rename(num_experts="n_routed_experts"),
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
        _sliding_after_max_window,
    ),
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _window_only_when_used,
    "smollm3": _smollm3,
    "llama4_text": _llama4_text,
    "gpt_neo": _gpt_neo,
    "gpt_bigcode": _gpt_bigcode,
    "falcon": _falcon,
    "jamba": _jamba,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "nemotron_h": _nemotron_h_after,
    "kimi_linear": _kimi_linear,
    "ernie4_5_moe": _ernie4_5_moe,
    "mimo_v2_flash": _mimo_v2_flash,
    "dots1": _dots1,
    "gemma3_text": _gemma_bidirectional,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _last_layer_full,
    "exaone4": _exaone4,
    "recurrent_gemma": _recurrent_gemma,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "mpt": _mpt,
    "dbrx": _dbrx,
    "mamba2": _mamba2,
    "paligemma": _paligemma,
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
