"""What PEFT's methods adapt where a config names no modules, as far as their tables are not LoRA's.

Source: peft 0.21 utils/constants.py. LoRA's own table is in adapters.py.
"""

from __future__ import annotations

from memlint.models.architecture import Architecture

Targets = dict[str, tuple[str, ...]]

_IA3_TARGETS: dict[str, tuple[str, ...]] = {
    "t5": ("k", "v", "wo"),
    "mt5": ("k", "v", "wi_1"),
    "gpt2": ("c_attn", "mlp.c_proj"),
    "bloom": ("query_key_value", "mlp.dense_4h_to_h"),
    "roberta": ("key", "value", "output.dense"),
    "opt": ("q_proj", "k_proj", "fc2"),
    "gptj": ("q_proj", "v_proj", "fc_out"),
    "gpt_neox": ("query_key_value", "dense_4h_to_h"),
    "gpt_neo": ("q_proj", "v_proj", "c_proj"),
    "bart": ("q_proj", "v_proj", "fc2"),
    "gpt_bigcode": ("c_attn", "mlp.c_proj"),
    "llama": ("k_proj", "v_proj", "down_proj"),
    "mistral": ("k_proj", "v_proj", "down_proj"),
    "mixtral": ("k_proj", "v_proj", "w2"),
    "bert": ("key", "value", "output.dense"),
    "deberta-v2": ("key_proj", "value_proj", "output.dense"),
    "deberta": ("in_proj", "output.dense"),
    "falcon": ("query_key_value", "dense_4h_to_h"),
    "phi": ("q_proj", "v_proj", "fc2"),
}
"""utils/constants.py TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING, where it is not _IA3_OTHERS."""
_IA3_OTHERS = ("q_proj", "v_proj", "down_proj")
_MANY: Targets = {
    "t5": ("q", "k", "v", "o", "wi", "wo"),
    "mt5": ("q", "k", "v", "o", "wi_0", "wi_1", "wo"),
    "bart": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "deberta-v2": ("query_proj", "key_proj", "value_proj", "dense"),
}
_GPT2: Targets = {"gpt2": ("mlp.c_proj",), "gpt_bigcode": ("mlp.c_proj",)}
_PHI: Targets = {"phi": ("q_proj", "v_proj")}
_TABLES: dict[str, Targets] = {
    "adalora": {**_MANY, "roberta": ("query", "key", "value", "dense")},
    "vblora": _MANY,
    "fourierft": _GPT2,
    "c3a": _GPT2,
    "vera": _PHI,
    "shira": _PHI,
    "ia3": _IA3_TARGETS,
}
"""Method -> TRANSFORMERS_MODELS_TO_<method>_TARGET_MODULES_MAPPING where it is not LoRA's."""


def default_targets(method: str, architecture: Architecture | None) -> tuple[str, ...] | None:
    """Modules that PEFT adapts where a config names none and the method has a table of its own; None: LoRA's table."""
    kind = architecture.model_type if architecture is not None else ""
    return _TABLES.get(method, {}).get(kind, _IA3_OTHERS if method == "ia3" else None)


_LLAMA = ("input_layernorm", "post_attention_layernorm", "norm")
_GEMMA = (*_LLAMA, "pre_feedforward_layernorm", "post_feedforward_layernorm")
_NORMS: Targets = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "qwen2": ("post_attention_layernorm",),
    "qwen3": ("post_attention_layernorm",),
    "bloom": ("input_layernorm", "post_attention_layernorm", "ln_f"),
    "falcon": ("input_layernorm", "post_attention_layernorm", "ln_f"),
    "t5": ("layer_norm", "final_layer_norm"),
    "mt5": ("layer_norm", "final_layer_norm"),
    "bart": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    "gpt2": ("ln_1", "ln_2", "ln_f"),
    "gptj": ("ln_1", "ln_f"),
    "phi": ("input_layernorm", "final_layernorm"),
}
"""TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING."""
_OTHER_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "norm",
    "final_layernorm", "ln_1", "ln_2", "ln_f", "layer_norm", "final_layer_norm", "self_attn_layer_norm",
    "encoder_attn_layer_norm", "layernorm", "LayerNorm", "layernorm_before", "layernorm_after",
)  # fmt: skip
"""What stands for the norms that a config must name for a type without an entry there."""


def tuned_norms(architecture: Architecture | None) -> tuple[str, ...]:
    """What LN tuning copies and trains."""
    return _NORMS.get(architecture.model_type if architecture is not None else "", _OTHER_NORMS)
