"""SegFormer: four stages of overlapping patches whose attention looks at fewer keys, under a classifier or under a head
that gives every pixel a class (the objective token-classification).

Source: transformers 5.24 models/segformer/modeling_segformer.py.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.convnets import Convolution
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.strided import strided
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, copy, dropout, mul, saving_output, scale
from memlint.estimate.ops.convolutions import batch_norm, mean_over
from memlint.estimate.ops.images import unfold
from memlint.estimate.ops.linear import to_autocast
from memlint.estimate.ops.loss import cross_entropy
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

SIDE = 512
"""Side of the square that the image processor makes (image_processing_segformer.py); the config states none."""


def states_of(f: Tape, x: Tensor) -> Tensor:
    """``x.flatten(2).transpose(1, 2)`` of a map that is laid out channels last: a view."""
    return x.view(x.shape[0], x.shape[2] * x.shape[3], x.shape[1])


def map_of(f: Tape, x: Tensor) -> Tensor:
    """``x.transpose(1, 2).view(B, C, h, w)``: a view, channels last."""
    side = isqrt(x.shape[1])
    return x.view(x.shape[0], x.shape[2], side, side)


class Attention:
    """SegformerAttention."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int, heads: int, ratio: int, env: Env) -> None:
        self.env, self.heads = env, heads
        self.dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.q, self.k, self.v, self.out = (b.linear(f"{name}.{n}_proj", width, width, True) for n in "qkvo")
        self.reduce, self.norm = None, None
        if ratio > 1:
            at = f"{name}.sequence_reduction"
            self.reduce = Convolution(b, f"{at}.sequence_reduction", width, width, ratio, ratio)
            self.norm = LayerNorm(b, f"{at}.layer_norm", width)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, N, C] -> the same shape, and its weights under eager."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.q(f, x), self.heads, width)
        fewer = x
        if self.reduce is not None and self.norm is not None:
            fewer = self.norm(f, states_of(f, self.reduce(f, map_of(f, x))))
        k, v = heads_of(self.k(f, fewer), self.heads, width), heads_of(self.v(f, fewer), self.heads, width)
        out, weights = attend(f, self.env, q, k, v, None, self.dropout, causal=False)
        del fewer
        return self.out(f, out), weights


class Layer:
    """SegformerLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, stage: int, width: int, drops: bool, env: Env) -> None:
        self.drops, self.act = drops, str(a.get("hidden_act", "gelu"))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.norm1 = LayerNorm(b, f"{name}.layernorm_before", width)
        heads, ratio = int(a.get("num_attention_heads")[stage]), int(a.get("sr_ratios")[stage])
        self.attention = Attention(a, b, f"{name}.attention", width, heads, ratio, env)
        self.norm2 = LayerNorm(b, f"{name}.layernorm_after", width)
        inner = int(width * float(a.get("mlp_ratios")[stage]))
        self.up, self.down = (
            b.linear(f"{name}.mlp.fc1", width, inner, True),
            strided(b.linear(f"{name}.mlp.fc2", inner, width, True)),
        )
        self.depthwise = Convolution(b, f"{name}.mlp.dwconv.dwconv", inner, inner, 3, 1, groups=inner)

    def dropped(self, f: Tape, x: Tensor) -> Tensor:
        """SegformerDropPath."""
        return mul(f, scale(f, x), f.new((x.shape[0], 1, 1), x.dtype)) if self.drops else x

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """SegformerMixMLP."""
        x = self.up(f, x)
        x = states_of(f, self.depthwise(f, map_of(f, x), 1))
        x = activate(f, x, self.act)
        x = dropout(f, x, self.dropout)
        # The convolution leaves its map channels first.
        x = self.down(f, x)
        return dropout(f, x, self.dropout)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, C] -> the same shape."""
        residual = x
        x = self.norm1(f, x)
        x, weights = self.attention(f, x)
        x = dropout(f, x, self.dropout)
        x = add(f, self.dropped(f, x), residual)
        residual = x
        x = self.norm2(f, x)
        x = self.fed(f, x)
        x = add(f, self.dropped(f, x), residual)
        del weights
        return x


