"""DiffLlama: the difference of two attention maps, computed as two attention calls over the halves of the values.

Source: transformers 5.24 models/diffllama/modeling_diffllama.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import llama
from memlint.estimate.families.pieces import attend
from memlint.estimate.families.rotary import rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.basic import cast, cat, copy, mul, saving_output, scale, shift
from memlint.estimate.ops.gather import subtract, sum_last
from memlint.estimate.ops.norm import fused_rms_norm
from memlint.estimate.ops.views import split
from memlint.models.architecture import Architecture


class Attention(llama.Attention):
    """DiffLlamaAttention."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        super().__init__(a, b, name, s)
        self.lambdas = [b.parameter(f"{name}.lambda_{n}", self.dim) for n in ("q1", "k1", "q2", "k2")]

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        q, k, v = self.project(f, env, x)
        q, k = rotate_both(f, q, k, env.state["rope"], self.shape)
        half = (b, self.kv // 2, s, self.dim)
        first, second = split(f, v, half, half)
        # v.repeat(1, 2, 1, 1)
        first, second = copy(f, first, v.shape), copy(f, second, v.shape)
        mask = env.state["masks"][kind]
        out1, weights = attend(f, env, q, k, first, mask, dense_values=True)
        out2, _ = attend(f, env, q, k, second, mask, dense_values=True)
        heads = (b, s, self.heads, self.dim)
        out = cat(f, out1.view(*heads), out2.view(*heads))
        half = (b, s, self.heads // 2, 2 * self.dim)
        out1, out2 = split(f, out, half, half)
        factor = self.factor(f, q.dtype)
        out = subtract(f, out1, mul(f, cast(f, factor, out2.dtype), out2))
        if f.autocast is not None:
            out = cast(f, out, "fp32")
        out = scale(f, fused_rms_norm(f, out, None))
        result: Tensor = self.o(f, out.view(b, s, self.heads * self.dim))
        del weights, _
        return result

    def factor(self, f: Tape, dtype: str) -> Tensor:
        """lambda_full, one number."""
        q1, k1, q2, k2 = self.lambdas
        first = cast(f, saving_output(f, cast(f, sum_last(f, mul(f, q1, k1)), "fp32")), dtype)
        second = cast(f, saving_output(f, cast(f, sum_last(f, mul(f, q2, k2)), "fp32")), dtype)
        return shift(f, subtract(f, first, second))


class Block(llama.Block):
    """DiffLlamaDecoderLayer."""

    attention_class = Attention


class Model(llama.Model):
    """DiffLlamaModel: ids [B, S] -> hidden states [B, S, H]."""

    block = Block
