"""dbrx: one expert after the other over the tokens it takes.

Source: transformers 5.24 models/dbrx/modeling_dbrx.py. The type has no grouped product; which tokens an expert takes is
data, so all experts are given equal shares. Each expert's weight gradient arrives as a tensor of all experts' size
(select_backward), one at a time.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.body import Body
from memlint.estimate.families.jitter import jittered
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.rotary import rotate
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, dropout, mul, slice_of
from memlint.estimate.ops.gather import clamp, divide, index_rows, sum_last, topk
from memlint.estimate.ops.linear import Weight, to_autocast
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape()


def part(a: Architecture, name: str) -> Mapping[str, Any]:
    """attn_config or ffn_config."""
    inner = a.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _product_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    first = f.new(node.shapes[0][0], grad.dtype) if node.edges[0] is not None else None
    second = f.new(node.shapes[1][0], grad.dtype) if node.edges[1] is not None else None
    return first, second


def product(f: Tape, x: Tensor, weight: Tensor, columns: int) -> Tensor:
    """``x.matmul(w)`` of one expert: saves both; under autocast the slice of the weight is cast anew."""
    x, weight = to_autocast(f, x), to_autocast(f, weight)
    recorded = f.needs(x, weight)
    saved = f.save(x if weight.node is not None else None, weight if x.node is not None else None) if recorded else ()
    out = f.new((x.shape[0], columns), x.dtype)
    return f.record(out, _product_backward, (x, weight), saved) if recorded else out


def _whole_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def _index_add_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # index_add: the gradient itself, and its chosen rows for the source.
    return grad, f.new(node.shapes[1][0], grad.dtype)


class Experts:
    """``experts.mlp.w1``, ``v1`` and ``w2``, all [E * I, H]."""

    def __init__(self, b: Build, name: str, experts: int, hidden: int, width: int, act: str) -> None:
        self.experts, self.hidden, self.width, self.act = experts, hidden, width, act
        self.weights = [b.parameter(f"{name}.mlp.{leaf}", experts * width, hidden) for leaf in ("w1", "v1", "w2")]

    def __call__(self, f: Tape, x: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
        """x [T, H], ids and chosen weights [T, k] -> [T, H]."""
        tokens, k = ids.shape
        share = -(-tokens * k // self.experts)
        total = f.like(x)
        mask = f.new((tokens, k, self.experts + 1), "int64")
        whole = [self._viewed(f, weight) for weight in self.weights]
        for _ in range(self.experts):
            places = f.new((share, 2), "int64").view(share)
            first, second, third = (slice_of(f, weight, (self.width, self.hidden)) for weight in whole)
            states = self._expert(f, index_rows(f, x, places), first, second, third)
            states = mul(f, states, index_rows(f, chosen.view(tokens * k), places).view(share, 1))
            states = cast(f, states, total.dtype)
            if f.needs(total, states):
                saved = f.save(places, states)
                total = f.record(
                    Tensor(total.shape, total.dtype, total.storage), _index_add_backward, (total, states), saved
                )
        del mask
        return total

    def _viewed(self, f: Tape, weight: Weight) -> Tensor:
        out = Tensor((self.experts, self.width, self.hidden), weight.dtype, weight.storage)
        return f.record(out, _whole_backward, (weight,)) if f.needs(weight) else out

    def _expert(self, f: Tape, x: Tensor, w1: Tensor, v1: Tensor, w2: Tensor) -> Tensor:
        gate = product(f, x, w1, self.width)
        up = product(f, x, v1, self.width)
        gate = activate(f, gate, self.act)
        inner = mul(f, gate, up)
        return product(f, inner, w2, self.hidden)


class Block:
    """DbrxBlock."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        h, name = a.hidden_size, f"transformer.blocks.{index}"
        attn, ffn = part(a, "attn_config"), part(a, "ffn_config")
        self.env = env
        self.heads = int(a.get("n_heads") or a.get("num_attention_heads"))
        self.kv = int(attn.get("kv_n_heads") or 1)
        self.dim = h // self.heads
        self.clip = attn.get("clip_qkv") is not None
        self.attention_dropout = float(attn.get("attn_pdrop") or 0.0)
        self.dropout = float(a.get("resid_pdrop", 0.0))
        inner = f"{name}.norm_attn_norm"
        self.norm_1 = LayerNorm(b, f"{inner}.norm_1", h, bias=False)
        self.qkv = b.linear(f"{inner}.attn.Wqkv", h, h + 2 * self.kv * self.dim)
        self.out = b.linear(f"{inner}.attn.out_proj", h, h)
        self.norm_2 = LayerNorm(b, f"{inner}.norm_2", h, bias=False)
        experts, width = int(ffn.get("moe_num_experts") or 4), int(ffn.get("ffn_hidden_size") or 3584)
        activation = ffn.get("ffn_act_fn")
        act = str(activation.get("name", "silu")) if isinstance(activation, Mapping) else "silu"
        self.k, self.normalised = int(ffn.get("moe_top_k") or 1), ffn.get("moe_normalize_expert_weights") is not None
        self.jitters = ffn.get("moe_jitter_eps") is not None
        self.router = b.linear(f"{name}.ffn.router.layer", h, experts)
        self.experts = Experts(b, f"{name}.ffn.experts", experts, h, width, act)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual, x = self.attend(f, x)
        x = self.feed(f, x)
        x = dropout(f, x, self.dropout)
        return add(f, residual, x)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """DbrxNormAttentionNorm."""
        env = self.env
        b, s, _ = x.shape
        residual = x
        x = cast(f, self.norm_1(f, x), x.dtype)
        states: Tensor = self.qkv(f, x)
        if self.clip:
            states = clamp(f, states)
        narrow = (b, self.kv, s, self.dim)
        q, k, v = split(f, states, (b, self.heads, s, self.dim), narrow, narrow)
        cos, sin = env.state["rope"]
        q, k = rotate(f, q, cos, sin, SHAPE), rotate(f, k, cos, sin, SHAPE)
        x = self.out(f, env.attend(f, q, k, v, env.state["masks"]["full"], self.attention_dropout))
        x = dropout(f, x, self.dropout)
        x = add(f, x, residual)
        residual = x
        x = cast(f, self.norm_2(f, x), x.dtype)
        env.weights = None
        return residual, x

    def feed(self, f: Tape, x: Tensor) -> Tensor:
        """DbrxFFN."""
        b, s, h = x.shape
        x = jittered(f, x, int(self.jitters)).view(b * s, h)
        logits: Tensor = self.router(f, x)
        values, ids = topk(f, softmax(f, logits, logits.dtype), self.k)
        if self.normalised:
            values = divide(f, values, sum_last(f, values))
        return self.experts(f, x, ids, values).view(b, s, h)


class FinalNorm:
    """norm_f: nn.LayerNorm without bias."""

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.norm = LayerNorm(b, name, width, bias=False)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        return self.norm(f, x)


class Model(Body):
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE, embed="transformer.wte")
        self.kinds = ["full"]
        self.layers = Stack(
            b, ["block"] * a.num_hidden_layers, lambda build, kind, index: Block(a, build, kind, index, env)
        )
        width = a.hidden_size // int(a.get("n_heads") or a.get("num_attention_heads"))
        self.finish(b, width, FinalNorm(b, "transformer.norm_f", a.hidden_size))
