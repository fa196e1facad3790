"""Laguna (Poolside): gated attention whose layers differ in heads and rotary width, sigmoid-routed experts.

Source: transformers 5.24 models/laguna/modeling_laguna.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import kinds_of_layers, required
from memlint.estimate.families.body import Body, PreNormBlock
from memlint.estimate.families.expert_adapters import (
    FoldedRouter,
    converted,
    expert_targets,
    folded_router,
    plain_linear,
)
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama import layer_kinds
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotary_tables, rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.basic import activation, add, cast, mul, saving_output, scale
from memlint.estimate.ops.experts import Experts
from memlint.estimate.ops.gather import divide, sum_last, take, topk
from memlint.estimate.ops.linear import linear
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(mlp_bias=False, rope_cat=True)
ROTATED = {"full": 0.5, "sliding": 1.0}
"""partial_rotary_factor of LagunaConfig's own rope_parameters."""


class Router:
    """LagunaTopKRouter: sigmoid scores in fp32, experts chosen by biased scores."""

    def __init__(self, a: Architecture, b: Build, name: str, *, adapted: bool) -> None:
        experts = required(a, "num_experts")
        self.weight = b.parameter(f"{name}.weight", experts, a.hidden_size)
        self.bias = b.parameter(f"{name}.e_score_correction_bias", experts, trainable=False)
        self.adapter: FoldedRouter | None = None
        if adapted and b.lora is not None:
            self.adapter = FoldedRouter(b, name, self.weight, b.lora)
        self.k = required(a, "num_experts_per_tok")
        self.capped = float(a.get("moe_router_logit_softcapping", 0.0)) > 0

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, H] -> logits, weights [T, k], ids [T, k]."""
        logits = cast(f, linear(f, x, folded_router(f, self)), "fp32")
        if self.capped:
            logits = scale(f, saving_output(f, scale(f, logits)))
        scores = saving_output(f, logits)
        choice = add(f, scores, cast(f, self.bias, "fp32"))
        _, ids = topk(f, choice, self.k)
        weights = take(f, scores, ids)
        weights = divide(f, weights, sum_last(f, weights))
        return logits, cast(f, weights, x.dtype), ids


class Moe:
    """LagunaSparseMoeBlock."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, act = a.hidden_size, str(a.get("hidden_act") or "silu")
        targets = expert_targets(a, converted(b), name)
        self.experts = Experts(
            b,
            f"{name}.experts",
            required(a, "num_experts"),
            h,
            required(a, "moe_intermediate_size"),
            act,
            targets=targets,
        )
        self.router = Router(a, b, f"{name}.gate", adapted=bool(targets.router))
        self.shared = GatedMlp(b, f"{name}.shared_experts", h, required(a, "shared_expert_intermediate_size"), act, a=a)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        shape = x.shape
        x = x.view(shape[0] * shape[1], shape[2])
        shared = self.shared(f, x)
        _, weights, ids = self.router(f, x)
        x = self.experts(f, x, ids, weights)
        x = scale(f, x)
        x = add(f, x, shared)
        return x.view(*shape)


class Attention:
    """LagunaAttention: each layer has as many heads as its place says; one gate a head, or one a column."""

    def __init__(self, a: Architecture, b: Build, name: str, heads: int) -> None:
        h, bias = a.hidden_size, bool(a.get("attention_bias", False))
        self.heads, self.kv, self.dim = heads, required(a, "num_key_value_heads"), required(a, "head_dim")
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.q = b.linear(f"{name}.q_proj", h, heads * self.dim, bias)
        self.k = b.linear(f"{name}.k_proj", h, self.kv * self.dim, bias)
        self.v = b.linear(f"{name}.v_proj", h, self.kv * self.dim, bias)
        self.o = b.linear(f"{name}.o_proj", heads * self.dim, h, bias)
        self.q_norm, self.k_norm = (Norm(b, f"{name}.{n}_norm", self.dim, SHAPE.norm) for n in "qk")
        self.per_head = a.get("gating", True) in (True, "per-head")
        self.gate = plain_linear(a, b, f"{name}.g_proj", h, heads if self.per_head else heads * self.dim)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        q = self.q(f, x).view(b, self.heads, s, self.dim)
        k = self.k(f, x).view(b, self.kv, s, self.dim)
        v = self.v(f, x).view(b, self.kv, s, self.dim)
        q = self.q_norm(f, env, q)
        k = self.k_norm(f, env, k)
        q, k = rotate_both(f, q, k, env.state[f"rope:{kind}"], SHAPE)
        out = env.attend(f, q, k, v, env.state["masks"][kind], self.dropout, dense=True)
        gate = cast(f, activation(f, cast(f, self.gate(f, x), "fp32")), out.dtype)
        if self.per_head:
            out = mul(f, out.view(b, s, self.heads, self.dim), gate.view(b, s, self.heads, 1))
            out = out.view(b, s, self.heads * self.dim)
        else:
            out = mul(f, out, gate)
        result: Tensor = self.o(f, out)
        return result


class Block(PreNormBlock):
    """LagunaDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, int, bool], index: int, env: Env) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env, (self.kind, heads, sparse) = env, kind
        self.attention = Attention(a, b, f"{name}.self_attn", heads)
        act = str(a.get("hidden_act") or "silu")
        self.mlp: Any
        if sparse:
            self.mlp = Moe(a, b, f"{name}.mlp")
        else:
            self.mlp = GatedMlp(b, f"{name}.mlp", h, required(a, "intermediate_size"), act, a=a)
        self.norms = [Norm(b, f"{name}.{n}", h, SHAPE.norm) for n in ("input_layernorm", "post_attention_layernorm")]


class Model(Body):
    """LagunaModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE)
        self.kinds = layer_kinds(a)
        stated = a.get("num_attention_heads_per_layer")
        heads = stated if isinstance(stated, (list, tuple)) else [required(a, "num_attention_heads")] * len(self.kinds)
        sparse = [kind == "sparse" for kind in kinds_of_layers(a, "mlp_layer_types")]
        layers = list(zip(self.kinds, (int(count) for count in heads), sparse))
        self.layers = Stack(b, layers, lambda build, kind, index: Block(a, build, kind, index, env))
        self.norm = Norm(b, "model.norm", a.hidden_size, SHAPE.norm)
        self.widths = {kind: rotated_width(a, kind) for kind in dict.fromkeys(self.kinds)}
        for width in self.widths.values():
            b.buffer(width // 2 * 4)
            b.buffer(width // 2 * 4)

    def share(self, f: Tape, x: Tensor) -> None:
        """Masks and rotary tables by kind of layer."""
        env, rows, length = self.env, x.shape[0], x.shape[1]
        window = {"sliding": self.a.get("sliding_window")}
        env.state["masks"] = {kind: env.mask(f, rows, length, x.dtype, window.get(kind)) for kind in self.widths}
        env.number(f, length)
        for kind, width in self.widths.items():
            env.state[f"rope:{kind}"] = rotary_tables(f, length, width, x.dtype)


def rotated_width(a: Architecture, kind: str) -> int:
    """Columns of each head that a kind of layer rotates."""
    stated = a.get("rope_parameters")
    own = stated.get(f"{kind}_attention") if isinstance(stated, dict) else None
    share = own.get("partial_rotary_factor", 1.0) if isinstance(own, dict) else ROTATED[kind]
    return int(required(a, "head_dim") * float(share))
