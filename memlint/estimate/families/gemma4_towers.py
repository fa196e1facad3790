"""Gemma 4's image and audio towers, which a run without images holds and does not run.

Source: transformers 5.24 models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.models.architecture import Architecture
from memlint.models.config import part


class Tower:
    """Gemma4VisionModel, Gemma4AudioModel and their embedders."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        if b.training.images:
            raise Unsupported("no memory model for images in Gemma 4 yet")
        text = part(whole, "text_config")
        assert text is not None
        _vision(a, b, f"model.{name}")
        b.linear("model.embed_vision.embedding_projection", a.hidden_size, text.hidden_size)
        audio = part(whole, "audio_config")
        if audio is not None:
            _audio(audio, b, "model.audio_tower")
            wide = int(audio.get("output_proj_dims", 1536))
            b.linear("model.embed_audio.embedding_projection", wide, text.hidden_size)


def _clipped(a: Architecture, b: Build, name: str, inputs: int, outputs: int) -> None:
    """Gemma4ClippableLinear: four bounds where it clips."""
    b.linear(f"{name}.linear", inputs, outputs)
    if a.get("use_clipped_linears", False):
        for _ in range(4):
            b.buffer(4)


def _vision(a: Architecture, b: Build, name: str) -> None:
    h, inner, dim = a.hidden_size, int(a.get("intermediate_size")), int(a.get("head_dim"))
    heads = int(a.get("num_attention_heads"))
    kv = int(a.get("num_key_value_heads", heads))
    at = f"{name}.patch_embedder"
    b.parameter(f"{at}.position_embedding_table", 2, int(a.get("position_embedding_size")), h)
    b.linear(f"{at}.input_proj", 3 * int(a.get("patch_size")) ** 2, h)
    for _ in range(2):
        b.buffer(dim // 4 * 4)
    if a.get("standardize", False):
        for _ in range(2):
            b.buffer(h * 4)
    for index in range(a.num_hidden_layers):
        layer = f"{name}.encoder.layers.{index}"
        for leaf, inputs, outputs in (
            ("q_proj", h, heads * dim),
            ("k_proj", h, kv * dim),
            ("v_proj", h, kv * dim),
            ("o_proj", heads * dim, h),
        ):
            _clipped(a, b, f"{layer}.self_attn.{leaf}", inputs, outputs)
        for leaf in ("q_norm", "k_norm"):
            b.parameter(f"{layer}.self_attn.{leaf}.weight", dim)
        for leaf, inputs, outputs in (("gate_proj", h, inner), ("up_proj", h, inner), ("down_proj", inner, h)):
            _clipped(a, b, f"{layer}.mlp.{leaf}", inputs, outputs)
        for leaf in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            b.parameter(f"{layer}.{leaf}_layernorm.weight", h)


def _audio(a: Architecture, b: Build, name: str) -> None:
    h = a.hidden_size
    first, second = (int(n) for n in a.get("subsampling_conv_channels"))
    at = f"{name}.subsample_conv_projection"
    for index, (inputs, outputs) in enumerate(((1, first), (first, second))):
        b.parameter(f"{at}.layer{index}.conv.weight", outputs, inputs, 3, 3)
        b.parameter(f"{at}.layer{index}.norm.weight", outputs)
    b.linear(f"{at}.input_proj_linear", first // 4 * second, h)
    b.buffer(h // 2 * 4)
    for index in range(a.num_hidden_layers):
        _conformer(a, b, f"{name}.layers.{index}")
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