class Stage:
    """SegformerStage: x [B, C, h, w] -> [B, C', h / s, w / s]."""

    def __init__(self, a: Architecture, b: Build, name: str, stage: int, env: Env) -> None:
        self.env = env
        widths, depths = [int(n) for n in a.get("hidden_sizes")], [int(n) for n in a.get("depths")]
        width, inputs = widths[stage], widths[stage - 1] if stage else int(a.get("num_channels", 3))
        kernel, stride = int(a.get("patch_sizes")[stage]), int(a.get("strides")[stage])
        self.patches = Convolution(b, f"{name}.patch_embeddings.proj", inputs, width, kernel, stride)
        self.first_norm = LayerNorm(b, f"{name}.patch_embeddings.layer_norm", width)
        first, rate = sum(depths[:stage]), float(a.get("drop_path_rate", 0.1))
        self.layers = [
            Layer(a, b, f"{name}.blocks.{i}", stage, width, rate > 0 and first + i > 0, env)
            for i in range(depths[stage])
        ]
        self.norm = LayerNorm(b, f"{name}.layer_norm", width)
        self.mapped = stage < len(depths) - 1 or bool(a.get("reshape_last_stage", True))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """See the class."""
        x = self.first_norm(f, states_of(f, self.patches(f, x, self.patches.kernel // 2)))
        for index, layer in enumerate(self.layers):
            x = self.env.call(f, layer, index, x)
        x = self.norm(f, x)
        side = isqrt(x.shape[1])
        return copy(f, x, (x.shape[0], x.shape[2], side, side)) if self.mapped else x


class Tower:
    """SegformerModel: pixels -> the maps of its stages."""

    image = SIDE

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.channels = int(a.get("num_channels", 3))
        count = len(a.get("depths"))
        self.stages = [Stage(a, b, f"segformer.stages.{i}", i, env) for i in range(count)]

    def __call__(self, f: Tape, pixels: Tensor, kept: list[Tensor] | None = None) -> Tensor:
        """The last map; all of them are put into ``kept``."""
        x = pixels
        for stage in self.stages:
            x = stage(f, x)
            if kept is not None:
                kept.append(x)
        return x


class Classifier:
    """SegformerForImageClassification."""

    uncast = True
    """Pixels have the dtype of the weights: nothing casts them."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.tower = Tower(a, b, env)
        self.side = isqrt(b.training.image_pixels) if b.training.image_pixels else SIDE
        self.classifier = b.linear("classifier", int(a.get("hidden_sizes")[-1]), labels_of(a), True)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the outputs hold."""
        assert batch.pixels is not None
        x = self.tower(f, batch.pixels)
        pooled = mean_over(f, x, (x.shape[0], self.classifier_width(x)))
        return self.classifier(f, pooled), pooled, x

    def classifier_width(self, x: Tensor) -> int:
        """Channels of a map, or of states."""
        return x.shape[1] if len(x.shape) == 4 else x.shape[2]

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)


def enlarged(f: Tape, x: Tensor, side: int) -> Tensor:
    """``F.interpolate`` to a square, bilinear; on autocast's fp32 list."""
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    return unfold(f, x, (*x.shape[:2], side, side))


class Segmenter:
    """SegformerForSemanticSegmentation: SegformerDecodeHead over the maps of all stages."""

    uncast = True

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.tower = Tower(a, b, env)
        self.side = isqrt(b.training.image_pixels) if b.training.image_pixels else SIDE
        widths, at, width = (
            [int(n) for n in a.get("hidden_sizes")],
            "decode_head",
            int(a.get("decoder_hidden_size", 256)),
        )
        self.project = [b.linear(f"{at}.linear_projections.{i}.proj", n, width, True) for i, n in enumerate(widths)]
        self.fuse = Convolution(b, f"{at}.linear_fuse", width * len(widths), width, 1, 1, bias=False)
        self.weight, self.bias = (b.parameter(f"{at}.batch_norm.{n}", width) for n in ("weight", "bias"))
        for size in (width, width):
            b.buffer(size * DTYPE_BYTES[b.training.precision.weights])
        b.buffer(8)
        self.dropout = float(a.get("classifier_dropout_prob", 0.1))
        self.classifier = Convolution(b, f"{at}.classifier", width, labels_of(a), 1, 1)

    def labels_shape(self, rows: int) -> tuple[int, ...]:
        """A class for each pixel."""
        return rows, self.side, self.side

    def decoded(self, f: Tape, maps: list[Tensor]) -> Tensor:
        """SegformerDecodeHead."""
        side, parts = maps[0].shape[2], []
        for x, project in zip(maps, self.project):
            rows, width, own, _ = x.shape
            # The map is laid out channels first: F.linear copies its states.
            given = copy(f, to_autocast(f, x), (rows, own * own, width)) if rows > 1 else x.view(rows, own * own, width)
            projected = project(f, given)
            del given
            parts.append(enlarged(f, projected.view(rows, projected.shape[2], own, own), side))
            del projected, x
        rows, width = parts[0].shape[:2]
        x = self.fuse(f, cat(f, *parts, shape=(rows, width * len(parts), side, side)))
        x = batch_norm(f, x, self.weight, self.bias)
        x = saving_output(f, x)
        x = dropout(f, x, self.dropout)
        out = self.classifier(f, x)
        del parts
        return out

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels, h / 4, w / 4], and the maps that the outputs hold."""
        assert batch.pixels is not None
        maps: list[Tensor] = []
        self.tower(f, batch.pixels, maps)
        return self.decoded(f, maps), maps

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the pixels of the logits made as large as the labels."""
        assert batch.labels is not None
        large = enlarged(f, output[0], self.side)
        return cross_entropy(f, large, batch.labels)
