"""DINOv2, with and without register tokens, under a classifier over the class token and the mean of the patches.

Sources: transformers 5.24 models/{dinov2,dinov2_with_registers}/modeling_*.py.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of, hooked
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, dropout, mean_last, mul, scale, slice_of
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.images import convolution
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

PREFIXES = {"dinov2": "dinov2", "dinov2_with_registers": "dinov2_with_registers"}
"""model_type -> base_model_prefix."""

CROP = 224
"""Side of the square that the published processors crop (crop_size of facebook/dinov2-*'s preprocessor_config.json);
the tables of positions are made for 518 and interpolated."""


class Layer:
    """Dinov2Layer: each branch times a learned vector."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h = self.width = a.hidden_size
        self.env = env
        self.heads = int(a.get("num_attention_heads"))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.drops = float(a.get("drop_path_rate", 0.0)) > 0
        self.norm1 = LayerNorm(b, f"{name}.norm1", h)
        bias = bool(a.get("qkv_bias", True))
        self.q, self.k, self.v = (b.linear(f"{name}.attention.{n}_proj", h, h, bias) for n in "qkv")
        self.out = b.linear(f"{name}.attention.o_proj", h, h, True)
        self.scale1 = b.parameter(f"{name}.layer_scale1.lambda1", h)
        self.norm2 = LayerNorm(b, f"{name}.norm2", h)
        inner = int(h * float(a.get("mlp_ratio", 4)))
        self.gate: Any = None
        if a.get("use_swiglu_ffn", False):
            inner = (int(inner * 2 / 3) + 7) // 8 * 8
            self.act = "silu"
            self.gate, self.up = (b.linear(f"{name}.mlp.{n}_proj", h, inner, True) for n in ("gate", "up"))
            self.down = b.linear(f"{name}.mlp.down_proj", inner, h, True)
        else:
            self.act = str(a.get("hidden_act", "gelu"))
            self.up = b.linear(f"{name}.mlp.fc1", h, inner, True)
            self.down = b.linear(f"{name}.mlp.fc2", inner, h, True)
        self.scale2 = b.parameter(f"{name}.layer_scale2.lambda1", h)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Dinov2Attention."""
        width = self.width // self.heads
        q = heads_of(self.q(f, x), self.heads, width)
        k = heads_of(self.k(f, x), self.heads, width)
        v = heads_of(self.v(f, x), self.heads, width)
        out, weights = attend(f, self.env, q, k, v, None, self.attention_dropout, causal=False, style="raw")
        return self.out(f, out), weights

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """Dinov2MLP, or its gated form."""
        result: Tensor
        if self.gate is not None:
            result = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
            return result
        x = self.up(f, x)
        x = activate(f, x, self.act)
        result = self.down(f, x)
        return result

    def dropped(self, f: Tape, x: Tensor) -> Tensor:
        """Dinov2DropPath."""
        return mul(f, scale(f, x), f.new((x.shape[0], 1, 1), x.dtype)) if self.drops else x

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, H] -> [B, N, H]."""
        residual = x
        x = self.norm1(f, x)
        x, weights = self.attend(f, x)
        x = mul(f, x, self.scale1)
        x = add(f, self.dropped(f, x), residual)
        residual = x
        x = self.norm2(f, x)
        x = self.fed(f, x)
        x = mul(f, x, self.scale2)
        x = add(f, self.dropped(f, x), residual)
        del weights
        return x


def _interpolate_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


class Tower:
    """Dinov2Model: pixels [B, C, h, w] -> normed hidden states [B, N, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.a, self.env = a, env
        h = a.hidden_size
        self.image, self.patch = int(a.get("image_size")), int(a.get("patch_size"))
        self.channels = int(a.get("num_channels", 3))
        at = f"{name}.embeddings"
        self.registers = None
        self.token = b.parameter(f"{at}.cls_token", 1, 1, h)
        if a.get("use_mask_token", True):
            b.parameter(f"{at}.mask_token", 1, h)
        self.positions = b.parameter(f"{at}.position_embeddings", 1, (self.image // self.patch) ** 2 + 1, h)
        if a.model_type == "dinov2_with_registers":
            self.registers = b.parameter(f"{at}.register_tokens", 1, int(a.get("num_register_tokens", 4)), h)
        self.weight = b.parameter(f"{at}.patch_embeddings.projection.weight", h, self.channels, self.patch, self.patch)
        self.bias = b.parameter(f"{at}.patch_embeddings.projection.bias", h)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        layers = f"{name}.encoder.layer"
        make = lambda build, kind, i: Layer(a, build, f"{layers}.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, f"{name}.layernorm", h)

    def placed(self, f: Tape, count: int) -> Tensor:
        """interpolate_pos_encoding: bicubic, in fp32, where the image is not of the table's size."""
        table = self.positions
        if count == table.shape[1]:
            return table
        h = table.shape[2]
        first = slice_of(f, table, (1, 1, h))
        rest = cast(f, slice_of(f, table, (1, table.shape[1] - 1, h)), "fp32")
        patches = f.new((1, count - 1, h), "fp32")
        if f.needs(rest):
            f.record(patches, _interpolate_backward, (rest,), (), rest.shape)
        del rest
        return cat(f, first, cast(f, patches, table.dtype), shape=(1, count, h))

    def __call__(self, f: Tape, pixels: Tensor) -> Tensor:
        """See the class."""
        rows, h = pixels.shape[0], self.a.hidden_size
        count = (pixels.shape[2] // self.patch) ** 2
        x = convolution(f, cast(f, pixels, self.weight.dtype), self.weight, self.bias, (rows, count, h))
        x = hooked(f, self.env, x)
        x = cat(f, expand(f, self.token, (rows, 1, h)), x, shape=(rows, count + 1, h))
        x = add(f, x, self.placed(f, count + 1))
        if self.registers is not None:
            more = self.registers.shape[1]
            parts = slice_of(f, x, (rows, 1, h)), slice_of(f, x, (rows, count, h))
            register = expand(f, self.registers, (rows, more, h))
            x = cat(f, parts[0], register, parts[1], shape=(rows, count + 1 + more, h))
            del parts
        x = dropout(f, x, self.dropout)
        x = self.layers(f, self.env, x)
        return self.norm(f, x)


class Classifier:
    """Dinov2ForImageClassification."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.tower = Tower(a, b, env, PREFIXES[a.model_type])
        self.side = isqrt(b.training.image_pixels) if b.training.image_pixels else min(CROP, self.tower.image)
        self.classifier = b.linear("classifier", 2 * a.hidden_size, labels_of(a), True)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the outputs hold."""
        assert batch.pixels is not None
        x = self.tower(f, batch.pixels)
        self.tower.env.release()
        rows, count, width = x.shape
        extra = 1 + (self.tower.registers.shape[1] if self.tower.registers is not None else 0)
        first = slice_of(f, x, (rows, width))
        patches = slice_of(f, x, (rows, count - extra, width))
        mean = mean_last(f, patches.view(rows, width, count - extra)).view(rows, width)
        joined = cat(f, first, mean)
        return self.classifier(f, joined), x, joined

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)
