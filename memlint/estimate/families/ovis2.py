"""Ovis 2: a tower whose states choose, softly, among a vocabulary of visual words; and the table of those words.

Source: transformers 5.24 models/ovis2/modeling_ovis2.py; image_processing_ovis2.py for the tiles.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.pieces import LayerNorm, attend, cut_off, heads_of
from memlint.estimate.families.vision_tower import side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, cat, copy, mul
from memlint.estimate.ops.images import convolution, put_rows
from memlint.estimate.ops.linear import embedding, matmul, to_autocast
from memlint.estimate.ops.views import select
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


def laid_out(f: Tape, x: Tensor) -> Tensor:
    """Patches are strided as their convolution left them, and norms of this kind keep that: each matrix copies its
    input (reshape in aten/src/ATen/native/LinearAlgebra.cpp), but for one image alone, whose rows and columns it swaps.
    """
    return copy(f, to_autocast(f, x)) if x.shape[0] > 1 else x


class Layer:
    """Ovis2VisionEncoderLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, bias = a.hidden_size, bool(a.get("qkv_bias", False))
        self.env, self.heads = env, int(a.get("num_attention_heads"))
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.k, self.v, self.q = (b.linear(f"{name}.attention.{n}_proj", h, h, bias) for n in "kvq")
        self.out = b.linear(f"{name}.attention.out_proj", h, h, bias)
        act, inner = str(a.get("hidden_act", "silu")), int(a.get("intermediate_size"))
        self.mlp = GatedMlp(b, f"{name}.ffn", h, inner, act, bias=bool(a.get("mlp_bias", False)))
        self.norm1, self.norm2 = (Norm(b, f"{name}.rms_norm{i}", h, "llama") for i in (1, 2))

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Ovis2VisionAttention."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(project(f, laid_out(f, x)), self.heads, width) for project in (self.q, self.k, self.v))
        out, weights = attend(f, self.env, q, k, v, None, self.dropout, causal=False)
        return self.out(f, out), weights

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, H] -> [B, N, H]."""
        normed = self.norm1(f, self.env, x)
        attended, weights = self.attend(f, normed)
        x = add(f, x, attended)
        normed = self.norm2(f, self.env, x)
        fed = self.fed(f, normed)
        out = add(f, x, fed)
        del weights, attended
        return out

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """Ovis2MLP."""
        gate = activate(f, self.mlp.gate(f, laid_out(f, x)), self.mlp.act)
        result: Tensor = self.mlp.down(f, mul(f, gate, self.mlp.up(f, laid_out(f, x))))
        return result


class Tower:
    """Ovis2VisionModel, and the table: pixels [B, C, h, w] -> image tokens [B, N, H]."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        if a.get("tokenize_function", "softmax") != "softmax":
            raise Unsupported("no memory model for visual words that are chosen hard yet")
        self.env, self.width = env, a.hidden_size
        h, at = self.width, f"model.{name}.transformer"
        self.image, self.patch = side_of(a.get("image_size")), side_of(a.get("patch_size"))
        self.channels, self.stride = int(a.get("num_channels", 3)), int(a.get("hidden_stride", 1))
        self.weight = b.parameter(f"{at}.embeddings.patch_embedding.weight", h, self.channels, self.patch, self.patch)
        self.bias = b.parameter(f"{at}.embeddings.patch_embedding.bias", h)
        count = (self.image // self.patch) ** 2
        self.positions = b.parameter(f"{at}.embeddings.position_embedding.weight", count, h)
        b.buffer(count * 8)
        self.first_norm = Norm(b, f"{at}.embeddings.rms_norm", h, "llama")
        make = lambda build, _, i: Layer(a, build, f"{at}.encoder.layers.{i}", env)  # noqa: E731
        idle, b.idle = b.idle, b.idle or cut_off(env, self.weight, self.bias, self.positions)
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        b.idle = idle
        self.norm = Norm(b, f"{at}.rms_norm", h, "llama")
        self.words, self.marks = int(a.get("vocab_size")), int(a.get("num_visual_indicator_tokens", 5))
        """Visual words; those of them that stand around images and are looked up."""
        own = self.words - self.marks
        self.head = b.linear(f"model.{name}.head_linear", h * self.stride**2, own)
        self.head_norm = LayerNorm(b, f"model.{name}.head_norm", own)
        text: Any = whole.config["text_config"]
        self.out = int(whole.get("hidden_size") or text["hidden_size"])
        self.table = b.parameter("model.visual_embeddings_table.weight", self.words, self.out)
        self.kinds = len(whole.get("visual_indicator_token_ids", range(5)))

    def tiles(self, pixels: int | None) -> int:
        """crop_to_patches is off unless asked for."""
        return 1

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        return images, self.channels, self.image, self.image

    def embedded(self, f: Tape, pixels: Tensor) -> Tensor:
        """Ovis2VisionEmbeddings."""
        rows, side = pixels.shape[0], pixels.shape[2] // self.patch
        count, h = side * side, self.width
        x = convolution(f, cast(f, pixels, self.weight.dtype), self.weight, self.bias, (rows, count, h))
        x = self.first_norm(f, self.env, x)
        return add(f, x, embedding(f, self.positions, Tensor((1, count), "int64", None)))

    def strided(self, f: Tape, x: Tensor) -> Tensor:
        """Squares of states side by side."""
        rows, count, h = x.shape
        if self.stride == 1:
            return laid_out(f, x)
        side = isqrt(count)
        padded = -(-side // self.stride) * self.stride
        x = copy(f, x, (rows, padded * padded, h))
        return copy(f, x, (rows, padded**2 // self.stride**2, h * self.stride**2))

    def chosen(self, f: Tape, x: Tensor) -> Tensor:
        """The words' shares: logits, a norm, softmax."""
        x = self.head(f, x)
        x = self.head_norm(f, x)
        return softmax(f, x)

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any], list[Any]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        env = self.env
        x = self.embedded(f, pixels)
        # No hook on the patches under checkpointing: the tower names no ``_input_embed_layer`` (modeling_utils.py).
        embedded = [x]
        del x
        x = self.layers(f, env, embedded)
        x = self.norm(f, env, x)
        env.release()
        x = self.strided(f, x)
        shares = self.chosen(f, x)
        rows, count, _ = shares.shape
        marks = f.new((rows, count, self.marks), shares.dtype)
        shares = cat(f, shares, marks)
        tokens = matmul(f, shares, self.table, self.out)
        ids = f.new((self.marks,), "int64")
        self.around = embedding(f, self.table, ids)
        return tokens, [], [tokens, x, self.around]

    def after(self, f: Tape, x: Tensor) -> Tensor:
        """The words around images are put among the embeddings, a kind at a time."""
        around, self.around = self.around, None  # type: ignore[assignment]
        for _ in range(self.kinds):
            mask = f.new((*x.shape[:2],), "bool")
            x = put_rows(f, x, select(f, around, (self.out,)))
            del mask
        return x
