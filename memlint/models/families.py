"""Which ``model_type`` belongs to which family of the estimator, and what remote-code types resemble.

A family is a key into ``memlint.estimate.families``. Types whose forward differs from the family's in something that
costs memory stand in :data:`NEAREST`, with the difference in words; types that nobody has compared are ``unknown``.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": (
        "llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text vaultgemma phi3 olmo olmo2 olmo3 granite"
        " granite_swa smollm3 starcoder2 cohere cohere2 stablelm glm glm4 nemotron exaone4 ernie4_5 hunyuan_v1_dense seed_oss"
        " arcee apertus helium cwm internlm3 persimmon bitnet exaone qwen2_vl_text qwen2_5_vl_text qwen3_vl_text"
        " mllama_text_model iquestcoder jais2 hyperclovax"
    ).split(),
    "gpt2": "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon phi mpt codegen gpt-sw3 openai-gpt biogpt xglm".split(),
    "moe": (
        "mixtral qwen2_moe qwen3_moe qwen3_vl_moe_text olmoe flex_olmo dbrx gpt_oss llama4_text glm4_moe phimoe granitemoe"
        " granitemoeshared minimax_m2 ernie4_5_moe hunyuan_v1_moe dots1 exaone_moe mimo_v2_flash solar_open jetmoe afmoe"
        " sarvam_moe granitemoe_swa cohere2_moe"
    ).split(),
    "mla": "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 minicpm3 glm4_moe_lite glm_moe_dsa longcat_flash youtu".split(),
    "hybrid": (
        "qwen3_next qwen3_5_text qwen3_5_moe_text jamba nemotron_h granitemoehybrid bamba falcon_h1 zamba zamba2 lfm2 lfm2_moe"
        " recurrent_gemma kimi_linear minimax olmo_hybrid"
    ).split(),
    "mamba": "mamba falcon_mamba mamba2".split(),
    "encoder": (
        "bert roberta xlm-roberta xlm-roberta-xl camembert distilbert deberta deberta-v2 modernbert electra albert mpnet ernie"
        " roformer rembert eurobert nomic_bert gte bert-generation megatron-bert roberta-prelayernorm data2vec-text esm"
    ).split(),
    "encoder-decoder": (
        "t5 mt5 umt5 longt5 switch_transformers bart mbart pegasus marian m2m_100 blenderbot blenderbot-small whisper plbart"
        " mvp"
    ).split(),
    "vision": (
        "vit clip clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model siglip2 siglip2_vision_model"
        " siglip2_text_model dinov2 deit beit vit_mae videomae dinov2_with_registers dinov3_vit ijepa"
    ).split(),
    "vision-language": (
        "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe llava llava_next llava_onevision llava_next_video idefics2"
        " idefics3 smolvlm paligemma gemma3 gemma3n gemma4 mllama internvl mistral3 llama4 glm4v glm46v glm4v_moe aya_vision"
        " cohere2_vision kimi_k25 video_llava vipllava got_ocr2 pixtral ovis2 deepseek_vl fuyu aria ernie4_5_vl_moe blip-2"
        " instructblip lfm2_vl minimax_m3_vl step3p7 voxtral qwen2_audio qwen2_5_omni qwen2_5_omni_thinker qwen3_omni_moe"
        " phi4_multimodal perception_lm lighton_ocr paddleocr_vl"
    ).split(),
}  # fmt: skip

NEAREST: dict[str, tuple[str, str]] = {
    "gemma3n_text": ("llama", "alternating updates and per-layer embeddings are not modelled"),
    "gemma4_text": ("llama", "per-layer embeddings and shared keys and values are not modelled"),
    "diffllama": ("llama", "the second attention map is not modelled"),
    "mellum": ("moe", "computed as a mixture of experts of the Qwen shape"),
    "minimax_m3_vl_text": ("moe", "sparse attention is computed as full attention"),
    "step3p5": ("moe", "computed as a mixture of experts of the Qwen shape"),
    "deepseek_v4": ("mla", "compressed attention and hyper-connections are not modelled"),
    "bailing_hybrid": ("hybrid", "computed as a linear-attention hybrid"),
    "rwkv": ("mamba", "computed as a state-space model"),
}
"""model_type -> (family, what is not modelled)."""


class Remote(NamedTuple):
    """A model_type that only exists as code on the hub: what it is computed as."""

    like: str
    """model_type of transformers whose class defaults and family serve."""
    approximate: str | None = None
    """What differs; None where shape and size are the same."""
    names: Mapping[str, str] = {}
    """Its own field name -> the field of ``like``."""
    values: Mapping[str, Any] = {}
    """Fields that differ from the class defaults of ``like``."""


REMOTE: dict[str, Remote] = {
    # InternLM2 is Llama with one fused wqkv matrix: the same elements (modeling_internlm2.py, revision of 2024-07).
    "internlm2": Remote("llama", names={"bias": "attention_bias"}),
    # InternLM has q/k/v/o biases (config key `bias`, default true).
    "internlm": Remote("llama", names={"bias": "attention_bias"}, values={"attention_bias": True}),
    "xverse": Remote("llama"),
    "aquila": Remote("llama"),
    "skywork": Remote("llama"),
    "Yi": Remote("llama"),
    "decapoda": Remote("llama"),
    # Baichuan packs q, k, v into W_pack; the 13B uses ALiBi instead of rotary embeddings; neither changes the elements.
    "baichuan": Remote("llama", names={"model_max_length": "max_position_embeddings"}),
    # MiniCPM scales embeddings, residuals and logits of a Llama; ties its head.
    "minicpm": Remote("llama", values={"tie_word_embeddings": True}),
    # Orion uses LayerNorm with bias in place of RMSNorm.
    "orion": Remote("llama", "LayerNorm is computed as RMSNorm"),
    # Qwen (first generation): biases on q, k, v only; intermediate_size counts both gated halves.
    "qwen": Remote(
        "qwen2",
        names={"seq_length": "max_position_embeddings", "attn_dropout_prob": "attention_dropout"},
        values={"tie_word_embeddings": False},
    ),
    "mimo": Remote("qwen2", "the next-token-prediction layers are left out"),
    "kimi_k2": Remote("deepseek_v3"),
    "deepseek": Remote("qwen2_moe", "shared experts are computed as one of their joint width without gate"),
    "chatglm": Remote(
        "glm",
        "computed as GLM with fused query, key and value",
        names={
            "num_layers": "num_hidden_layers",
            "padded_vocab_size": "vocab_size",
            "ffn_hidden_size": "intermediate_size",
            "multi_query_group_num": "num_key_value_heads",
            "kv_channels": "head_dim",
            "seq_length": "max_position_embeddings",
            "add_qkv_bias": "attention_bias",
        },
    ),
    "phi3small": Remote(
        "phi3",
        "block-sparse attention and gated GELU are computed as Phi-3",
        names={"ff_intermediate_size": "intermediate_size"},
    ),
    "phi3_v": Remote("phi3", "the image tower is left out", names={}),
    "phi-msft": Remote("phi"),
    "mixformer-sequential": Remote("phi"),
    "stablelm_epoch": Remote("stablelm"),
    "RefinedWeb": Remote("falcon", names={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}),
    "RefinedWebModel": Remote("falcon", names={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}),
    "nemotron-nas": Remote("llama", "its blocks differ from one another; computed as if all were whole"),
    "decilm": Remote("llama", "its layers differ in key/value heads; computed with the largest number"),
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
    "internvl_chat": Remote("internvl", "the image tower is computed as InternVL's own port", names={"llm_config": "text_config"}),
    "deepseek_vl_v2": Remote("deepseek_v2", "the image tower is left out"),
    "minicpmv": Remote("qwen2", "the image tower is left out"),
    "molmo": Remote("qwen2", "the image tower is left out"),
    "kimi_vl": Remote("kimi_k25", "the image tower is computed as that of Kimi K2.5"),
    "kimi_k3": Remote("kimi_linear", "computed as Kimi Linear"),
    "minimax_m3": Remote("minimax_m2", "computed as MiniMax M2"),
    "step3_text": Remote("step3p5", "computed as Step 3.5"),
    "bailing_moe": Remote("qwen2_moe", "computed as a mixture of experts of the Qwen2 shape"),
    "bailing_moe_v2": Remote(
        "glm4_moe",
        "computed as GLM 4 MoE",
        names={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    ),
    "telechat": Remote("llama", "computed as Llama"),
    "codeshell": Remote("gpt2", "grouped keys and values are computed as whole"),
    "plamo": Remote("llama", "computed as Llama"),
    "hunyuan": Remote("hunyuan_v1_moe", "computed as HunYuan V1"),
}  # fmt: skip


def family_of(model_type: str) -> tuple[str, str | None]:
    """Return (family, reason): the reason says why the shape is only the nearest one, None when it is the type's own."""
    for family, types in FAMILIES.items():
        if model_type in types:
            return family, None
    if model_type in NEAREST:
        family, missing = NEAREST[model_type]
        return family, f"`{model_type}` is computed as the nearest known shape: {missing}"
    return "unknown", f"`{model_type}` is not an architecture that memlint knows; the nearest shape of its fields is used"


def nearest_family(config: Mapping[str, Any]) -> str:
    """Return the family whose shape the fields of an unknown config resemble most."""
    if config.get("is_encoder_decoder"):
        return "encoder-decoder"
    if isinstance(config.get("vision_config"), Mapping) and isinstance(config.get("text_config"), Mapping):
        return "vision-language"
    if config.get("kv_lora_rank"):
        return "mla"
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list) and {"linear_attention", "mamba", "moe"} & {k for k in kinds if isinstance(k, str)}:
        return "hybrid"
    if any(config.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return "moe"
    if config.get("image_size") and config.get("patch_size") and not config.get("vocab_size"):
        return "vision"
    if config.get("state_size") and not config.get("num_attention_heads"):
        return "mamba"
    return "llama"
