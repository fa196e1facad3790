"""Rows of the model catalog that no file at hand states: shapes as published, from memory, and mirrors of known shapes.

Every row of :data:`SHAPES` carries the source "published config values, from memory"; nothing else here is a fact of
its own. Put a row here only when the model's parameter count follows from it.
"""

from __future__ import annotations

from typing import Any

MEMORY = "published config values, from memory"
CLASS = "class defaults of transformers 5.24, whose class names this checkpoint; from memory where it differs"


def llama(width: int, layers: int, heads: int, groups: int, inner: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        **more,
    }


def bert(width: int, layers: int, heads: int, vocabulary: int = 30522, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        **more,
    }


def xlm_roberta(width: int, layers: int, heads: int, positions: int = 514) -> dict[str, Any]:
    return {
        **bert(width, layers, heads, 250002, type_vocab_size=1, max_position_embeddings=positions),
        "model_type": "xlm-roberta",
    }


def mt5(width: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "mt5",
        "vocab_size": 250112,
        "d_model": width,
        "d_ff": inner,
        "d_kv": 64,
        "num_layers": layers,
        "num_heads": heads,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }


def bart(width: int, layers: int, heads: int, vocabulary: int = 50265) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    return {"model_type": "bart", "vocab_size": vocabulary, "d_model": width, "max_position_embeddings": 1024, **sides}


def whisper(
    width: int, layers: int, heads: int, vocabulary: int = 51865, mel: int = 80, decoder: int = 0
) -> dict[str, Any]:
    return {
        "model_type": "whisper",
        "vocab_size": vocabulary,
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": decoder or layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "num_mel_bins": mel,
    }


def starcoder(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt_bigcode",
        "vocab_size": 49152,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": 4 * width,
        "n_positions": 8192,
        "multi_query": True,
    }


def mamba(width: int, layers: int) -> dict[str, Any]:
    return {"model_type": "mamba", "vocab_size": 50280, "hidden_size": width, "num_hidden_layers": layers}


def hunyuan(width: int, layers: int, heads: int, groups: int, inner: int) -> dict[str, Any]:
    return {
        **llama(width, layers, heads, groups, inner, 120818),
        "model_type": "hunyuan_v1_dense",
        "head_dim": 128,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
        **BF16,
    }


def ministral3(width: int, layers: int, inner: int, *, tied: bool = False) -> dict[str, Any]:
    """Ministral 3 of December 2025 with its image tower; 3.4, 8.5 and 13.5 B of language model."""
    return {
        "model_type": "mistral3",
        "text_config": {
            **llama(width, layers, 32, 8, inner, 131072),
            "model_type": "ministral3",
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": tied,
        },
        "tie_word_embeddings": tied,
        **BF16,
    }


