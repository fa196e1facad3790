"""Gemma 3n's image and audio sides: MobileNet V5, embedders that stand for tokens too, an audio tower that never runs.

Source: transformers 5.24 models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.gemma4_parts import Norm
from memlint.estimate.families.mobilenet_v5 import INPUT, OUT, SIDE, MobileNetV5
from memlint.estimate.ops.basic import cast
from memlint.estimate.ops.views import scale_in_place
from memlint.models.architecture import Architecture
from memlint.models.config import part

ARCHITECTURE = "mobilenetv5_300m_enc"


def _choose_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # where: the gradient where the condition holds, and where it does not.
    return f.like(grad), f.like(grad)


def choose(f: Tape, mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``torch.where(mask, first, second)`` of two tensors: saves the mask."""
    recorded = f.needs(first, second)
    saved = f.save(mask) if recorded else ()
    out = f.like(second)
    return f.record(out, _choose_backward, (first, second), saved) if recorded else out


class Embedder:
    """Gemma3nMultimodalEmbedder."""

    def __init__(self, a: Architecture, b: Build, name: str, out: int) -> None:
        width = a.hidden_size
        self.embed = b.embedding(f"{name}.embedding", int(a.get("vocab_size", 128)), width)
        self.hard = Norm(b, f"{name}.hard_embedding_norm", width)
        idle, b.idle = b.idle, b.idle or "audio" in name or b.training.images == 0
        self.soft = Norm(b, f"{name}.soft_embedding_norm", width)
        b.idle = idle
        self.project = b.linear(f"{name}.embedding_projection", width, out)
        self.last = Norm(b, None, out)

    def tokens(self, f: Tape, ids: Tensor) -> Tensor:
        """Embeddings of ids."""
        normed = self.hard(f, self.embed(f, f.like(ids)))
        return self.last(f, self.project(f, normed))

    def features(self, f: Tape, x: Tensor) -> Tensor:
        """Embeddings of what a tower made."""
        normed = self.soft(f, x)
        projected = self.project(f, normed)
        return self.last(f, projected)


class Tower:
    """The towers and embedders of Gemma3nModel."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        text, sound = part(whole, "text_config"), part(whole, "audio_config")
        if a.get("architecture", ARCHITECTURE) != ARCHITECTURE or text is None or sound is None:
            raise Unsupported(f"no memory model for `{whole.model_type}` with another tower than {ARCHITECTURE} yet")
        self.vision = MobileNetV5(b, env, f"model.{name}.timm_model")
        idle, b.idle = b.idle, True
        _audio(sound, b, "model.audio_tower")
        # The embedders run without images and sound too: they embed ids that the text model does not know.
        b.idle = False
        self.pair = [
            Embedder(inner, b, f"model.embed_{kind}", text.hidden_size)
            for kind, inner in (("vision", a), ("audio", sound))
        ]
        b.idle = idle

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        return images, 3, INPUT, INPUT

    def before(self, f: Tape, ids: Tensor, x: Tensor) -> tuple[Tensor, list[Any]]:
        """Put embeddings of image and audio ids among x [B, S, H]; and what the model's forward holds of it."""
        held: list[Any] = []
        for embedder in self.pair:
            mask = f.new(ids.shape, "bool")
            chosen = f.like(ids)
            embeds = cast(f, embedder.tokens(f, chosen), x.dtype)
            x = choose(f, mask.view(*ids.shape, 1), embeds, x)
            held += [mask, chosen, embeds]
        return x, held

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any], list[Any]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        given = cast(f, pixels, self.vision.stem.conv.weight.dtype)
        x = self.vision(f, given)
        x = scale_in_place(f, x.view(images, SIDE * SIDE, OUT))
        tokens = self.pair[0].features(f, x)
        return tokens, [], [tokens, x]


def _audio(a: Architecture, b: Build, name: str) -> None:
    """Gemma3nAudioEncoder's parameters."""
    h, depth = a.hidden_size, int(a.get("conf_num_hidden_layers"))
    channels, kernels = a.get("sscp_conv_channel_size"), a.get("sscp_conv_kernel_size")
    mels, inputs, at = int(a.get("input_feat_size", 128)), 1, f"{name}.subsample_conv_projection"
    strides = a.get("sscp_conv_stride_size")
    for index, (width, kernel) in enumerate(zip(channels, kernels)):
        b.parameter(f"{at}.conv_{index}.conv.weight", int(width), inputs, *(int(k) for k in kernel))
        b.parameter(f"{at}.conv_{index}.norm.weight", int(width))
        inputs, mels = int(width), mels // int(strides[index][1])
    b.linear(f"{at}.input_proj_linear", inputs * mels, h)
    # Its layers never run, so one stands for all.
    every = b.run_all_layers
    b.count = 1 if every else depth
    for index in range(depth if every else 1):
        _conformer(a, b, f"{name}.conformer.{index}")
    b.count = 1


def _conformer(a: Architecture, b: Build, name: str) -> None:
    h = a.hidden_size
    for leaf in ("ffw_layer_start", "ffw_layer_end"):
        b.linear(f"{name}.{leaf}.ffw_layer_1", h, 4 * h)
        b.linear(f"{name}.{leaf}.ffw_layer_2", 4 * h, h)
        b.parameter(f"{name}.{leaf}.pre_layer_norm.weight", h)
        b.parameter(f"{name}.{leaf}.post_layer_norm.weight", h)
        b.buffer(4)
    at = f"{name}.attention"
    b.parameter(f"{at}.pre_attn_norm.weight", h)
    b.parameter(f"{at}.attn.per_dim_scale", h // int(a.get("conf_num_attention_heads")))
    b.linear(f"{at}.attn.relative_position_embedding.pos_proj", h, h)
    for leaf in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "post"):
        b.linear(f"{at}.{leaf}", h, h)
    b.parameter(f"{at}.post_norm.weight", h)
    chunk = int(a.get("conf_attention_chunk_size"))
    reach = chunk + int(a.get("conf_attention_context_left")) - 1 + int(a.get("conf_attention_context_right"))
    for size in (4, 4, chunk * reach, 4, h // 2 * 4, 4):
        b.buffer(size)
    b.parameter(f"{name}.lconv1d.pre_layer_norm.weight", h)
    b.linear(f"{name}.lconv1d.linear_start", h, 2 * h)
    b.parameter(f"{name}.lconv1d.depthwise_conv1d.weight", h, 1, int(a.get("conf_conv_kernel_size")))
    b.parameter(f"{name}.lconv1d.conv_norm.weight", h)
    b.linear(f"{name}.lconv1d.linear_end", h, h)
    b.parameter(f"{name}.norm.weight", h)
