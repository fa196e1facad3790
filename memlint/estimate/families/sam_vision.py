"""Segment Anything's image tower, as GOT-OCR 2 has it: attention within windows and over the whole image, composed,
with relative positions along both axes; convolutions behind it, and those that make image tokens of its map.

Source: transformers 5.24 models/got_ocr2/modeling_got_ocr2.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.convnets import Convolution
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.vision_tower import side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout, scale, slice_of
from memlint.estimate.ops.images import convolution, requiring_grad, unbind
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import index, seen_strided
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

WINDOW = 14
WHOLE = (2, 5, 8, 11)
"""window_size and global_attn_indexes of GotOcr2VisionConfig."""


def _resized_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def resized(f: Tape, x: Tensor) -> Tensor:
    """``F.interpolate`` in one dimension to the size that is already there; on autocast's fp32 list."""
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    out = f.like(x)
    return f.record(out, _resized_backward, (x,), (), x.shape) if f.needs(x) else out


class Attention:
    """GotOcr2VisionAttention."""

    def __init__(self, a: Architecture, b: Build, name: str, size: int) -> None:
        h = a.hidden_size
        self.heads, self.dropout = int(a.get("num_attention_heads")), float(a.get("attention_dropout", 0.0))
        self.qkv = b.linear(f"{name}.qkv", h, 3 * h, bool(a.get("qkv_bias", True)))
        self.proj = b.linear(f"{name}.proj", h, h, True)
        self.along: list[Tensor] = []
        if a.get("use_rel_pos", True):
            shape = (2 * size - 1, h // self.heads)
            self.along = [b.parameter(f"{name}.rel_pos_{n}", *shape) for n in "hw"]

    def positions(self, f: Tape, query: Tensor, side: int) -> Tensor:
        """get_decomposed_rel_pos: [B, side^2, side^2] for queries [B, side^2, d]."""
        rows, _, width = query.shape
        high, wide = (index(f, resized(f, table), (side, side, width)) for table in self.along)
        # einsum makes one batch of each row of patches, which it copies, and of each column, which it need not.
        by_row = matmul(f, query.view(side, rows * side, width), high.view(side, width, side), side, copy_a=rows > 1)
        by_column = matmul(f, query.view(side, rows * side, width), wide.view(side, width, side), side)
        by_row, by_column = by_row.view(rows, side, side, side, 1), by_column.view(rows, side, side, 1, side)
        return add(f, by_row, by_column)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, h, w, C] -> the same shape, and its weights."""
        rows, side, _, h = x.shape
        count, width = side * side, h // self.heads
        batch = rows * self.heads
        qkv = self.qkv(f, x)
        query, key, value = unbind(f, copy(f, qkv), (batch, count, width), 3)
        weights = matmul(f, scale(f, query), key, count)
        if self.along:
            placed = self.positions(f, query, side)
            if batch > 1:
                # Laid out by rows of patches first: reshape copies it.
                placed = copy(f, placed)
            weights = add(f, weights, placed.view(batch, count, count))
        weights = cast(f, softmax(f, weights, "fp32"), query.dtype)
        shares = dropout(f, weights, self.dropout)
        out = copy(f, matmul(f, shares, value, width))
        out = self.proj(f, out.view(rows, side, side, h))
        del qkv
        return out, weights


class Layer:
    """GotOcr2VisionLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, window: int, side: int) -> None:
        h = a.hidden_size
        self.window, self.act = window, str(a.get("hidden_act", "gelu"))
        self.norm1 = LayerNorm(b, f"{name}.layer_norm1", h)
        self.attn = Attention(a, b, f"{name}.attn", window or side)
        self.norm2 = LayerNorm(b, f"{name}.layer_norm2", h)
        inner = int(a.get("mlp_dim", 3072))
        self.lin1, self.lin2 = (
            b.linear(f"{name}.mlp.lin1", h, inner, True),
            b.linear(f"{name}.mlp.lin2", inner, h, True),
        )

    def parted(self, f: Tape, x: Tensor) -> Tensor:
        """window_partition: padded, and windows one after another."""
        rows, side, _, h = x.shape
        window = self.window
        across = -(-side // window)
        edge = across * window
        x = copy(f, x, (rows, edge, edge, h))
        return copy(f, x, (rows * across**2, window, window, h))

    def whole(self, f: Tape, x: Tensor, rows: int, side: int) -> Tensor:
        """window_unpartition."""
        h = x.shape[-1]
        across = -(-side // self.window)
        edge = across * self.window
        x = copy(f, x, (rows, edge, edge, h))
        return copy(f, slice_of(f, x, (rows, side, side, h))) if edge != side else x

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, h, w, C] -> the same shape."""
        residual, (rows, side, _, _) = x, x.shape
        x = self.norm1(f, x)
        if self.window:
            x = self.parted(f, x)
        x, weights = self.attn(f, x)
        if self.window:
            x = self.whole(f, x, rows, side)
        elif rows > 1:
            x = seen_strided(f, x)
        x = add(f, residual, x)
        normed = self.norm2(f, x)
        # Hidden states, and so their gradients, stay laid out as the patches' convolution made them.
        fed = self.fed(f, normed)
        x = add(f, x, seen_strided(f, fed) if rows > 1 else fed)
        del weights, normed, residual, fed
        return x

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """GotOcr2MLPBlock."""
        x = self.lin1(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.lin2(f, x)
        return result


class Tower:
    """GotOcr2VisionEncoder: pixels [B, C, s, s] -> a map [B, C', s/16, s/16]."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.env, h = env, a.hidden_size
        self.width = h
        self.image, self.patch = side_of(a.get("image_size", 1024)), side_of(a.get("patch_size", 16))
        self.channels, side = int(a.get("num_channels", 3)), self.image // self.patch
        self.side, at = side, f"{name}.patch_embed.projection"
        self.places = b.parameter(f"{name}.pos_embed", 1, side, side, h) if a.get("use_abs_pos", True) else None
        self.weight = b.parameter(f"{at}.weight", h, self.channels, self.patch, self.patch)
        self.bias = b.parameter(f"{at}.bias", h)
        whole, window = a.get("global_attn_indexes", WHOLE), int(a.get("window_size", WINDOW))
        kinds = [0 if i in whole else window for i in range(a.num_hidden_layers)]
        make = lambda build, kind, i: Layer(a, build, f"{name}.layers.{i}", kind, side)  # noqa: E731
        self.layers = Stack(b, kinds, make)
        out = self.out = int(a.get("output_channels", 256))
        self.first = Convolution(b, f"{name}.neck.conv1", h, out, 1, 1, bias=False)
        self.norm1 = LayerNorm(b, f"{name}.neck.layer_norm1", out)
        self.second = Convolution(b, f"{name}.neck.conv2", out, out, 3, 1, bias=False)
        self.norm2 = LayerNorm(b, f"{name}.neck.layer_norm2", out)

    def __call__(self, f: Tape, pixels: Tensor) -> Tensor:
        """See the class."""
        rows, side, h = pixels.shape[0], self.side, self.width
        x = convolution(f, pixels, self.weight, self.bias, (rows, side, side, h))
        if self.env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        if self.places is not None:
            x = add(f, x, self.places)
        x = self.layers(f, self.env, x)
        self.env.release()
        return self.neck(f, x.view(rows, h, side, side))

    def neck(self, f: Tape, x: Tensor) -> Tensor:
        """GotOcr2VisionNeck."""
        rows, side = x.shape[0], x.shape[2]
        flat, high = (rows, side, side, self.out), (rows, self.out, side, side)
        x = self.first(f, x)
        x = self.norm1(f, x.view(*flat)).view(*high)
        x = self.second(f, x, 1)
        return self.norm2(f, x.view(*flat)).view(*high)


class GotOcr2:
    """The tower, two convolutions that halve the map's sides, and one matrix."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.tower = Tower(a, b, env, f"model.{name}")
        text: Any = whole.config["text_config"]
        out, inner, at = int(text["hidden_size"]), self.tower.out, "model.multi_modal_projector"
        self.first = Convolution(b, f"{at}.conv_upsampler1", inner, 2 * inner, 3, 2, bias=False)
        self.second = Convolution(b, f"{at}.conv_upsampler2", 2 * inner, out, 3, 2, bias=False)
        self.linear = b.linear(f"{at}.multimodal_projector", out, out, True)

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        return images, self.tower.channels, self.tower.image, self.tower.image

    def projected(self, f: Tape, x: Tensor) -> Tensor:
        """GotOcr2MultiModalProjector."""
        x = self.first(f, x, 1)
        x = self.second(f, x, 1)
        result: Tensor = self.linear(f, x.view(x.shape[0], x.shape[2] * x.shape[3], x.shape[1]))
        return result

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any], list[Any]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        given = cast(f, pixels, self.tower.weight.dtype)
        x = self.tower(f, given)
        tokens = self.projected(f, x)
        del given
        return tokens, [], [tokens, x]
