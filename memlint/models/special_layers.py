"""Which layer is of which kind, where the rules of defaults.jsonl cannot say it: see special.py."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any, Callable, Mapping

from memlint.models.fields import MAX_LAYERS

Values = dict[str, Any]
Step = Callable[[Values, Mapping[str, Any]], None]
"""(values so far, fields that the config states) -> changes ``values``."""


def layers(values: Mapping[str, Any], name: str = "num_hidden_layers") -> int:
    """Return the number of layers, within bounds; 0 when it is not a number."""
    count = values.get(name)
    return count if isinstance(count, int) and 0 <= count <= MAX_LAYERS else 0


def _whole_numbers(listed: Any) -> set[int] | None:
    """A list of layers as a set, in which many layers are found quickly; None where it is no list."""
    return {number for number in listed if isinstance(number, int)} if isinstance(listed, list) else None


def rename(**names: str) -> Step:
    """Return a step that reads fields by the names of older checkpoints: ``old="new"``."""

    def step(values: Values, stated: Mapping[str, Any]) -> None:
        for old, new in names.items():
            if stated.get(old) is not None:
                values[new] = stated[old]

    return step


def sliding_after_max_window(values: Values, stated: Mapping[str, Any]) -> None:
    """qwen2, qwen3 and the text parts of Qwen's vision models: window only where it is switched on."""
    if not values.get("use_sliding_window"):
        values["sliding_window"] = None
    if stated.get("layer_types") is None:
        window, first = values.get("sliding_window"), values.get("max_window_layers") or 0
        values["layer_types"] = [
            "sliding_attention" if window is not None and i >= first else "full_attention"
            for i in range(layers(values))
        ]


def qwen2_moe(values: Values, stated: Mapping[str, Any]) -> None:
    """Qwen2 MoE: alternate windows below max_window_layers, where windows are switched on."""
    if not values.get("use_sliding_window"):
        values["sliding_window"] = 0
    if stated.get("layer_types") is None:
        on, last = values.get("use_sliding_window"), values.get("max_window_layers") or 0
        values["layer_types"] = [
            "sliding_attention" if (i + 1) % 2 and i < last and on else "full_attention" for i in range(layers(values))
        ]


def window_only_when_used(values: Values, stated: Mapping[str, Any]) -> None:
    """Qwen3 MoE: no window unless use_sliding_window."""
    if not values.get("use_sliding_window"):
        values["sliding_window"] = None


def smollm3(values: Values, stated: Mapping[str, Any]) -> None:
    """SmolLM3: window in the layers without rotary embedding, where windows are switched on."""
    if stated.get("layer_types") is None:
        windowed = values.get("use_sliding_window") and values.get("sliding_window") is not None
        rope = values.get("no_rope_layers") or []
        values["layer_types"] = ["sliding_attention" if windowed and not has else "full_attention" for has in rope]


def llama4_text(values: Values, stated: Mapping[str, Any]) -> None:
    """Llama 4: which layers have rotary embedding, experts, chunked attention."""
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


def cohere2_moe(values: Values, stated: Mapping[str, Any]) -> None:
    """Cohere 2 MoE: dense layers first, and a pattern of windows that begins anew after them."""
    dense, total = values.pop("first_k_dense_replace", None) or 0, layers(values)
    dense = min(max(dense, 0), total)
    if values.get("layer_types") is None:
        patterns = [values.get(f"{part}sliding_window_pattern") or 1 for part in ("prefix_dense_", "")]
        first = [(i + 1) % patterns[0] for i in range(dense)]
        rest = [(i + 1) % patterns[1] for i in range(total - dense)]
        values["layer_types"] = ["sliding_attention" if local else "full_attention" for local in first + rest]
    if values.get("mlp_layer_types") is None:
        values["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in range(total)]


def gpt_neo(values: Values, stated: Mapping[str, Any]) -> None:
    """GPT-Neo: attention_types ``[[[kind, ...], times], ...]`` written out layer by layer."""
    kinds: list[str] = []
    for item in values.get("attention_types") or [[["global", "local"], 12]]:
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], list) and isinstance(item[1], int):
            written = len(item[0]) * max(item[1], 0)
            kinds += islice(cycle(item[0]), min(written, MAX_LAYERS - len(kinds)))
    values["attention_layers"] = kinds


def jamba(values: Values, stated: Mapping[str, Any]) -> None:
    """Jamba: number of experts of each layer."""
    period, offset = values.get("expert_layer_period") or 1, values.get("expert_layer_offset") or 0
    values["layers_num_experts"] = [
        values.get("num_experts", 1) if i % period == offset else 1 for i in range(layers(values))
    ]


def bamba(values: Values, stated: Mapping[str, Any]) -> None:
    """Bamba: attention in the listed layers, Mamba in the others."""
    attention = set(values.get("attn_layer_indices") or ())
    values["layers_block_type"] = [
        "full_attention" if i in attention else "linear_attention" for i in range(layers(values))
    ]


def lfm2(values: Values, stated: Mapping[str, Any]) -> None:
    """LFM2: attention in the listed layers, short convolution in the others."""
    rename(tie_embedding="tie_word_embeddings", block_ff_dim="intermediate_size")(values, stated)
    if stated.get("layer_types") is None:
        full = _whole_numbers(values.get("full_attn_idxs"))
        values["layer_types"] = [
            "full_attention" if full is None or i in full else "conv" for i in range(layers(values))
        ]


