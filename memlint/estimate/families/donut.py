"""Donut's image tower: Swin as it was first written, attention composed, whole stages checkpointed, no last norm.

Source: transformers 5.24 models/donut/modeling_donut_swin.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import swin
from memlint.estimate.families.pieces import heads_of
from memlint.estimate.families.swin import moved
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, scale, slice_of
from memlint.estimate.ops.linear import matmul
from memlint.models.architecture import Architecture


class Attention(swin.Attention):
    """DonutSwinSelfAttention and DonutSwinSelfOutput."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int, heads: int, window: int, env: Env) -> None:
        self.env, self.heads, self.window = env, heads, window
        self.dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        bias, at = bool(a.get("qkv_bias", True)), f"{name}.self"
        self.table = b.parameter(f"{at}.relative_position_bias_table", (2 * window - 1) ** 2, heads)
        b.buffer(window**4 * 8)
        self.q, self.k, self.v = (b.linear(f"{at}.{n}", width, width, bias) for n in ("query", "key", "value"))
        self.out = b.linear(f"{name}.output.dense", width, width, True)

    def __call__(self, f: Tape, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See swin.Attention; nobody keeps the weights."""
        rows, area, width = x.shape
        loose, size = rows > 1, width // self.heads
        q, k, v = (heads_of(project(f, x), self.heads, size) for project in (self.q, self.k, self.v))
        scores = matmul(f, q, k, area, copy_a=loose, copy_b=loose)
        scores = scale(f, scores)
        bias = self.biases(f)
        scores = add(f, scores, bias)
        if mask is not None:
            # The mask is seen as [1, windows, 1, w^2, w^2].
            scores = add(f, scores, Tensor((1, 1, area, area), mask.dtype, mask.storage))
        shares = softmax(f, scores)
        del scores
        shares = dropout(f, shares, self.dropout)
        mixed = copy(f, matmul(f, shares, v, size, copy_b=loose))
        out = dropout(f, self.out(f, mixed.view(rows, area, width)), self.dropout)
        del bias, mixed
        return out, None


class Layer(swin.Layer):
    """DonutSwinLayer."""

    attention = Attention
    names = ("intermediate.dense", "output.dense")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, C] -> the same shape."""
        rows, count, width = x.shape
        shortcut = x
        x = self.norm1(f, x)
        x = moved(f, x.view(rows, *self.grid, width), (rows, *self.padded, width))
        shifted = moved(f, x) if self.shift else x
        windows = self.parted(f, shifted)
        mask = self.mask(f, x.dtype)
        output, _ = self.attend(f, windows, mask)
        joined = self.joined(f, output, rows)
        attended = moved(f, joined) if self.shift else joined
        if self.padded != self.grid:
            attended = copy(f, slice_of(f, attended, (rows, *self.grid, width)))
        attended = attended.view(rows, count, width)
        x = add(f, shortcut, self.dropped(f, attended))
        out = self.norm2(f, x)
        out = self.fed(f, out)
        out = add(f, x, dropout(f, out, self.dropout))
        del windows, mask, output, attended, shortcut, shifted, joined
        return out


class Stage(swin.Stage):
    """DonutSwinStage: its layers are not checkpointed by themselves."""

    layer = Layer

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, C] -> [B, N / 4, 2 C]."""
        for layer in self.layers:
            x = layer(f, x)
        before = x
        if self.merging is not None:
            x = self.merging(f, x)
        self.env.left = before
        return x


class Tower(swin.Tower):
    """DonutSwinModel."""

    stage: Any = Stage
    normed = False
