"""gpt_oss: attention sinks under eager attention, clamped gating, biased and transposed expert weights.

Source: transformers 5.24 models/gpt_oss/modeling_gpt_oss.py. The type has no scaled_dot_product_attention path
(_supports_sdpa is False), so a job that asks for it runs eager.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import required
from memlint.estimate.families.body import Body, PreNormBlock
from memlint.estimate.families.llama import Attention, layer_kinds
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.routers import TopFirstRouter
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.attention import repeat_kv, sdpa, softmax
from memlint.estimate.ops.basic import add, cast, cat, copy, mul, saving_output, scale, shift, slice_of
from memlint.estimate.ops.experts import Experts
from memlint.estimate.ops.gather import clamp, expand, subtract, topk
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(norm="olmo2", mlp_bias=False)


def rotate(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """_apply_rotary_emb: halves turned against each other, cos and sin of half the head's width."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = split(f, x, half, half)
    turned = subtract(f, mul(f, first, cos), mul(f, second, sin))
    other = add(f, mul(f, second, cos), mul(f, first, sin))
    return cat(f, turned, other)


class SinkAttention(Attention):
    """Grouped-query attention with one learned sink logit a head."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        self.sinks = b.parameter(f"{name}.sinks", required(a, "num_attention_heads"))
        super().__init__(a, b, name, SHAPE)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        q, k, v = self.project(f, env, x)
        rope = env.state["rope"]
        q, k = rotate(f, q, *rope), rotate(f, k, *rope)
        if env.attention in ("eager", "sdpa"):
            out, weights = self.eager(f, q, k, v, env.state["masks"][kind])
            env.name(f, weights)
        else:
            out = sdpa(f, q, k, v, None, force="flash")
        result: Tensor = self.o(f, out)
        return result

    def eager(self, f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """eager_attention_forward: the sinks are one more column of the scores, dropped after the softmax."""
        b, heads, s, d = q.shape
        repeated = k.shape[1] not in (1, heads)
        keys, values = repeat_kv(f, k, heads), repeat_kv(f, v, heads)
        weights = scale(f, matmul(f, q, keys, s))
        if mask is not None:
            weights = add(f, weights, mask)
        sinks = expand(f, self.sinks, (b, heads, s, 1))
        dtype = "fp32" if "fp32" in (weights.dtype, sinks.dtype) else weights.dtype
        combined = cat(f, cast(f, weights, dtype), cast(f, sinks, dtype))
        highest, places = topk(f, combined, 1)
        combined = subtract(f, combined, highest)
        del highest, places
        scores = slice_of(f, softmax(f, combined, combined.dtype), weights.shape)
        weights = cast(f, scores, values.dtype)
        out = matmul(f, weights, values, d, copy_b=b > 1 and not repeated)
        out = copy(f, out)
        return out.view(b, s, heads * d), weights


def gate(f: Tape, both: Tensor) -> Tensor:
    """GptOssExperts._apply_gate: even columns are the gate, odd ones the up projection, both clamped."""
    half = (*both.shape[:-1], both.shape[-1] // 2)
    first, up = slice_of(f, both, half), slice_of(f, both, half)
    first = clamp(f, first, 1)
    up = clamp(f, up)
    glu = mul(f, first, saving_output(f, scale(f, first)))
    return mul(f, shift(f, up), glu)


class Block(PreNormBlock):
    """One decoder layer."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        h = a.hidden_size
        name = f"model.layers.{index}"
        self.kind, self.env = kind, env
        self.attention = SinkAttention(a, b, f"{name}.self_attn")
        experts, k = int(a.get("num_local_experts")), int(a.get("num_experts_per_tok"))
        self.router = TopFirstRouter(b, f"{name}.mlp.router", experts, k, h, bias=True, fp32=False)
        width = int(a.get("intermediate_size"))
        self.experts = Experts(b, f"{name}.mlp.experts", experts, h, width, gate=gate, bias=True, transposed=True)
        self.norms = [Norm(b, f"{name}.{n}", h, SHAPE.norm) for n in ("input_layernorm", "post_attention_layernorm")]

    def mlp(self, f: Tape, x: Tensor) -> Tensor:
        """GptOssMLP."""
        b, s, h = x.shape
        x = x.view(b * s, h)
        _, weights, ids = self.router(f, x)
        x = self.experts(f, x, ids, weights)
        return x.view(b, s, h)


class Model(Body):
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if env.attention == "sdpa":
            env.attention = "eager"
        super().__init__(a, b, env, SHAPE)
        self.kinds = layer_kinds(a)
        self.layers = Stack(b, self.kinds, lambda build, kind, index: Block(a, build, kind, index, env))
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))
        # cos and sin are as wide as half a head (emb = freqs).
        self.rotary //= 2
