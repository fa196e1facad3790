"""Models of the grid: a small config of each type, and published configs at their own size."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
}
_KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
_LOCAL: dict[str, Any] = {"head_dim": 64, "sliding_window": 256, "layer_types": _KINDS}
_WINDOWS: dict[str, Any] = {"sliding_window": 256, "layer_types": _KINDS}
_DELTA: dict[str, Any] = {
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
    },
}
_LINEAR = ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"]
_MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_group": 4,
    "topk_group": 2,
}
_LLAMAS = ("llama", "qwen2", "qwen3", "granite", "cohere", "stablelm", "starcoder2", "olmo", "olmo2")
_GPT = {"hidden_size": 512, "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 8192}
TYPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_LLAMAS, TINY),
    "mistral": {**TINY, "sliding_window": None},
    "ministral3": {**TINY, "head_dim": 64},
    "gemma": {**TINY, "head_dim": 64},
    "gemma2": {**TINY, **_LOCAL},
    "gemma3_text": {**TINY, **_LOCAL},
    "phi3": {**TINY, "pad_token_id": 0, "sliding_window": None},
    "smollm3": {**TINY, "pad_token_id": 0},
    "olmo3": {**TINY, **_WINDOWS},
    "cohere2": {**TINY, **_WINDOWS},
    "exaone4": {**TINY, **_WINDOWS, "sliding_window_pattern": 2},
    "glm": {**TINY, "head_dim": 64, "pad_token_id": 0},
    "glm4": {**TINY, "head_dim": 64, "pad_token_id": 0},
    "nemotron": TINY,
    "seed_oss": {**TINY, "head_dim": 64},
    "arcee": TINY,
    "hunyuan_v1_dense": {**TINY, "head_dim": 64},
    "ernie4_5": {**TINY, "head_dim": 64},
    "helium": {**TINY, "head_dim": 64},
    "bitnet": {**TINY, "pad_token_id": 0},
    "apertus": {**TINY, "pad_token_id": 0},
    "gpt2": {"n_embd": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192},
    "gpt_neox": {**_GPT, "intermediate_size": 2048},
    "gptj": {"n_embd": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192, "rotary_dim": 32},
    "opt": {**_GPT, "ffn_dim": 2048, "word_embed_proj_dim": 512, "max_position_embeddings": 2048},
    "bloom": {"hidden_size": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192},
    "falcon": {**_GPT, "bias": False, "alibi": False, "multi_query": True, "parallel_attn": True},
    "phi": {**_GPT, "intermediate_size": 2048},
    "mixtral": {**TINY, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2_moe": {**TINY, **_MOE, "shared_expert_intermediate_size": 512},
    "qwen3_moe": {**TINY, **_MOE},
    "qwen3_5_text": {**TINY, **_DELTA},
    "olmoe": {**TINY, "num_experts": 8, "num_experts_per_tok": 2},
    "granitemoe": {**TINY, "num_local_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": {**TINY, **_ROUTED, "head_dim": 64, "n_group": 1, "topk_group": 1},
    "deepseek_v3": {**TINY, **_ROUTED, **_LATENT},
    "lfm2": {**TINY, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {**TINY, **_MOE, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"]},
    "afmoe": {
        **TINY,
        **_MOE,
        "head_dim": 64,
        "num_dense_layers": 1,
        "num_shared_experts": 1,
        "sliding_window": 256,
        "global_attn_every_n_layers": 2,
        "mup_enabled": True,
    },
    "hyperclovax": {**TINY, "use_post_norm": True},
    "jais2": TINY,
    "nanochat": TINY,
    "olmo_hybrid": {
        **TINY,
        "layer_types": _LINEAR,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 128,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },
    "minimax": {
        **TINY,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "head_dim": 64,
        "intermediate_size": 256,
        "layer_types": _LINEAR,
        "block_size": 128,
    },
    "zamba2": {
        **TINY,
        "num_hidden_layers": 7,
        "num_key_value_heads": 8,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid"],
        "n_mamba_heads": 16,
        "mamba_d_state": 64,
        "chunk_size": 64,
        "use_mem_rope": True,
    },
    "mellum": {**TINY, **_MOE, **_LOCAL, "mlp_layer_types": ["dense", *["sparse"] * 4]},
    "modernbert-decoder": {
        **_GPT,
        "intermediate_size": 768,
        "pad_token_id": 0,
        "global_attn_every_n_layers": 2,
        "local_attention": 128,
    },
    "persimmon": {**TINY, "intermediate_size": 2048},
    "diffllama": TINY,
    "cohere2_moe": {
        **TINY,
        **_MOE,
        **_LOCAL,
        "intermediate_size": 256,
        "prefix_dense_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "expert_selection_fn": "sigmoid",
    },
    "mimo_v2_flash": {
        **TINY,
        **_ROUTED,
        **_WINDOWS,
        "num_key_value_heads": 2,
        "head_dim": 96,
        "v_head_dim": 64,
    },
    "hy_v3": {**TINY, **_MOE, "head_dim": 64},
    "laguna": {
        **TINY,
        **_MOE,
        **_LOCAL,
        "shared_expert_intermediate_size": 256,
        "num_attention_heads_per_layer": [12, 8, 12, 8, 12],
    },
    "sarvam_moe": {**TINY, **_ROUTED, "head_dim": 64},
    "sarvam_mla": {**TINY, **_ROUTED, **_LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1},
    "axk1": {**TINY, **_ROUTED, **_LATENT},
    "openai-gpt": {"n_embd": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192},
    "ctrl": {"n_embd": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192, "dff": 2048},
}
_ENCODER: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "vocab_size": 8192,
}
_T5: dict[str, Any] = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 5, "num_heads": 8, "vocab_size": 8192}
_T5GEMMA: dict[str, Any] = {**TINY, **_LOCAL, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
_BART: dict[str, Any] = {
    "d_model": 512,
    **{
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in (("layers", 5), ("ffn_dim", 2048))
    },
    **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
    "vocab_size": 8192,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
HEADED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("masked-lm", _ENCODER),
    "roberta": ("sequence-classification", _ENCODER),
    "electra": ("token-classification", {**_ENCODER, "embedding_size": 128}),
    "distilbert": ("masked-lm", {"dim": 512, "hidden_dim": 2048, "n_layers": 5, "n_heads": 8, "vocab_size": 8192}),
    "modernbert": ("masked-lm", {**_ENCODER, "intermediate_size": 768, "pad_token_id": 0}),
    "deberta-v2": (
        "masked-lm",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 64},
    ),
    "nomic_bert": ("masked-lm", _ENCODER),
    "gte": ("masked-lm", _ENCODER),
    "jina_embeddings_v3": ("masked-lm", _ENCODER),
    "esm": (
        "masked-lm",
        {
            **_ENCODER,
            "vocab_size": 33,
            "pad_token_id": 1,
            "mask_token_id": 32,
            "position_embedding_type": "rotary",
            "token_dropout": True,
        },
    ),
    "xlm-roberta-xl": ("masked-lm", _ENCODER),
    "roformer": ("masked-lm", {**_ENCODER, "embedding_size": 256}),
    "rembert": ("masked-lm", {**_ENCODER, "input_embedding_size": 128, "output_embedding_size": 640}),
    "layoutlm": ("masked-lm", _ENCODER),
    "mobilebert": ("masked-lm", {**_ENCODER, "intermediate_size": 512}),
    "convbert": ("masked-lm", {**_ENCODER, "embedding_size": 128}),
    "mistral4": ("sequence-classification", {**TINY, **_ROUTED, **_LATENT, "pad_token_id": 0}),
    "albert": ("masked-lm", {**_ENCODER, "embedding_size": 128}),
    "t5": ("seq2seq-lm", _T5),
    "umt5": ("seq2seq-lm", _T5),
    "t5gemma": ("seq2seq-lm", {"encoder": _T5GEMMA, "decoder": _T5GEMMA, "vocab_size": 8192}),
    "bart": ("seq2seq-lm", _BART),
    "mvp": ("seq2seq-lm", _BART),
}
"""model_type -> objective and small config."""

REAL = (
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-8B",
    "google/gemma-2-2b",
    "mistralai/Mistral-7B-v0.3",
    "microsoft/phi-4",
    "Qwen/Qwen3-30B-A3B",
    "LiquidAI/LFM2-1.2B",
)
"""IDs whose configs the catalog holds, at their own size."""
