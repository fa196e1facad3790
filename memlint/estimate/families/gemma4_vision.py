"""Gemma 4's image tower: patches of any aspect ratio padded to one number, turned by their two places, averaged.

Source: transformers 5.24 models/gemma4/modeling_gemma4.py; the numbers of patches from image_processing_gemma4.py.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.gemma4_parts import Norm, Rotation
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, mul, scale, slice_of
from memlint.estimate.ops.gather import clamp, index_rows, masked_fill
from memlint.estimate.ops.linear import embedding, matmul
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SOFT_TOKENS = 280
"""max_soft_tokens of Gemma4ImageProcessor: most tokens of one image, which all are padded to."""


class Clipped:
    """Gemma4ClippableLinear: where it clips, four bounds, and what stands before and behind the product is kept."""

    def __init__(self, a: Architecture, b: Build, name: str, inputs: int, outputs: int) -> None:
        self.linear = b.linear(f"{name}.linear", inputs, outputs)
        self.clips = bool(a.get("use_clipped_linears", False))
        for _ in range(4 if self.clips else 0):
            b.buffer(4)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        if not self.clips:
            result: Tensor = self.linear(f, x)
            return result
        x = clamp(f, x)
        x = self.linear(f, x)
        return clamp(f, x)


class Attention:
    """Gemma4VisionAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, self.dim = a.hidden_size, int(a.get("head_dim"))
        self.heads = int(a.get("num_attention_heads"))
        self.kv = int(a.get("num_key_value_heads", self.heads))
        self.q = Clipped(a, b, f"{name}.q_proj", h, self.heads * self.dim)
        self.k = Clipped(a, b, f"{name}.k_proj", h, self.kv * self.dim)
        self.v = Clipped(a, b, f"{name}.v_proj", h, self.kv * self.dim)
        self.o = Clipped(a, b, f"{name}.o_proj", self.heads * self.dim, h)
        self.q_norm, self.k_norm = Norm(b, f"{name}.q_norm", self.dim), Norm(b, f"{name}.k_norm", self.dim)
        self.v_norm = Norm(b, None, self.dim)
        self.dropout = float(a.get("attention_dropout") or 0.0)

    def turned(self, f: Tape, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """apply_multidimensional_rope: each half of a head by one of the two places."""
        half = (*x.shape[:-1], x.shape[-1] // 2)
        cos, sin = (t.view(*t.shape[:-1], half[-1]) for t in tables)
        turn = Rotation((cos, sin))
        return cat(f, *[turn(f, part) for part in split(f, x, half, half)])

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, P, h] -> [B, P, h]."""
        rows, length, _ = x.shape
        tables = env.state["tower rope"]
        q = self.q(f, x).view(rows, self.heads, length, self.dim)
        q = self.q_norm(f, q)
        q = self.turned(f, q, tables)
        k = self.k(f, x).view(rows, self.kv, length, self.dim)
        k = self.k_norm(f, k)
        k = self.turned(f, k, tables)
        v = self.v(f, x).view(rows, self.kv, length, self.dim)
        v = self.v_norm(f, v)
        out = env.attend(f, q, k, v, env.state["tower mask"], self.dropout, causal=False)
        return self.o(f, out)


class Layer:
    """Gemma4VisionEncoderLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env = env
        self.act = str(a.get("hidden_activation", "gelu_pytorch_tanh"))
        self.attention = Attention(a, b, f"{name}.self_attn")
        self.gate, self.up = (Clipped(a, b, f"{name}.mlp.{n}_proj", h, inner) for n in ("gate", "up"))
        self.down = Clipped(a, b, f"{name}.mlp.down_proj", inner, h)
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self.norms = [Norm(b, f"{name}.{n}_layernorm", h) for n in names]

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """Gemma4VisionMLP."""
        return self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, P, h] -> [B, P, h]."""
        before, after, second, last = self.norms
        residual = x
        x = before(f, x)
        x = self.attention(f, self.env, x)
        x = after(f, x)
        x = add(f, residual, x)
        residual = x
        x = second(f, x)
        x = self.fed(f, x)
        x = last(f, x)
        return add(f, residual, x)


class Vision:
    """Gemma4VisionModel: patches [B, P, 3 * T * T] -> soft tokens [n, h]."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.env = env
        h, dim = a.hidden_size, int(a.get("head_dim"))
        self.width, self.dim = h, dim
        self.pool = int(a.get("pooling_kernel_size", 3))
        self.values = 3 * int(a.get("patch_size")) ** 2
        self.patches = SOFT_TOKENS * self.pool**2
        at = f"{name}.patch_embedder"
        self.table = b.parameter(f"{at}.position_embedding_table", 2, int(a.get("position_embedding_size")), h)
        self.project: Any = b.linear(f"{at}.input_proj", self.values, h)
        for _ in range(2):
            b.buffer(dim // 4 * 4)
        self.standardised = bool(a.get("standardize", False))
        for _ in range(2 if self.standardised else 0):
            b.buffer(h * 4)
        make = lambda build, kind, i: Layer(a, build, f"{name}.encoder.layers.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)

    def tokens(self) -> int:
        """Soft tokens of a square image."""
        return (isqrt(self.patches) // self.pool) ** 2

    def placed(self, f: Tape, rows: int) -> Tensor:
        """_position_embeddings: a lookup for either place, zeros where there is only padding."""
        ids = f.new((rows, self.patches, 2), "int64")
        shape = self.table.shape[1:]
        places = Tensor((rows, self.patches), "int64", ids.storage)
        parts = [embedding(f, slice_of(f, self.table, shape), places) for _ in "xy"]
        both = add(f, *parts)
        return masked_fill(f, both, f.new((rows, self.patches, 1), "bool"))

    def pooled(self, f: Tape, x: Tensor, padding: Tensor) -> Tensor:
        """Gemma4VisionPooler: averages by a product with one-hot weights, in fp32."""
        rows, count = x.shape[0], self.patches // self.pool**2
        x = masked_fill(f, x, padding)
        weights = f.new((rows, count, self.patches), "fp32")
        return matmul(f, weights, cast(f, x, "fp32"), self.width)

    def __call__(self, f: Tape, pixels: Tensor, images: int) -> Tensor:
        """See the class."""
        env, rows = self.env, pixels.shape[0]
        padding = f.new((rows, self.patches, 1), "bool")
        given = f.like(pixels)
        given = f.like(pixels)
        x = self.project(f, cast(f, given, self.table.dtype))
        del given
        x = add(f, x, self.placed(f, rows))
        state = env.state
        mask = f.new((rows, 1, self.patches, self.patches), "bool")
        state["tower mask"] = mask if env.attention == "sdpa" else f.new(mask.shape, x.dtype)
        state["tower rope"] = tuple([f.new((rows, 1, self.patches, self.dim), x.dtype) for _ in range(2)])
        del state, mask
        x = self.layers(f, env, x)
        out = self._soft(f, x, padding, images)
        env.release()
        return cast(f, out, x.dtype)

    def _soft(self, f: Tape, x: Tensor, padding: Tensor, images: int) -> Tensor:
        x = self.pooled(f, x, padding)
        x = scale(f, x)
        flat = x.view(x.shape[0] * x.shape[1], self.width)
        return index_rows(f, flat, f.new((images * self.tokens(),), "int64"))
