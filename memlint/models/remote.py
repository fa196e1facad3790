"""model_types that exist only as code on the hub (``trust_remote_code``), and what they are computed as.

memlint never runs that code: sizes are read by the names the remote config uses, and the shape is that of the nearest
class of transformers, but for what ``traits`` say. Where size and shape are not the same, ``approximate`` says what
differs.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.models.traits import (
    ALIBI_MASK,
    CHATGLM,
    EXPERT_MODULES,
    LOSS_IN_OWN_DTYPE,
    NORMED_HEAD,
    PACKED,
    SPLIT,
    TOKENS_FIRST,
    UNEVEN_LAYERS,
)
from memlint.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Remote:
    """A model_type that only exists as code on the hub: what it is computed as."""

    like: str
    """model_type of transformers whose class defaults and family serve."""
    approximate: str | None = None
    """What differs; None where shape and size are the same."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its own field name -> the field of ``like``."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields that differ from the class defaults of ``like``."""
    traits: frozenset[str] = frozenset()
    """What its code does unlike the class of ``like``."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Linear layers of ``like`` -> what its code calls them. Several may be one: an adapter then counts on each."""


OWN_LOSS = frozenset({LOSS_IN_OWN_DTYPE})
UNEVEN = frozenset({UNEVEN_LAYERS})


def _fused(name: str, **others: str) -> dict[str, str]:
    """Names where queries, keys and values are one product."""
    return {"q_proj": name, "k_proj": name, "v_proj": name, **others}


CHATGLM_3_VOCABULARY = 65024
"""padded_vocab_size of ChatGLM 2 and 3, which tells them from GLM-4 of the same model_type."""
BAICHUAN_2_VOCABULARY = 125696
"""vocab_size that tells Baichuan 2 from its forerunner of the same model_type (config.json of either)."""

