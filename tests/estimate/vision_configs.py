"""Small configs of vision-language models, and the peaks of their traces."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
TOWER: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "patch_size": 14,
    "image_size": 224,
}
_LOCAL = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 1e6}


def _qwen(
    kind: str, sections: list[int], tower: dict[str, Any], tie: bool = False, share: float = 1.0, **text: Any
) -> dict[str, Any]:
    rope = {**_ROPE, "mrope_section": sections, "partial_rotary_factor": share}
    return {
        "model_type": kind,
        "tie_word_embeddings": tie,
        "text_config": {**TEXT, "rope_parameters": rope, "tie_word_embeddings": tie, **text},
        "vision_config": {"num_heads": 4, **tower},
    }


def _joined(kind: str, text: dict[str, Any], tower: dict[str, Any], tie: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "tie_word_embeddings": tie,
        "text_config": {**TEXT, "tie_word_embeddings": tie, **text},
        "vision_config": {**TOWER, **tower},
        **more,
    }


_QWEN3 = {
    "depth": 6,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "out_hidden_size": 512,
    "deepstack_visual_indexes": [1, 3, 4],
    "num_position_embeddings": 2304,
}
_QWEN3_5 = {name: value for name, value in _QWEN3.items() if name != "deepstack_visual_indexes"}
_KINDS = ["linear_attention", "linear_attention", "full_attention"]
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 6,
    "head_dim": 64,
    "layer_types": 2 * _KINDS,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_CLIP = {"model_type": "clip_vision_model"}
_SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
_COHERE = {"model_type": "cohere2", "head_dim": 64, "sliding_window": 256, "layer_types": _LOCAL}
_SIGLIP2: dict[str, Any] = {
    "model_type": "siglip2_vision_model",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}
_OMNI_AUDIO: dict[str, Any] = {
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "d_model": 256,
    "max_source_positions": 200,
    "output_dim": 512,
}
_GLM: dict[str, Any] = {
    "depth": 5,
    "hidden_size": 256,
    "num_heads": 4,
    "image_size": 336,
    "patch_size": 14,
    "out_hidden_size": 512,
    "intermediate_size": 1408,
}
_GLM_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6], "partial_rotary_factor": 0.5}


def _glm(kind: str, **text: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "tie_word_embeddings": False,
        "text_config": {**TEXT, "rope_parameters": _GLM_ROPE, "pad_token_id": 0, **text},
        "vision_config": _GLM,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "gemma4": {
        "model_type": "gemma4",
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "num_hidden_layers": 6,
            "tie_word_embeddings": True,
            "head_dim": 64,
            "global_head_dim": 128,
            "sliding_window": 256,
            "vocab_size_per_layer_input": 8192,
            "hidden_size_per_layer_input": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
        },
        "vision_config": {
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "patch_size": 16,
            "position_embedding_size": 1024,
            "pooling_kernel_size": 3,
        },
    },
    "glm4v": _glm("glm4v"),
    "glm_ocr": _glm("glm_ocr"),
    "glm4v_moe": _glm("glm4v_moe", head_dim=64, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=256),
    "qwen2_vl": _qwen("qwen2_vl", [8, 12, 12], {"depth": 5, "embed_dim": 256, "hidden_size": 512, "mlp_ratio": 4}),
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl",
        [8, 12, 12],
        {
            "depth": 6,
            "hidden_size": 256,
            "intermediate_size": 704,
            "out_hidden_size": 512,
            "fullatt_block_indexes": [2, 5],
        },
    ),
    "qwen3_vl": _qwen("qwen3_vl", [12, 10, 10], _QWEN3, tie=True, head_dim=64),
    "qwen3_vl_moe": _qwen(
        "qwen3_vl_moe",
        [12, 10, 10],
        _QWEN3,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
    ),
    "qwen3_5": _qwen("qwen3_5", [3, 3, 2], _QWEN3_5, tie=True, share=0.25, **_DELTA),
    "qwen3_5_moe": _qwen(
        "qwen3_5_moe",
        [3, 3, 2],
        _QWEN3_5,
        share=0.25,
        **_DELTA,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
    ),
    "llava": _joined("llava", {"model_type": "llama"}, _CLIP),
    "llava_next": _joined(
        "llava_next", {"model_type": "llama"}, {**_CLIP, "image_size": 112}, image_grid_pinpoints=[[224, 224]]
    ),
    "llava_next_layers": _joined(
        "llava_next",
        {"model_type": "granite"},
        {**_SIGLIP, "image_size": 112},
        image_grid_pinpoints=[[224, 224]],
        vision_feature_layer=[-4, -3, 2, -1],
        vision_feature_select_strategy="full",
    ),
    "llava_next_video": _joined(
        "llava_next_video", {"model_type": "llama"}, {**_CLIP, "image_size": 112}, image_grid_pinpoints=[[224, 224]]
    ),
    "llava_onevision": _joined(
        "llava_onevision",
        {"model_type": "qwen2"},
        {**_SIGLIP, "image_size": 112},
        image_grid_pinpoints=[[336, 336]],
        vision_aspect_ratio="anyres_max_4",
    ),
    "vipllava": _joined("vipllava", {"model_type": "llama"}, _CLIP, vision_feature_layer=[-2, -3, -4, 1]),
    "video_llava": _joined("video_llava", {"model_type": "llama"}, _CLIP),
    "deepseek_vl": _joined("deepseek_vl", {"model_type": "llama"}, _SIGLIP),
    "paligemma": _joined(
        "paligemma",
        {"model_type": "gemma", "head_dim": 64},
        {**_SIGLIP, "projection_dim": 512},
        tie=True,
        projection_dim=512,
        hidden_size=512,
    ),
    "gemma3": _joined(
        "gemma3",
        {"model_type": "gemma3_text", "head_dim": 64, "sliding_window": 256, "layer_types": _LOCAL},
        _SIGLIP,
        tie=True,
        mm_tokens_per_image=64,
    ),
    "idefics3": _joined(
        "idefics3", {"model_type": "llama", "pad_token_id": 0}, {"model_type": "idefics3_vision"}, scale_factor=2
    ),
    "smolvlm": _joined(
        "smolvlm", {"model_type": "llama", "pad_token_id": 0}, {"model_type": "smolvlm_vision"}, scale_factor=4
    ),
    "internvl": _joined(
        "internvl",
        {"model_type": "qwen2"},
        {"model_type": "internvl_vision", "image_size": [224, 224], "patch_size": [14, 14], "attention_bias": True},
    ),
    "lighton_ocr": _joined("lighton_ocr", {"model_type": "qwen3", "head_dim": 64}, {"model_type": "pixtral"}),
    "ovis2": _joined(
        "ovis2",
        {"model_type": "qwen2"},
        {**TOWER, "hidden_stride": 2, "vocab_size": 1024},
        tie=True,
        hidden_size=512,
        vocab_size=8192,
        visual_indicator_token_ids=[1, 2, 3, 4, 5],
    ),
    "got_ocr2": _joined(
        "got_ocr2",
        {"model_type": "qwen2"},
        {
            "hidden_size": 256,
            "output_channels": 64,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "mlp_dim": 1024,
            "image_size": 320,
            "patch_size": 16,
            "window_size": 7,
            "global_attn_indexes": [2, 5],
        },
        tie=True,
    ),
    "idefics2": _joined(
        "idefics2",
        {"model_type": "mistral", "pad_token_id": 0},
        {"model_type": "idefics2_vision"},
        perceiver_config={
            "hidden_size": 512,
            "resampler_n_latents": 32,
            "resampler_depth": 2,
            "resampler_n_heads": 8,
            "resampler_head_dim": 64,
        },
    ),
    "mistral3": _joined("mistral3", {"model_type": "ministral3", "head_dim": 64}, {"model_type": "pixtral"}),
    "llama4": {
        "model_type": "llama4",
        "text_config": {
            **TEXT,
            "num_hidden_layers": 6,
            "head_dim": 64,
            "intermediate_size": 512,
            "intermediate_size_mlp": 1408,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 1, 0, 1, 1, 0],
            "attention_chunk_size": 8192,
            "pad_token_id": 0,
        },
        "vision_config": {
            **TOWER,
            "pixel_shuffle_ratio": 0.5,
            "projector_input_dim": 512,
            "projector_output_dim": 512,
            "vision_output_dim": 512,
        },
    },
    "llava_pixtral": _joined(
        "llava",
        {"model_type": "mistral", "head_dim": 64, "sliding_window": None},
        {"model_type": "pixtral"},
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    ),
    "lfm2_vl": {
        "model_type": "lfm2_vl",
        "tie_word_embeddings": True,
        "projector_hidden_size": 640,
        "text_config": {
            **TEXT,
            "model_type": "lfm2",
            "num_hidden_layers": 6,
            "layer_types": ["conv", "conv", "full_attention"] * 2,
            "tie_word_embeddings": True,
        },
        "vision_config": {**_SIGLIP2, "vision_use_head": False},
    },
    "gemma3n": {
        "model_type": "gemma3n",
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "num_hidden_layers": 6,
            "intermediate_size": 1024,
            "tie_word_embeddings": True,
            "head_dim": 64,
            "sliding_window": 256,
            "vocab_size_per_layer_input": 8192,
            "hidden_size_per_layer_input": 32,
            "laurel_rank": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.0] * 6,
        },
        "vision_config": {},
        "audio_config": {"hidden_size": 256, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2},
    },
    "aya_vision": _joined("aya_vision", _COHERE, _SIGLIP, tie=True, alignment_intermediate_size=1024),
    "cohere2_vision": _joined("cohere2_vision", _COHERE, _SIGLIP, tie=True, alignment_intermediate_size=1024),
    "gemma4_unified": {
        "model_type": "gemma4_unified",
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "num_hidden_layers": 6,
            "tie_word_embeddings": True,
            "head_dim": 64,
            "global_head_dim": 128,
            "sliding_window": 256,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
        "vision_config": {"mm_embed_dim": 384, "mm_posemb_size": 256, "output_proj_dims": 384},
        "audio_config": {"audio_embed_dim": 128},
    },
    "qwen2_audio": {
        "model_type": "qwen2_audio",
        "text_config": {**TEXT, "model_type": "qwen2"},
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "encoder_layers": 5,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 1024,
            "d_model": 256,
            "max_source_positions": 200,
        },
    },
    "voxtral": {
        "model_type": "voxtral",
        "text_config": {**TEXT, "model_type": "llama", "head_dim": 64},
        "audio_config": {
            "model_type": "voxtral_encoder",
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "hidden_size": 256,
            "max_source_positions": 200,
        },
    },
    "qwen2_5_omni_thinker": {
        **_qwen(
            "qwen2_5_omni_thinker",
            [8, 12, 12],
            {
                "depth": 6,
                "hidden_size": 256,
                "intermediate_size": 704,
                "out_hidden_size": 512,
                "fullatt_block_indexes": [2, 5],
            },
        ),
        "audio_config": _OMNI_AUDIO,
    },
    "qwen3_omni_moe_thinker": {
        **_qwen(
            "qwen3_omni_moe_thinker",
            [12, 10, 10],
            _QWEN3,
            head_dim=64,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=256,
        ),
        "audio_config": {**_OMNI_AUDIO, "downsample_hidden_size": 64},
    },
    "mllama": {
        "model_type": "mllama",
        "tie_word_embeddings": False,
        "text_config": {
            **TEXT,
            "num_hidden_layers": 6,
            "cross_attention_layers": [1, 4],
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
        "vision_config": {
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_global_layers": 2,
            "attention_heads": 4,
            "intermediate_size": 1024,
            "vision_output_dim": 768,
            "image_size": 112,
            "patch_size": 14,
            "max_num_tiles": 2,
            "intermediate_layers_indices": [1, 2],
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
    },
}
PIXELS = {
    "glm4v": 280**2,
    "glm4v_moe": 280**2,
    "qwen2_vl": 280**2,
    "qwen2_5_vl": 280**2,
    "qwen3_vl": 320**2,
    "qwen3_vl_moe": 320**2,
    "qwen3_5": 320**2,
    "qwen3_5_moe": 320**2,
    "glm_ocr": 280**2,
    "idefics2": 420**2,
    "llava_next": 224**2,
    "llava_next_layers": 224**2,
    "llava_next_video": 224**2,
    "llava_onevision": 336**2,
    "lfm2_vl": 512**2,
    "qwen2_5_omni_thinker": 280**2,
    "qwen3_omni_moe_thinker": 320**2,
}
"""Pixels of the traced image where the tower does not fix them (20 x 20 patches; 2 x 2 tiles and the whole)."""
FIXED = 224**2

PEAKS: dict[str, dict[str, int]] = {
    "llava_onevision": {
        "bf16": 348417024,
        "autocast": 496836096,
        "checkpointing": 178876416,
        "lora": 459942912,
        "eager": 671543808,
        "reentrant": 178876416,
    },
    "llava_next_layers": {
        "bf16": 314699776,
        "autocast": 456817152,
        "checkpointing": 174773248,
        "lora": 402210816,
        "eager": 601866752,
        "reentrant": 174773248,
    },
    "llava_next_video": {
        "bf16": 315085312,
        "autocast": 453182976,
        "checkpointing": 173042688,
        "lora": 397379072,
        "eager": 602098176,
        "reentrant": 173042688,
    },
    "vipllava": {
        "bf16": 309980160,
        "autocast": 449338368,
        "checkpointing": 174573056,
        "lora": 388749312,
        "eager": 598199296,
        "reentrant": 174573056,
    },
    "video_llava": {
        "bf16": 317265408,
        "autocast": 463910400,
        "checkpointing": 181858304,
        "lora": 396968448,
        "eager": 612771328,
        "reentrant": 181858304,
    },
    "deepseek_vl": {
        "bf16": 306200064,
        "autocast": 445531136,
        "checkpointing": 172196352,
        "lora": 387669504,
        "eager": 592646144,
        "reentrant": 172196352,
    },
    "glm_ocr": {
        "bf16": 423288320,
        "autocast": 572976128,
        "checkpointing": 189980160,
        "lora": 471640576,
        "eager": 773129728,
        "reentrant": 189980160,
    },
    "lighton_ocr": {
        "bf16": 353640448,
        "autocast": 504469504,
        "checkpointing": 176948224,
        "lora": 426336256,
        "eager": 675767296,
        "reentrant": 176948224,
    },
    "ovis2": {
        "bf16": 327906304,
        "autocast": 467192320,
        "checkpointing": 170334208,
        "lora": 403206656,
        "eager": 628735488,
        "reentrant": 170334208,
    },
    "got_ocr2": {
        "bf16": 340430336,
        "autocast": 472581120,
        "checkpointing": 167313920,
        "lora": 416212992,
        "eager": 620056576,
        "reentrant": 167313920,
    },
    "idefics2": {
        "bf16": 435069440,
        "autocast": 631643136,
        "checkpointing": 241453568,
        "lora": 582912512,
        "eager": 990661632,
        "reentrant": 241453568,
    },
    "aya_vision": {"bf16": 303305216, "autocast": 431613952, "checkpointing": 168525312, "lora": 388608512},
    "cohere2_vision": {"bf16": 303304192, "autocast": 431608832, "checkpointing": 168524288, "lora": 388607488},
    "gemma4_unified": {"bf16": 488097280, "autocast": 609404928, "checkpointing": 214067712, "lora": 500492800},
    "gemma3n": {"bf16": 11596228096, "autocast": 19565165568, "checkpointing": 11222760448, "lora": 1220280320},
    "glm4v": {"bf16": 376806912, "autocast": 516128768, "checkpointing": 184586752, "lora": 419322368},
    "glm4v_moe": {"bf16": 361047552, "autocast": 531750912, "checkpointing": 195654144},
    "qwen2_vl": {"bf16": 333614080, "autocast": 473076224, "checkpointing": 178099200, "lora": 408608256},
    "qwen2_5_vl": {"bf16": 353055232, "autocast": 494014464, "checkpointing": 181104128, "lora": 427923968},
    "qwen3_vl": {"bf16": 366553088, "autocast": 524490240, "checkpointing": 187988992, "lora": 439625216},
    "qwen3_vl_moe": {"bf16": 369660416, "autocast": 560971776, "checkpointing": 206248960, "lora": 388788224},
    "qwen3_5": {"bf16": 579976192, "autocast": 739892736, "checkpointing": 203472896, "lora": 648459776},
    "qwen3_5_moe": {"bf16": 605638656, "autocast": 832250368, "checkpointing": 234230272, "lora": 652940800},
    "llava": {
        "bf16": 307350528,
        "autocast": 444083200,
        "checkpointing": 171943424,
        "lora": 385284096,
        "eager": 592944128,
        "reentrant": 171943424,
    },
    "llava_next": {
        "bf16": 315085312,
        "autocast": 453182976,
        "checkpointing": 173042688,
        "lora": 397379072,
        "eager": 602098176,
        "reentrant": 173042688,
    },
    "paligemma": {"bf16": 318288896, "autocast": 436647424, "checkpointing": 163817472, "lora": 387601408},
    "gemma3": {"bf16": 392477696, "autocast": 511239168, "checkpointing": 164817920, "lora": 424549376},
    "idefics3": {"bf16": 305413632, "autocast": 445266944, "checkpointing": 171409920, "lora": 386280960},
    "smolvlm": {"bf16": 308559360, "autocast": 454704128, "checkpointing": 174555648, "lora": 389617152},
    "internvl": {"bf16": 309487104, "autocast": 450436096, "checkpointing": 172217856, "lora": 387495424},
    "mistral3": {"bf16": 329801728, "autocast": 480635904, "checkpointing": 176943104, "lora": 410361856},
    "llama4": {"bf16": 412831232, "autocast": 609270272, "checkpointing": 191222272, "reentrant": 189821440},
    "llava_pixtral": {"bf16": 329206272, "autocast": 478726144, "checkpointing": 176352768, "lora": 410315264},
    "lfm2_vl": {"bf16": 414705152, "autocast": 566178816, "checkpointing": 184440320, "lora": 541828608},
    "qwen2_audio": {"bf16": 244699136, "autocast": 419096576, "checkpointing": 131140608, "lora": 318552576},
    "voxtral": {"bf16": 296854016, "autocast": 432795136, "checkpointing": 170084352, "lora": 368954880},
    "qwen2_5_omni_thinker": {"bf16": 352363008, "autocast": 502255616, "checkpointing": 185327104, "lora": 438610432},
    "qwen3_omni_moe_thinker": {"bf16": 374098432, "autocast": 569640960, "checkpointing": 210686976},
    "mllama": {"bf16": 334572544, "autocast": 486425600, "checkpointing": 191551488, "lora": 403301376},
}
"""Peak bytes of the second step of transformers 5.24's own code on fake CUDA tensors (memlint.measure.trace, torch
2.13): two rows of 512 tokens with one image each, SGD, no padding. What depends on data was given: grids, window order
and the equality of token counts; ``masked_scatter`` ran with the gradients that derivatives.yaml states. Llama 4 has no
adapter on all linear layers: its router is one that returns two tensors, which PEFT cannot wrap; nor has Qwen3-Omni,
whose audio layers have the same fault. Of types that hear, an image is a clip, and the positions of the encoder train.
"""

PADDED = {"bf16": 1277646336, "autocast": 1456064512, "lora": 1325951488}
"""Peak bytes of Gemma 4, whose images are padded to one number of patches: its tower always has a mask. The trace takes
the text as padded too.
"""
