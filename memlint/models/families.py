"""Which ``model_type`` belongs to which family of the estimator.

A family is a key into ``memlint.estimate.families``. Types whose forward differs from the family's in something that
costs memory stand in :data:`NEAREST`, with the difference in words; types that nobody has compared are ``unknown``.
"""

from __future__ import annotations

from typing import Any, Mapping


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": _names(
        "llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text vaultgemma phi3 olmo olmo2 "
        "glm_ocr_text "
        "granite smollm3 starcoder2 cohere stablelm ernie4_5 helium cwm internlm3 exaone qwen2_vl_text "
        "qwen2_5_vl_text qwen2_5_omni_text qwen3_vl_text glm4v_text mllama_text_model iquestcoder olmo3 cohere2 "
        "glm glm4 exaone4 nemotron seed_oss arcee hunyuan_v1_dense bitnet apertus hyperclovax jais2 nanochat diffllama "
        "granite_swa"
    ),
    "gpt2": _names(
        "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon phi mpt codegen gpt-sw3 openai-gpt biogpt xglm ctrl "
        "modernbert-decoder persimmon bert-generation"
    ),
    "moe": _names(
        "mixtral qwen2_moe qwen3_moe qwen3_vl_moe_text qwen3_omni_moe_text olmoe flex_olmo dbrx gpt_oss "
        "llama4_text glm4_moe glm4v_moe_text phimoe granitemoe granitemoeshared minimax_m2 ernie4_5_moe hunyuan_v1_moe "
        "dots1 exaone_moe solar_open afmoe mellum cohere2_moe "
        "granitemoe_swa mimo_v2_flash hy_v3 laguna sarvam_moe"
    ),
    "mla": _names(
        "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 minicpm3 glm4_moe_lite glm_moe_dsa longcat_flash youtu mistral4 "
        "axk1 sarvam_mla"
    ),
    "hybrid": _names(
        "qwen3_next qwen3_5_text qwen3_5_moe_text jamba nemotron_h granitemoehybrid bamba falcon_h1 zamba "
        "zamba2 lfm2 lfm2_moe recurrent_gemma kimi_linear minimax olmo_hybrid"
    ),
    "mamba": _names("mamba falcon_mamba mamba2"),
    "gemma": _names("gemma3n_text gemma4_text gemma4_unified_text"),
    "encoder": _names(
        "bert roberta xlm-roberta xlm-roberta-xl camembert distilbert deberta deberta-v2 modernbert electra "
        "albert mpnet ernie roformer rembert eurobert nomic_bert gte megatron-bert "
        "roberta-prelayernorm data2vec-text esm jina_embeddings_v3 layoutlm mobilebert "
        "convbert squeezebert nystromformer"
    ),
    "encoder-decoder": _names(
        "t5 mt5 umt5 longt5 switch_transformers bart mbart pegasus marian m2m_100 blenderbot "
        "vision-encoder-decoder "
        "blenderbot-small whisper plbart mvp t5gemma"
    ),
    "speech": _names("wav2vec2 hubert audio-spectrogram-transformer data2vec-audio"),
    "vision": _names(
        "vit clip clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model siglip2 "
        "siglip2_vision_model siglip2_text_model dinov2 deit beit vit_mae videomae dinov2_with_registers "
        "dinov3_vit ijepa resnet convnext convnextv2 "
        "swin segformer vit_msn"
    ),
    "vision-language": _names(
        "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe llava llava_next llava_onevision "
        "llava_next_video idefics2 idefics3 smolvlm paligemma gemma3 gemma3n gemma4 gemma4_unified mllama internvl "
        "mistral3 llama4 glm4v glm46v glm4v_moe aya_vision cohere2_vision kimi_k25 video_llava vipllava "
        "got_ocr2 pixtral ovis2 deepseek_vl fuyu aria ernie4_5_vl_moe blip-2 instructblip lfm2_vl "
        "minimax_m3_vl step3p7 voxtral qwen2_audio qwen2_5_omni qwen2_5_omni_thinker qwen3_omni_moe "
        "qwen3_omni_moe_thinker phi4_multimodal perception_lm lighton_ocr paddleocr_vl "
        "glm_ocr"
    ),
}

NEAREST: dict[str, tuple[str, str]] = {
    "jetmoe": ("moe", "experts in attention are not modelled"),
    "minimax_m3_vl_text": ("moe", "sparse attention is computed as full attention"),
    "step3p5": ("moe", "computed as a mixture of experts of the Qwen shape"),
    "deepseek_v4": ("mla", "compressed attention and hyper-connections are not modelled"),
    "bailing_hybrid": ("hybrid", "computed as a linear-attention hybrid"),
    "rwkv": ("mamba", "computed as a state-space model"),
}
"""model_type -> (family, what is not modelled)."""


def family_of(model_type: str) -> tuple[str, str | None]:
    """Return (family, reason): the reason says why the shape is only the nearest one; None: it is the type's own."""
    for family, types in FAMILIES.items():
        if model_type in types:
            return family, None
    if model_type in NEAREST:
        family, missing = NEAREST[model_type]
        return family, f"`{model_type}` is computed as the nearest known shape: {missing}"
    return "unknown", f"`{model_type}` is not an architecture that memlint knows"


_KNOWN_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention"))


def nearest_family(config: Mapping[str, Any], *, of_transformers: bool) -> str | None:
    """Return the family of decoders whose shape the fields of an unknown config resemble most; None where they are not
    those of a decoder that attends in every layer.

    ``of_transformers``: the type is one of transformers' own, which may be anything: it is taken as a decoder where the
    config's ``architectures`` says so.
    """
    named = config.get("architectures")
    if isinstance(named, list) and named:
        decoder = any(isinstance(name, str) and name.endswith("ForCausalLM") for name in named)
    else:
        decoder = not of_transformers
    if not decoder or config.get("is_encoder_decoder") or _parts(config):
        return None
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds and not (isinstance(kinds, list) and _KNOWN_LAYERS.issuperset([str(kind) for kind in kinds])):
        return None
    inner = _positive(config, "intermediate_size") or _positive(config, "moe_intermediate_size")
    if not (inner and _positive(config, "num_attention_heads") and _positive(config, "vocab_size")):
        return None
    if _positive(config, "kv_lora_rank"):
        return "mla"
    if any(_positive(config, name) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return "moe"
    return "llama" if _positive(config, "intermediate_size") else None


def _positive(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    return isinstance(value, int) and value > 0


def _parts(config: Mapping[str, Any]) -> list[str]:
    """The parts of a model that sees or hears."""
    return [name for name in ("text_config", "vision_config", "audio_config") if isinstance(config.get(name), Mapping)]


NEAREST_WORDS = {
    "llama": "a plain decoder",
    "moe": "a decoder with experts",
    "mla": "a decoder with latent attention",
}
"""What :func:`nearest_family` finds, for a sentence."""