def granite_attention(width: int, layers: int, heads: int, groups: int, inner: int) -> dict[str, Any]:
    return {
        "model_type": "granitemoehybrid",
        "vocab_size": 100352,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "shared_intermediate_size": inner,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "layer_types": ["attention"] * layers,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def granite_hybrid(experts: int) -> dict[str, Any]:
    return {
        "model_type": "granitemoehybrid",
        "vocab_size": 100352,
        "hidden_size": 1536,
        "num_hidden_layers": 40,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "shared_intermediate_size": 1024,
        "num_local_experts": experts,
        "num_experts_per_tok": 6,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
        "mamba_n_heads": 48,
        "mamba_d_state": 128,
        "mamba_d_head": 64,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def lfm2(width: int, layers: int, heads: int, inner: int, full: list[int], adjust: bool = True) -> dict[str, Any]:
    return {
        "model_type": "lfm2",
        "vocab_size": 65536,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": inner,
        "block_auto_adjust_ff_dim": adjust,
        "full_attn_idxs": full,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


SIGLIP_SO400M = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}
BF16: dict[str, Any] = {"torch_dtype": "bfloat16"}
FP16: dict[str, Any] = {"torch_dtype": "float16"}
MISTRAL_24B = {
    **llama(5120, 40, 32, 8, 32768, 131072, head_dim=128, sliding_window=None, max_position_embeddings=131072, **BF16),
    "model_type": "mistral",
}
QWEN2_TEXT = {
    "0.5B": (896, 24, 14, 2, 4864),
    "1.5B": (1536, 28, 12, 2, 8960),
    "7B": (3584, 28, 28, 4, 18944),
}


def internvl3(text: str, vision: dict[str, Any]) -> dict[str, Any]:
    inner = {**llama(*QWEN2_TEXT[text], 151674, **BF16), "model_type": "qwen2"}
    return {
        "model_type": "internvl",
        "text_config": inner,
        "vision_config": vision,
        "tie_word_embeddings": False,
        **BF16,
    }


def qwen2_5_vl(
    width: int, layers: int, heads: int, groups: int, inner: int, vision_inner: int, **more: Any
) -> dict[str, Any]:
    return {
        **llama(width, layers, heads, groups, inner, 152064, max_position_embeddings=128000, **BF16),
        "vision_config": {
            "hidden_size": 1280,
            "intermediate_size": vision_inner,
            "out_hidden_size": width,
            "depth": 32,
        },
        **more,
        "model_type": "qwen2_5_vl",
    }


SHAPES: dict[str, dict[str, Any]] = {
    # litgpt's block_size, 4096, is the window; config.json says 32768 positions.
    **{
        f"mistralai/Mistral-7B-{name}": {
            "model_type": "mistral",
            "max_position_embeddings": 32768,
            "torch_dtype": "bfloat16",
        }
        for name in ("v0.1", "Instruct-v0.1")
    },
    # As its config.json is quoted where the model was released, and in ports of it: 131.6 B parameters.
    "databricks/dbrx-instruct": {
        "model_type": "dbrx",
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "max_seq_len": 32768,
        "vocab_size": 100352,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        "torch_dtype": "bfloat16",
    },
    # --- GPT-2 shapes
    "openai-community/gpt2-large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "EleutherAI/gpt-j-6b": {"model_type": "gptj", "vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16},
    "EleutherAI/gpt-neo-1.3B": {
        "model_type": "gpt_neo",
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "attention_types": [[["global", "local"], 12]],
    },
    "bigcode/starcoder": starcoder(6144, 40, 48),
    "bigcode/starcoderbase-1b": starcoder(2048, 24, 16),
    "bigcode/starcoderbase-3b": starcoder(2816, 36, 22),
    "bigcode/starcoderbase-7b": starcoder(4096, 42, 32),
    "mosaicml/mpt-7b": {
        "model_type": "mpt",
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "vocab_size": 50432,
        "max_seq_len": 2048,
        "attn_config": {"alibi": True},
        **BF16,
    },
    "bigscience/bloom": {
        "model_type": "bloom",
        "hidden_size": 14336,
        "n_layer": 70,
        "n_head": 112,
        "vocab_size": 250880,
        **BF16,
    },
    "bigscience/bloom-1b7": {
        "model_type": "bloom",
        "hidden_size": 2048,
        "n_layer": 24,
        "n_head": 16,
        "vocab_size": 250880,
    },
    "tiiuae/falcon-rw-1b": {
        "model_type": "falcon",
        "vocab_size": 50304,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "alibi": True,
        "bias": True,
        "multi_query": False,
        "parallel_attn": False,
        **BF16,
    },
    "microsoft/phi-1": {
        "model_type": "phi",
        "vocab_size": 51200,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
    },
    # --- Llama shapes
    "huggyllama/llama-7b": llama(4096, 32, 32, 32, 11008, 32000, max_position_embeddings=2048, **FP16),
    "01-ai/Yi-6B": llama(4096, 32, 32, 4, 11008, 64000, max_position_embeddings=4096, **BF16),
    "01-ai/Yi-1.5-9B": llama(4096, 48, 32, 4, 11008, 64000, max_position_embeddings=4096, **BF16),
    "deepseek-ai/deepseek-llm-7b-base": llama(4096, 30, 32, 32, 11008, 102400, max_position_embeddings=4096, **BF16),
    "deepseek-ai/deepseek-coder-1.3b-base": llama(2048, 24, 16, 16, 5504, 32256, max_position_embeddings=16384, **BF16),
    "deepseek-ai/deepseek-coder-6.7b-base": llama(
        4096, 32, 32, 32, 11008, 32256, max_position_embeddings=16384, **BF16
    ),
    "deepseek-ai/deepseek-coder-33b-base": llama(7168, 62, 56, 8, 19200, 32256, max_position_embeddings=16384, **BF16),
    "Salesforce/xgen-7b-8k-base": llama(
        4096, 32, 32, 32, 11008, 51200, max_position_embeddings=8192, torch_dtype="float32"
    ),
    "NousResearch/Hermes-2-Pro-Llama-3-8B": llama(4096, 32, 32, 8, 14336, 128288, max_position_embeddings=8192, **BF16),
    "mistralai/Mistral-Nemo-Base-2407": {
        **llama(
            5120, 40, 32, 8, 14336, 131072, head_dim=128, sliding_window=None, max_position_embeddings=131072, **BF16
        ),
        "model_type": "mistral",
    },
    "mistralai/Mistral-Small-Instruct-2409": {
        **llama(6144, 56, 48, 8, 16384, 32768, sliding_window=None, max_position_embeddings=32768, **BF16),
        "model_type": "mistral",
    },
    "mistralai/Magistral-Small-2506": MISTRAL_24B,
    "mistralai/Devstral-Small-2507": MISTRAL_24B,
    "ibm-granite/granite-3.1-8b-instruct": {
        **llama(4096, 40, 32, 8, 12800, 49155, tie_word_embeddings=True, max_position_embeddings=131072, **BF16),
        "model_type": "granite",
    },
    "ibm-granite/granite-3.1-2b-instruct": {
        **llama(2048, 40, 32, 8, 8192, 49155, tie_word_embeddings=True, max_position_embeddings=131072, **BF16),
        "model_type": "granite",
    },
    "google/gemma-3-270m": {
        **llama(640, 18, 4, 1, 2048, 262144, head_dim=256, sliding_window=512, max_position_embeddings=32768, **BF16),
        "model_type": "gemma3_text",
    },
    "CohereForAI/c4ai-command-r-v01": {
        **llama(8192, 40, 64, 64, 22528, 256000, tie_word_embeddings=True, max_position_embeddings=131072, **FP16),
        "model_type": "cohere",
    },
    "CohereForAI/aya-expanse-32b": {
        **llama(8192, 40, 64, 8, 24576, 256000, tie_word_embeddings=True, max_position_embeddings=8192, **FP16),
        "model_type": "cohere",
    },
    "CohereForAI/c4ai-command-r7b-12-2024": {
        **llama(4096, 32, 32, 8, 14336, 256000, tie_word_embeddings=True, max_position_embeddings=132096, **BF16),
        "model_type": "cohere2",
        "sliding_window": 4096,
    },
    "allenai/OLMo-2-0425-1B": {
        **llama(2048, 16, 16, 16, 8192, 100352, max_position_embeddings=4096),
        "model_type": "olmo2",
    },
    "allenai/Olmo-3-7B-Instruct": {
        **llama(4096, 32, 32, 32, 11008, 100278, max_position_embeddings=65536, **BF16),
        "model_type": "olmo3",
    },
    "stabilityai/stablelm-2-1_6b": {
        **llama(2048, 24, 32, 32, 5632, 100352, use_qkv_bias=True, max_position_embeddings=4096, **FP16),
        "model_type": "stablelm",
    },
    "swiss-ai/Apertus-8B-Instruct-2509": {
        **llama(4096, 32, 32, 8, 21504, 131072, max_position_embeddings=65536, **BF16),
        "model_type": "apertus",
    },
    "swiss-ai/Apertus-70B-Instruct-2509": {
        **llama(8192, 80, 64, 8, 43008, 131072, max_position_embeddings=65536, **BF16),
        "model_type": "apertus",
    },
    "ByteDance-Seed/Seed-OSS-36B-Instruct": {
        **llama(5120, 64, 80, 8, 27648, 155136, head_dim=128, max_position_embeddings=524288, **BF16),
        "model_type": "seed_oss",
    },
    "zai-org/GLM-4-9B-0414": {
        **llama(4096, 40, 32, 2, 13696, 151552, max_position_embeddings=32768, **BF16),
        "model_type": "glm4",
    },
    "zai-org/GLM-4-32B-0414": {
        **llama(6144, 61, 48, 2, 23040, 151552, head_dim=128, max_position_embeddings=32768, **BF16),
        "model_type": "glm4",
    },
    "zai-org/glm-4-9b-chat-hf": {
        **llama(4096, 40, 32, 2, 13696, 151552, attention_bias=True, max_position_embeddings=131072, **BF16),
        "model_type": "glm",
    },
    "nvidia/Nemotron-Mini-4B-Instruct": {
        **llama(3072, 32, 24, 8, 9216, 256000, head_dim=128, max_position_embeddings=4096, **BF16),
        "model_type": "nemotron",
    },
    "baichuan-inc/Baichuan-13B-Chat": {
        "model_type": "baichuan",
        "vocab_size": 64000,
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "intermediate_size": 13696,
        "model_max_length": 4096,
    },
    "internlm/internlm3-8b-instruct": {
        **llama(4096, 48, 32, 2, 10240, 128512, head_dim=128, max_position_embeddings=32768, **BF16),
        "model_type": "internlm3",
    },
    "baidu/ERNIE-4.5-0.3B-PT": {
        **llama(
            1024,
            18,
            16,
            2,
            3072,
            103424,
            head_dim=128,
            tie_word_embeddings=True,
            max_position_embeddings=131072,
            **BF16,
        ),
        "model_type": "ernie4_5",
    },
    "Qwen/Qwen3-Embedding-0.6B": {
        **llama(
            1024, 28, 16, 8, 3072, 151669, head_dim=128, tie_word_embeddings=True, max_position_embeddings=32768, **BF16
        ),
        "model_type": "qwen3",
    },
    "Qwen/Qwen3-Embedding-4B": {
        **llama(
            2560, 36, 32, 8, 9728, 151665, head_dim=128, tie_word_embeddings=True, max_position_embeddings=40960, **BF16
        ),
        "model_type": "qwen3",
    },
    # --- mixtures of experts, latent attention, hybrids, state space
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"model_type": "qwen3_next", "max_position_embeddings": 262144, **BF16},
    "zai-org/GLM-4.5-Air": {"model_type": "glm4_moe", "head_dim": 128, "attention_bias": True, **BF16},
    "zai-org/GLM-4.5": {
        "model_type": "glm4_moe",
        "hidden_size": 5120,
        "num_hidden_layers": 92,
        "head_dim": 128,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "first_k_dense_replace": 3,
        "use_qk_norm": True,
        "attention_bias": True,
        **BF16,
    },
    "zai-org/GLM-4.7-Flash": {"model_type": "glm4_moe_lite", **BF16},
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": {"model_type": "kimi_linear", **BF16},
    "moonshotai/Moonlight-16B-A3B": {
        "model_type": "deepseek_v3",
        "vocab_size": 163840,
        "hidden_size": 2048,
        "intermediate_size": 11264,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 8192,
        "num_nextn_predict_layers": 0,
        **BF16,
    },
    "inclusionAI/Ling-mini-2.0": {
        "model_type": "bailing_moe_v2",
        "vocab_size": 157184,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "max_position_embeddings": 32768,
        **BF16,
    },
    "mistralai/Mistral-Small-4-119B-2603": {"model_type": "mistral4", **BF16},
    "arcee-ai/AFM-4.5B": {
        "model_type": "arcee",
        "vocab_size": 128004,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "intermediate_size": 18432,
        "max_position_embeddings": 65536,
        **BF16,
    },
    "tencent/Hunyuan-0.5B-Instruct": hunyuan(1024, 24, 16, 8, 3584),
    "tencent/Hunyuan-1.8B-Instruct": hunyuan(2048, 32, 16, 4, 6144),
    "tencent/Hunyuan-4B-Instruct": hunyuan(3072, 36, 32, 8, 8192),
    "tencent/Hunyuan-7B-Instruct": {**hunyuan(4096, 32, 32, 8, 14336), "vocab_size": 128167},
    "mistralai/Ministral-3-3B-Base-2512": ministral3(3072, 26, 9216, tied=True),
    "mistralai/Ministral-3-8B-Base-2512": ministral3(4096, 34, 14336),
    "mistralai/Ministral-3-14B-Base-2512": ministral3(5120, 40, 16384),
    "ai21labs/Jamba-v0.1": {"model_type": "jamba", **BF16},
    "ibm-granite/granite-4.0-350m": granite_attention(1024, 28, 16, 4, 2048),
    "ibm-granite/granite-4.0-micro": granite_attention(2560, 40, 40, 8, 8192),
    "ibm-granite/granite-4.0-h-tiny": granite_hybrid(64),
    "ibm-granite/granite-4.0-tiny-preview": granite_hybrid(62),
    "LiquidAI/LFM2-350M": lfm2(1024, 16, 16, 6656, [2, 5, 8, 10, 12, 14]),
    "LiquidAI/LFM2-700M": lfm2(1536, 16, 24, 10240, [2, 5, 8, 10, 12, 14]),
    "LiquidAI/LFM2-1.2B": lfm2(2048, 16, 32, 12288, [2, 5, 8, 10, 12, 14]),
    "LiquidAI/LFM2-2.6B": lfm2(2048, 30, 32, 10752, [2, 6, 9, 13, 17, 21, 24, 27], adjust=False),
    "state-spaces/mamba-130m-hf": mamba(768, 24),
    "state-spaces/mamba-370m-hf": mamba(1024, 48),
    "state-spaces/mamba-790m-hf": mamba(1536, 48),
    "state-spaces/mamba-1.4b-hf": mamba(2048, 48),
    "state-spaces/mamba-2.8b-hf": mamba(2560, 64),
    "tiiuae/falcon-mamba-7b": {
        "model_type": "falcon_mamba",
        "vocab_size": 65024,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "tie_word_embeddings": False,
        **BF16,
    },
    # --- encoders
    "google-bert/bert-base-cased": bert(768, 12, 12, 28996),
    "google-bert/bert-large-uncased": bert(1024, 24, 16),
    "google-bert/bert-base-multilingual-cased": bert(768, 12, 12, 119547),
    "BAAI/bge-base-en-v1.5": bert(768, 12, 12),
    "BAAI/bge-small-en-v1.5": bert(384, 12, 12),
    "FacebookAI/xlm-roberta-base": xlm_roberta(768, 12, 12),
    "FacebookAI/xlm-roberta-large": xlm_roberta(1024, 24, 16),
    "BAAI/bge-m3": xlm_roberta(1024, 24, 16, 8194),
    "answerdotai/ModernBERT-base": {"model_type": "modernbert"},
    "answerdotai/ModernBERT-large": {
        "model_type": "modernbert",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 2624,
    },
    "google/electra-base-discriminator": {**bert(768, 12, 12), "model_type": "electra", "embedding_size": 768},
    "google/electra-small-discriminator": {
        "model_type": "electra",
        "embedding_size": 128,
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "sentence-transformers/all-mpnet-base-v2": {
        **bert(768, 12, 12, 30527),
        "model_type": "mpnet",
        "max_position_embeddings": 514,
    },
    # --- encoder-decoders
    "facebook/bart-base": bart(768, 6, 12),
    "facebook/bart-large": bart(1024, 12, 16),
    "facebook/bart-large-cnn": bart(1024, 12, 16, 50264),
    "google/mt5-small": mt5(512, 1024, 8, 6),
    "google/mt5-base": mt5(768, 2048, 12, 12),
    "google/mt5-large": mt5(1024, 2816, 24, 16),
    "google/mt5-xl": mt5(2048, 5120, 24, 32),
    "google-t5/t5-3b": {
        "model_type": "t5",
        "d_model": 1024,
        "d_ff": 16384,
        "d_kv": 128,
        "num_layers": 24,
        "num_heads": 32,
    },
    "google-t5/t5-11b": {
        "model_type": "t5",
        "d_model": 1024,
        "d_ff": 65536,
        "d_kv": 128,
        "num_layers": 24,
        "num_heads": 128,
    },
    "openai/whisper-medium": whisper(1024, 24, 16),
    "openai/whisper-large-v2": whisper(1280, 32, 20),
    # --- vision and vision-language
    "google/vit-base-patch16-224": {"model_type": "vit"},
    "google/siglip-so400m-patch14-384": {
        "model_type": "siglip",
        "text_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "vocab_size": 32000,
            "max_position_embeddings": 64,
        },
        "vision_config": {**SIGLIP_SO400M, "image_size": 384},
    },
    "openai/clip-vit-base-patch32": {"model_type": "clip", "text_config": {}, "vision_config": {}},
    "openai/clip-vit-base-patch16": {"model_type": "clip", "text_config": {}, "vision_config": {"patch_size": 16}},
    "llava-hf/llava-1.5-7b-hf": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "vocab_size": 32064},
        **FP16,
    },
    "llava-hf/llava-1.5-13b-hf": {
        "model_type": "llava",
        "text_config": {**llama(5120, 40, 40, 40, 13824, 32064)},
        **FP16,
    },
    "google/paligemma-3b-pt-224": {
        "model_type": "paligemma",
        "text_config": {
            **llama(2048, 18, 8, 1, 16384, 257216, head_dim=256, tie_word_embeddings=True),
            "model_type": "gemma",
        },
        "vision_config": {**SIGLIP_SO400M, "image_size": 224, "vision_use_head": False},
        "projection_dim": 2048,
        "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolVLM-Instruct": {
        "model_type": "idefics3",
        "text_config": {**llama(2048, 24, 32, 32, 8192, 49155, max_position_embeddings=16384)},
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "patch_size": 14,
            "image_size": 384,
        },
        "scale_factor": 3,
        "tie_word_embeddings": False,
        **BF16,
    },
    "HuggingFaceM4/Idefics3-8B-Llama3": {
        "model_type": "idefics3",
        "text_config": {**llama(4096, 32, 32, 8, 14336, 128259, max_position_embeddings=131072)},
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "patch_size": 14,
            "image_size": 364,
        },
        "scale_factor": 2,
        "tie_word_embeddings": False,
        **BF16,
    },
    "Qwen/Qwen2.5-VL-32B-Instruct": qwen2_5_vl(5120, 64, 40, 8, 27648, 3456),
    "Qwen/Qwen2.5-VL-72B-Instruct": qwen2_5_vl(8192, 80, 64, 8, 29568, 3456),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": {
        "model_type": "mistral3",
        "text_config": MISTRAL_24B,
        "tie_word_embeddings": False,
        **BF16,
    },
    "mistralai/Voxtral-Mini-3B-2507": {"model_type": "voxtral", **BF16},
    "google/gemma-3n-E4B-it": {"model_type": "gemma3n", **BF16},
    "google/gemma-3n-E2B-it": {
        "model_type": "gemma3n",
        "text_config": {"num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10},
        **BF16,
    },
    "google/gemma-4-26B-A4B-it": {
        "model_type": "gemma4",
        "text_config": {
            "enable_moe_block": True,
            "hidden_size": 2816,
            "hidden_size_per_layer_input": 0,
            "intermediate_size": 2112,
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 704,
            "num_attention_heads": 16,
            "num_experts": 128,
            "num_hidden_layers": 30,
            "num_key_value_heads": 8,
            "sliding_window": 1024,
            "top_k_experts": 8,
        },
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 16,
        },
        "tie_word_embeddings": True,
        **BF16,
    },
    "Qwen/Qwen3.5-9B": {"model_type": "qwen3_5", "max_position_embeddings": 262144, **BF16},
    "zai-org/GLM-4.1V-9B-Thinking": {"model_type": "glm4v", **BF16},
    "OpenGVLab/InternVL3-1B-hf": internvl3("0.5B", {}),
    "OpenGVLab/InternVL3-2B-hf": internvl3("1.5B", {}),
    "OpenGVLab/InternVL3-8B-hf": internvl3("7B", {}),
}