REMOTE: dict[str, Remote] = {
    # InternLM2 is Llama with one fused wqkv matrix: the same elements (modeling_internlm2.py, revision of 2024-07).
    "internlm2": Remote(
        "llama",
        names={"bias": "attention_bias"},
        modules=_fused("wqkv", o_proj="wo", gate_proj="w1", up_proj="w3", down_proj="w2"),
    ),
    # InternLM has q/k/v/o biases (config key `bias`, default true).
    "internlm": Remote("llama", names={"bias": "attention_bias"}, values={"attention_bias": True}),
    "xverse": Remote("llama"),
    "aquila": Remote("llama"),
    "skywork": Remote("llama"),
    "Yi": Remote("llama"),
    "decapoda": Remote("llama"),
    "baichuan": Remote("llama", names={"model_max_length": "max_position_embeddings"}, traits=OWN_LOSS | {PACKED}),
    # MiniCPM scales embeddings, residuals and logits of a Llama; ties its head.
    "minicpm": Remote("llama", values={"tie_word_embeddings": True}),
    # Orion uses LayerNorm with bias in place of RMSNorm.
    "orion": Remote("llama", "LayerNorm is computed as RMSNorm"),
    # Qwen (first generation): biases on q, k, v only; intermediate_size counts both gated halves.
    "qwen": Remote(
        "qwen2",
        names={"seq_length": "max_position_embeddings", "attn_dropout_prob": "attention_dropout"},
        values={"tie_word_embeddings": False, "num_key_value_heads": None},
        traits=OWN_LOSS | {SPLIT},
        modules={"qkv_proj": "c_attn", "o_proj": "c_proj", "gate_proj": "w2", "up_proj": "w1", "down_proj": "c_proj"},
    ),
    "mimo": Remote("qwen2", "the next-token-prediction layers are left out"),
    "kimi_k2": Remote("deepseek_v3"),
    # DeepSeek MoE (modeling_deepseek.py of deepseek-moe-16b-base) has the fields of GLM 4's mixture, heads without
    # norms, all of their width rotated.
    "deepseek": Remote(
        "glm4_moe",
        "its experts are taken to get equally many tokens",
        values={"use_qk_norm": False, "partial_rotary_factor": 1.0, "num_nextn_predict_layers": 0},
        traits=frozenset({EXPERT_MODULES}),
    ),
    "chatglm": Remote(
        "glm",
        names={
            "num_layers": "num_hidden_layers",
            "padded_vocab_size": "vocab_size",
            "ffn_hidden_size": "intermediate_size",
            "multi_query_group_num": "num_key_value_heads",
            "kv_channels": "head_dim",
            "seq_length": "max_position_embeddings",
            "add_qkv_bias": "attention_bias",
        },
        traits=frozenset({CHATGLM}),
    ),
    "phi3small": Remote(
        "phi3",
        "block-sparse attention and gated GELU are computed as Phi-3",
        names={"ff_intermediate_size": "intermediate_size"},
        modules={"qkv_proj": "query_key_value", "o_proj": "dense", "gate_up_proj": "up_proj"},
    ),
    "phi3_v": Remote("phi3", "the image tower is left out", names={}),
    "phi-msft": Remote("phi", modules=_fused("Wqkv", dense="out_proj")),
    "mixformer-sequential": Remote("phi", modules=_fused("Wqkv", dense="out_proj")),
    "stablelm_epoch": Remote("stablelm"),
    "RefinedWeb": Remote("falcon", names={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}),
    "RefinedWebModel": Remote("falcon", names={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}),
    "nemotron-nas": Remote("llama", traits=UNEVEN),
    "deci": Remote("llama", traits=UNEVEN),
    "decilm": Remote("llama", traits=UNEVEN),
    "openelm": Remote(
        "llama",
        "its layers differ in width; computed with the widest",
        names={"model_dim": "hidden_size", "num_transformer_layers": "num_hidden_layers"},
    ),
    "btlm": Remote("gpt2"),
    "jais": Remote("gpt2", "gated activations and ALiBi are computed as GPT-2"),
    "llava_llama": Remote("llava", "the image tower is taken from the class defaults"),
    "llava_qwen": Remote("qwen2", "the image tower is left out"),
    "llava_mistral": Remote("mistral", "the image tower is left out"),
    "internvl_chat": Remote(
        "internvl", "the image tower is computed as InternVL's own port", names={"llm_config": "text_config"}
    ),
    "deepseek_vl_v2": Remote("deepseek_v2", "the image tower is left out"),
    "minicpmv": Remote("qwen2", "the image tower is left out"),
    "molmo": Remote("qwen2", "the image tower is left out"),
    "kimi_vl": Remote("kimi_k25", "the image tower is computed as that of Kimi K2.5"),
    "kimi_k3": Remote("kimi_linear", "computed as Kimi Linear"),
    "minimax_m3": Remote("minimax_m2", "computed as MiniMax M2"),
    "step3_text": Remote("step3p5", "computed as Step 3.5"),
    "bailing_moe": Remote(
        "qwen2_moe",
        "computed as a mixture of experts of the Qwen2 shape",
        modules=_fused("query_key_value", o_proj="dense"),
    ),
    "bailing_moe_v2": Remote(
        "glm4_moe",
        "computed as GLM 4 MoE",
        names={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        modules=_fused("query_key_value", o_proj="dense"),
    ),
    "telechat": Remote(
        "llama",
        "computed as Llama",
        modules={"q_proj": "query", "k_proj": "key_value", "v_proj": "key_value", "o_proj": "dense"},
    ),
    "codeshell": Remote("gpt2", "grouped keys and values are computed as whole"),
    "plamo": Remote("llama", "computed as Llama"),
    "hunyuan": Remote("hunyuan_v1_moe", "computed as HunYuan V1"),
}


def traits_of(model_type: str, remote: Remote, stated: Mapping[str, Any]) -> frozenset[str]:
    """Return the traits of a model of this type; fields of its config tell editions of one type apart."""
    traits = remote.traits
    if model_type == "chatglm" and stated.get("padded_vocab_size") == CHATGLM_3_VOCABULARY:
        traits |= {TOKENS_FIRST}
    if model_type == "baichuan":
        if stated.get("vocab_size") == BAICHUAN_2_VOCABULARY:
            traits |= {NORMED_HEAD}
        # The 13B's config.json, of either edition, has `model_max_length` alone.
        if "max_position_embeddings" not in stated:
            traits |= {ALIBI_MASK}
    return traits
