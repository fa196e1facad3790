"""Granite with sliding windows: a sink a head, as a factor of the attention's output, and rotary bases by layer.

Sources: transformers 5.24 models/{granite_swa,granitemoe_swa}/modeling_*.py. As gpt_oss they have no
scaled_dot_product_attention path.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import llama, moe
from memlint.estimate.families.body import Body
from memlint.estimate.families.mixtures import mixture_of
from memlint.estimate.families.rotary import rotary_tables, rotate_both
from memlint.estimate.families.shapes import Shape, shape_of
from memlint.estimate.ops.attention import repeat_kv, sdpa, softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout, mul, saving_output, scale
from memlint.estimate.ops.gather import subtract
from memlint.estimate.ops.linear import matmul
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


def _logsumexp_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # grad * (self - result).exp()
    shape, dtype = node.shapes[0]
    difference = f.new(shape, dtype)
    power = f.new(shape, dtype)
    out = f.new(shape, grad.dtype)
    del difference, power
    return (out,)


def logsumexp(f: Tape, x: Tensor) -> Tensor:
    """``torch.logsumexp(x, -1)``: saves its input and its result; on autocast's fp32 list."""
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    out = f.new(x.shape[:-1], x.dtype)
    return f.record(out, _logsumexp_backward, (x,), (*saved, *f.save(out))) if recorded else out


class Attention(llama.Attention):
    """GraniteSWAAttention."""

    theta: float = 0.0
    """Base of its rotary positions; 0: none."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        self.sinks = b.parameter(f"{name}.sinks", int(a.get("num_attention_heads")))
        super().__init__(a, b, name, s)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        q, k, v = self.project(f, env, x)
        if self.theta:
            q, k = rotate_both(f, q, k, env.state[f"rope:{self.theta}"], self.shape)
        if env.attention == "eager":
            out, weights = self.eager(f, q, k, v, env.state["masks"][kind])
            env.name(f, weights)
        else:
            out = sdpa(f, q, k, v, None, force="flash")
        held = env.named(f, q, k, v)
        del q, k, v
        result: Tensor = self.o(f, out)
        del held
        return result

    def eager(self, f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """eager_attention_forward."""
        b, heads, s, d = q.shape
        loose = b > 1 and k.shape[1] in (1, heads)
        keys, values = repeat_kv(f, k, heads), repeat_kv(f, v, heads)
        weights = scale(f, matmul(f, q, keys, s, copy_a=b > 1, copy_b=loose))
        if mask is not None:
            weights = add(f, weights, mask)
        total = logsumexp(f, weights)
        factor = saving_output(f, cast(f, subtract(f, total, self.sinks.view(1, heads, 1)), "fp32"))
        weights = cast(f, softmax(f, weights, "fp32"), q.dtype)
        weights = dropout(f, weights, self.dropout)
        out = matmul(f, weights, values, d, copy_b=loose)
        out = mul(f, out, cast(f, factor.view(b, heads, s, 1), out.dtype))
        out = copy(f, out)
        return out.view(b, s, heads * d), weights


class Block(llama.Block):
    """GraniteSWADecoderLayer."""

    attention_class = Attention


class SparseBlock(moe.Block):
    """GraniteMoeSWADecoderLayer."""

    attention_class = Attention


class Model(Body):
    """GraniteSWAModel and GraniteMoeSWAModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if env.attention == "sdpa":
            env.attention = "eager"
        sparse = a.model_type == "granitemoe_swa"
        super().__init__(a, b, env, mixture_of(a).shape if sparse else shape_of(a))
        self.kinds = llama.layer_kinds(a)
        stated = a.get("layer_rope_theta")
        thetas = [float(theta) for theta in stated] if isinstance(stated, (list, tuple)) else [1.0] * len(self.kinds)
        self.thetas = [theta for theta in dict.fromkeys(thetas) if theta]

        def make(build: Build, kind: tuple[str, float], index: int) -> Any:
            name = kind[0]
            block = SparseBlock(a, build, (name, True), index, env) if sparse else Block(a, build, name, index, env)
            assert isinstance(block.attention, Attention)
            block.attention.theta = kind[1]
            return block

        self.layers = Stack(b, list(zip(self.kinds, thetas)), make)
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))
        # One more pair of frequencies a base, beside those of the model itself, which nothing uses.
        for _ in self.thetas:
            b.buffer(self.rotary // 2 * 4)
            b.buffer(self.rotary // 2 * 4)

    def share(self, f: Tape, x: Tensor) -> None:
        """Masks of both kinds, whether or not a layer is of it; rotary tables by their base."""
        env, rows, length = self.env, x.shape[0], x.shape[1]
        window = {"full": None, "sliding": self.a.get("sliding_window")}
        env.state["masks"] = {kind: env.mask(f, rows, length, x.dtype, size) for kind, size in window.items()}
        env.number(f, length)
        for theta in self.thetas:
            env.state[f"rope:{theta}"] = rotary_tables(f, length, self.rotary, x.dtype)
