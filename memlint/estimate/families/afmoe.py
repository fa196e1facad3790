"""AFMoE (Arcee's Trinity): gated attention with positions in local layers only, four norms, sigmoid-routed experts.

Source: transformers 5.24 models/afmoe/modeling_afmoe.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import required
from memlint.estimate.families.body import Body
from memlint.estimate.families.expert_adapters import (
    FoldedRouter,
    converted,
    expert_targets,
    folded_router,
    plain_linear,
)
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama import Attention, layer_kinds
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.basic import add, cast, mul, saving_output, scale, shift
from memlint.estimate.ops.experts import Experts
from memlint.estimate.ops.gather import divide, sum_last, take, topk
from memlint.estimate.ops.linear import linear
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Router:
    """AfmoeTokenChoiceRouter: sigmoid scores in fp32, experts chosen by biased scores."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int, *, adapted: bool) -> None:
        self.weight = b.parameter(f"{name}.gate.weight", experts, hidden)
        self.adapter: FoldedRouter | None = None
        if adapted and b.lora is not None:
            self.adapter = FoldedRouter(b, f"{name}.gate", self.weight, b.lora)
        self.k = k

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, H] -> weights [T, k], ids [T, k]."""
        logits = cast(f, linear(f, x, folded_router(f, self)), "fp32")
        scores = saving_output(f, logits)
        values, ids = topk(f, shift(f, scores), self.k)
        weights = take(f, scores, ids)
        total = shift(f, sum_last(f, weights))
        weights = divide(f, weights, total)
        weights = scale(f, weights)
        del logits, values, total
        return weights, ids


class Moe:
    """AfmoeSparseMoeBlock."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, act = a.hidden_size, str(a.get("hidden_act") or "silu")
        count, width = required(a, "num_experts"), required(a, "moe_intermediate_size")
        targets, k = expert_targets(a, converted(b), name), required(a, "num_experts_per_tok")
        b.parameter(f"{name}.expert_bias", count, dtype="fp32", trainable=False)
        self.router = Router(b, f"{name}.router", count, k, h, adapted=bool(targets.router))
        self.shared = GatedMlp(b, f"{name}.shared_experts", h, width * int(a.get("num_shared_experts") or 0), act, a=a)
        self.experts = Experts(b, f"{name}.experts", count, h, width, act, targets=targets)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        shape = x.shape
        flat = x.view(shape[0] * shape[1], shape[2])
        weights, ids = self.router(f, flat)
        shared = self.shared(f, flat)
        routed = self.experts(f, flat, ids, weights)
        return add(f, shared, routed).view(*shape)


class GatedAttention(Attention):
    """AfmoeAttention: the output is multiplied by a sigmoid gate of its own projection."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        super().__init__(a, b, name, s)
        self.gate = plain_linear(a, b, f"{name}.gate_proj", a.hidden_size, self.heads * self.dim)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        q = self.q(f, x).view(b, self.heads, s, self.dim)
        k = self.k(f, x).view(b, self.kv, s, self.dim)
        v = self.v(f, x).view(b, self.kv, s, self.dim)
        gate = self.gate(f, x)
        q = self.q_norm(f, env, q)
        k = self.k_norm(f, env, k)
        if kind == "sliding":
            q, k = rotate_both(f, q, k, env.state["rope"], self.shape)
        out = env.attend(f, q, k, v, env.state["masks"][kind], self.dropout)
        out = mul(f, out, saving_output(f, gate))
        result: Tensor = self.o(f, out)
        return result


class Block:
    """AfmoeDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env, s: Shape) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env, (self.kind, sparse) = env, kind
        self.attention = GatedAttention(a, b, f"{name}.self_attn", s)
        names = ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")
        self.norms = [Norm(b, f"{name}.{n}", h, s.norm) for n in names]
        act = str(a.get("hidden_act") or "silu")
        self.mlp: Any = (
            Moe(a, b, f"{name}.mlp") if sparse else GatedMlp(b, f"{name}.mlp", h, a.get("intermediate_size"), act, a=a)
        )

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, norms = self.env, self.norms
        residual = x
        x = norms[0](f, env, x)
        x = self.attention(f, env, x, self.kind)
        x = norms[1](f, env, x)
        x = add(f, residual, x)
        residual = x
        x = norms[2](f, env, x)
        x = self.mlp(f, x)
        x = norms[3](f, env, x)
        return add(f, residual, x)


class Model(Body):
    """AfmoeModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        s = Shape(norm="olmo2", qk_norm="head", mlp_bias=False)
        super().__init__(a, b, env, s)
        self.scaled = bool(a.get("mup_enabled", False))
        self.kinds = layer_kinds(a)
        dense = int(a.get("num_dense_layers") or 0)
        layers = [(kind, index >= dense) for index, kind in enumerate(self.kinds)]
        self.layers = Stack(b, layers, lambda build, kind, index: Block(a, build, kind, index, env, s))
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The embeddings stay beside their multiple until the model returns."""
        embeds = self.embed(f, batch.ids)
        return self.body(f, scale(f, embeds) if self.scaled else embeds, batch)
