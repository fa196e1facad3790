"""Gemma 4's image and audio towers and what fits them to the language model; audio is held and never run.

Source: transformers 5.24 models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.gemma4_parts import Norm
from memlint.estimate.families.gemma4_vision import Vision
from memlint.estimate.ops.images import stacked
from memlint.models.architecture import Architecture
from memlint.models.config import part


class Tower:
    """Gemma4VisionModel, Gemma4AudioModel and their embedders."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        text = part(whole, "text_config")
        assert text is not None
        self.vision = Vision(a, b, env, f"model.{name}")
        self.norm = Norm(b, None, a.hidden_size)
        self.project = b.linear("model.embed_vision.embedding_projection", a.hidden_size, text.hidden_size)
        audio = part(whole, "audio_config")
        b.idle = True
        if audio is not None:
            _audio(audio, b, "model.audio_tower")
            wide = int(audio.get("output_proj_dims", 1536))
            b.linear("model.embed_audio.embedding_projection", wide, text.hidden_size)

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch: every image is padded to the same number of patches."""
        return images, self.vision.patches, self.vision.values

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any], list[Any]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        x = self.vision(f, pixels, images)
        tokens = self.project(f, self.norm(f, x))
        return stacked(f, tokens), [], [tokens, x]


def _clipped(a: Architecture, b: Build, name: str, inputs: int, outputs: int) -> None:
    """Gemma4ClippableLinear: four bounds where it clips."""
    b.linear(f"{name}.linear", inputs, outputs)
    if a.get("use_clipped_linears", False):
        for _ in range(4):
            b.buffer(4)


def _audio(a: Architecture, b: Build, name: str) -> None:
    h = a.hidden_size
    first, second = (int(n) for n in a.get("subsampling_conv_channels"))
    at = f"{name}.subsample_conv_projection"
    for index, (inputs, outputs) in enumerate(((1, first), (first, second))):
        b.parameter(f"{at}.layer{index}.conv.weight", outputs, inputs, 3, 3)
        b.parameter(f"{at}.layer{index}.norm.weight", outputs)
    b.linear(f"{at}.input_proj_linear", first // 4 * second, h)
    b.buffer(h // 2 * 4)
    # Its layers never run, so one stands for all.
    every = b.run_all_layers
    b.count = 1 if every else a.num_hidden_layers
    for index in range(a.num_hidden_layers if every else 1):
        _conformer(a, b, f"{name}.layers.{index}")
    b.count = 1
    b.linear(f"{name}.output_proj", h, int(a.get("output_proj_dims", 1536)), True)


def _conformer(a: Architecture, b: Build, name: str) -> None:
    h = a.hidden_size
    for leaf in ("feed_forward1", "feed_forward2"):
        _clipped(a, b, f"{name}.{leaf}.ffw_layer_1", h, 4 * h)
        _clipped(a, b, f"{name}.{leaf}.ffw_layer_2", 4 * h, h)
        b.parameter(f"{name}.{leaf}.pre_layer_norm.weight", h)
        b.parameter(f"{name}.{leaf}.post_layer_norm.weight", h)
    b.parameter(f"{name}.self_attn.per_dim_scale", h // int(a.get("num_attention_heads")))
    b.buffer(4)
    for leaf in ("q_proj", "k_proj", "v_proj", "post"):
        _clipped(a, b, f"{name}.self_attn.{leaf}", h, h)
    b.linear(f"{name}.self_attn.relative_k_proj", h, h)
    _clipped(a, b, f"{name}.lconv1d.linear_start", h, 2 * h)
    _clipped(a, b, f"{name}.lconv1d.linear_end", h, h)
    b.parameter(f"{name}.lconv1d.depthwise_conv1d.weight", h, 1, int(a.get("conv_kernel_size")))
    for leaf in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        b.parameter(f"{name}.{leaf}.weight", h)