_NEMOTRON_H = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def nemotron_h_before(values: Values, stated: Mapping[str, Any]) -> None:
    """Nemotron-H: names of older checkpoints, and the pattern of letters."""
    rename(
        mamba_n_groups="n_groups",
        mamba_d_conv="conv_kernel",
        mamba_expand="expand",
        mamba_conv_bias="use_conv_bias",
        mamba_chunk_size="chunk_size",
    )(values, stated)
    pattern = stated.get("hybrid_override_pattern")
    if isinstance(pattern, str) and stated.get("layers_block_type") is None and stated.get("layer_types") is None:
        values["layers_block_type"] = [_NEMOTRON_H.get(letter, "mlp") for letter in pattern[:MAX_LAYERS]]


def nemotron_h_after(values: Values, stated: Mapping[str, Any]) -> None:
    """Nemotron-H: as many layers as the list of their kinds is long."""
    values["num_hidden_layers"] = len(values.get("layers_block_type") or ())


def kimi_linear(values: Values, stated: Mapping[str, Any]) -> None:
    """Kimi Linear: linear attention by the lists of linear_attn_config, counted from 1."""
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
        full = _whole_numbers(inner.get("full_attn_layers"))
        if full is not None:
            values["layer_types"] = [
                "full_attention" if i + 1 in full else "linear_attention" for i in range(layers(values))
            ]
        else:
            values["layer_types"] = [
                "full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers(values))
            ]


def ernie4_5_moe(values: Values, stated: Mapping[str, Any]) -> None:
    """ERNIE 4.5 MoE: -1 means up to the last layer."""
    if values.get("moe_layer_end_index", -1) == -1:
        values["moe_layer_end_index"] = layers(values) - 1


def mimo_v2_flash(values: Values, stated: Mapping[str, Any]) -> None:
    """MiMo V2 Flash: the first and every sixth layer attend to everything; the first has no experts."""
    if stated.get("layer_types") is None:
        values["layer_types"] = [
            "full_attention" if i == 0 or not (i + 1) % 6 else "sliding_attention" for i in range(layers(values))
        ]
    if stated.get("mlp_layer_types") is None:
        values["mlp_layer_types"] = ["dense", *["sparse"] * layers(values)][: layers(values)]
    if stated.get("sliding_window_size") is not None:
        values["sliding_window"] = stated["sliding_window_size"] + 1


def dots1(values: Values, stated: Mapping[str, Any]) -> None:
    """dots.llm1: windows from max_window_layers on."""
    if stated.get("layer_types") is None:
        first, window = values.get("max_window_layers") or 0, values.get("sliding_window")
        values["layer_types"] = [
            "sliding_attention" if window is not None and i >= first else "full_attention"
            for i in range(layers(values))
        ]


def gemma_bidirectional(values: Values, stated: Mapping[str, Any]) -> None:
    """Gemma 3 as an encoder: the window counts both sides (exclusive bounds of flash attention)."""
    if values.get("use_bidirectional_attention") is True and values.get("sliding_window"):
        values["sliding_window"] = values["sliding_window"] // 2 + 1


def last_layer_full(values: Values, stated: Mapping[str, Any]) -> None:
    """gemma4_text: every sixth layer and the last one attend to everything."""
    if stated.get("layer_types") is None:
        values["layer_types"] = [
            "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers(values))
        ]
    if values.get("layer_types"):
        values["layer_types"] = [*values["layer_types"][:-1], "full_attention"]


def exaone4(values: Values, stated: Mapping[str, Any]) -> None:
    """EXAONE 4 without a window: every layer attends to everything."""
    if values.get("sliding_window") is None and stated.get("layer_types") is None:
        values["layer_types"] = ["full_attention"] * layers(values)


def recurrent_gemma(values: Values, stated: Mapping[str, Any]) -> None:
    """RecurrentGemma: block_types repeated."""
    kinds = values.get("block_types") or ["recurrent", "recurrent", "attention"]
    values["layers_block_type"] = [
        "linear_attention" if kinds[i % len(kinds)] == "recurrent" else "sliding_attention"
        for i in range(layers(values))
    ]
    values["layer_types"] = values["layers_block_type"]


def zamba(values: Values, stated: Mapping[str, Any]) -> None:
    """Zamba: a hybrid block every attn_layer_period after the first three."""
    values.setdefault("attention_head_dim", 2 * values["hidden_size"] // values["num_attention_heads"])
    if stated.get("layers_block_type") is None:
        period, offset = values.get("attn_layer_period") or 6, values.get("attn_layer_offset") or 4
        values["layers_block_type"] = ["linear_attention", "linear_attention", "hybrid"] + [
            "hybrid" if i % period == offset else "linear_attention" for i in range(max(layers(values) - 3, 0))
        ]


def stages(values: Values, stated: Mapping[str, Any]) -> None:
    """Networks of stages: as wide as the last, as deep as all of them."""
    widths, depths = values.get("hidden_sizes"), values.get("depths")
    if isinstance(widths, list) and widths and isinstance(widths[-1], int):
        values["hidden_size"] = widths[-1]
    if isinstance(depths, list) and all(isinstance(depth, int) and 0 <= depth <= MAX_LAYERS for depth in depths):
        values["num_hidden_layers"] = sum(depths)
