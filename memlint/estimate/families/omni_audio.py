"""The audio towers of Qwen2.5-Omni and Qwen3-Omni: held in memory beside the images and never run.

Sources: transformers 5.24 models/{qwen2_5_omni,qwen3_omni_moe}/modeling_*.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.families.pieces import LayerNorm
from memlint.models.architecture import Architecture

DOWNSAMPLED = 3
"""Convolutions of Qwen3-Omni's, each of which halves mel bins and frames."""


def held(a: Architecture, b: Build, name: str) -> None:
    """Make the parameters of a tower that takes no part in the step."""
    idle, b.idle = b.idle, True
    h, mels, out = a.hidden_size, int(a.get("num_mel_bins", 128)), int(a.get("output_dim"))
    b.buffer(int(a.get("max_source_positions", 1500)) * h * 4)
    newer = a.model_type == "qwen3_omni_moe_audio_encoder"
    if not newer:
        for index, inputs in enumerate((mels, h), start=1):
            b.parameter(f"{name}.conv{index}.weight", h, inputs, 3)
            b.parameter(f"{name}.conv{index}.bias", h)
        b.embedding(f"{name}.audio_bos_eos_token", 2, out)
    # Its layers never run, so one stands for all.
    every, depth = b.run_all_layers, int(a.get("encoder_layers"))
    b.count = 1 if every else depth
    for index in range(depth if every else 1):
        _layer(a, b, f"{name}.layers.{index}", key_bias=newer)
    b.count = 1
    b.layers += depth
    LayerNorm(b, f"{name}.ln_post", h)
    if not newer:
        b.linear(f"{name}.proj", h, out, True)
    else:
        inner = int(a.get("downsample_hidden_size"))
        for index in range(DOWNSAMPLED):
            b.parameter(f"{name}.conv2d{index + 1}.weight", inner, inner if index else 1, 3, 3)
            b.parameter(f"{name}.conv2d{index + 1}.bias", inner)
            mels = (mels + 1) // 2
        b.linear(f"{name}.conv_out", inner * mels, h)
        b.linear(f"{name}.proj1", h, h, True)
        b.linear(f"{name}.proj2", h, out, True)
    b.idle = idle


def _layer(a: Architecture, b: Build, name: str, *, key_bias: bool) -> None:
    h, inner = a.hidden_size, int(a.get("encoder_ffn_dim"))
    for leaf in ("k_proj", "v_proj", "q_proj", "out_proj"):
        b.linear(f"{name}.self_attn.{leaf}", h, h, key_bias or leaf != "k_proj")
    LayerNorm(b, f"{name}.self_attn_layer_norm", h)
    b.linear(f"{name}.fc1", h, inner, True)
    b.linear(f"{name}.fc2", inner, h, True)
    LayerNorm(b, f"{name}.final_layer_norm", h)
