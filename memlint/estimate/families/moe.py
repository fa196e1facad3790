"""Decoder-only models whose feed-forward is a mixture of experts, over Llama-shaped attention.

Sources: transformers 5.24 models/{mixtral,qwen2_moe,qwen3_moe,olmoe,flex_olmo,granitemoe,granitemoeshared,minimax_m2,
glm4_moe,dots1,exaone_moe,solar_open,ernie4_5_moe,hunyuan_v1_moe,phimoe}/modeling_*.py and integrations/moe.py. A model
type is a row of mixtures.TYPES.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported, required
from memlint.estimate.families.body import Body
from memlint.estimate.families.expert_adapters import ExpertTargets, FoldedRouter, converted, expert_targets
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.jitter import jitter_of, jittered
from memlint.estimate.families.llama import Attention, layer_kinds
from memlint.estimate.families.mixtures import TYPES, Mixture, mixture_of
from memlint.estimate.families.module_experts import NAMES, LoopedExperts, ModuleExperts, in_modules, looped
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import partial_rotary
from memlint.estimate.families.routers import (
    BiasedRouter,
    ErnieRouter,
    GroupedRouter,
    GroupedSoftmaxRouter,
    SigmoidRouter,
    SoftmaxRouter,
    SparseMixerRouter,
    TopFirstRouter,
)
from memlint.estimate.ops.basic import add, mul, saving_output, scale
from memlint.estimate.ops.experts import Experts
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

NORMALISING = ("qwen3_next", "qwen3_5_moe_text", "lfm2_moe", "mellum")
"""Types whose class defaults divide the chosen weights by their sum."""


class Moe:
    """A sparse block: router, experts, and a shared expert where the type has one."""

    def __init__(self, a: Architecture, b: Build, name: str, m: Mixture) -> None:
        h = a.hidden_size
        act = str(a.get("hidden_act") or "silu")
        experts = required(a, m.experts, "num_experts", "num_local_experts")
        width = required(a, m.width, "intermediate_size")
        self.mixture = m
        self.jitter = jitter_of(a)
        self.env: Env | None = None  # set where the load-balancing loss is taken (output_router_logits)
        apart = in_modules(a, b)
        targets = ExpertTargets() if apart else expert_targets(a, converted(b), name)
        self.experts: Callable[[Tape, Tensor, Tensor, Tensor], Tensor]
        owner = None if apart else a

        def add_router() -> None:
            self.router = self.make_router(a, b, f"{name}.{m.gate_name}", experts)
            if targets.router and b.lora is not None:
                self.router.adapter = FoldedRouter(b, f"{name}.{m.gate_name}", self.router.weight, b.lora)

        def add_experts() -> None:
            if looped(a, b):
                names = NAMES.get(a.model_type, ("gate_proj", "up_proj", "down_proj"))
                modules = [GatedMlp(b, f"{name}.experts.{i}", h, width, act, names=names) for i in range(experts)]
                self.experts = LoopedExperts(modules)
            elif apart:
                self.experts = ModuleExperts(
                    [GatedMlp(b, f"{name}.experts.{i}", h, width, act) for i in range(experts)]
                )
            else:
                self.experts = Experts(b, f"{name}.experts", experts, h, width, act, targets=targets)

        for add_part in (add_experts, add_router) if m.gate_after else (add_router, add_experts):
            add_part()
        self.shared: GatedMlp | None = None
        inner = shared_width(a, m, width)
        if m.shared in ("gated", "after", "before") and inner:
            self.shared = GatedMlp(b, f"{name}.{m.shared_name}", h, inner, act, a=owner)
        self.shared_gate = b.linear(f"{name}.shared_expert_gate", h, 1) if m.shared == "gated" and inner else None

    def make_router(self, a: Architecture, b: Build, name: str, experts: int) -> Any:
        """The router of the mixture's type."""
        return make_router(a, b, name, self.mixture, experts)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, h = x.shape
        x = jittered(f, x, self.jitter).view(b * s, h)
        first = self.shared(f, x) if self.shared is not None and self.mixture.shared != "after" else None
        logits, weights, ids = self.router(f, x)
        if self.env is not None:
            remember(f, self.env, logits)
        out = self.experts(f, x, ids, weights)
        if self.shared_gate is not None:
            assert first is not None
            first = mul(f, saving_output(f, self.shared_gate(f, x)), first)
            out = add(f, out, first)
        elif first is not None:
            out = add(f, out, first)
        elif self.shared is not None:
            out = add(f, out, self.shared(f, x))
        return out.view(b, s, h)


def remember(f: Tape, env: Env, logits: Tensor) -> None:
    """load_balancing_loss_func keeps one softmax of every layer's router logits, then its gradient, until that layer's
    backward; where the layer is checkpointed they stand outside of the checkpoint.
    """
    if f.hollow:
        env.state.setdefault("router", []).append(f.like(logits))
    elif f.needs(logits):
        f.record(Tensor(logits.shape, logits.dtype, logits.storage), _unused, (logits,), f.save(f.like(logits)))


def _unused(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def shared_width(a: Architecture, m: Mixture, width: int) -> int:
    """Width of the shared expert; 0 where the config has none."""
    field = m.shared_width
    if field.startswith("*"):
        return int(a.get(field[1:], 0)) * width
    return int(a.get(field, 0)) if field else 0


def make_router(a: Architecture, b: Build, name: str, m: Mixture, experts: int) -> Any:
    """The router of a mixture."""
    k, h = required(a, m.top_k), a.hidden_size
    normalise = m.normalise
    if isinstance(normalise, str):
        normalise = bool(a.get(normalise, m.router.startswith("grouped") or a.model_type in NORMALISING))
    if m.router == "top-first":
        return TopFirstRouter(b, name, experts, k, h)
    if m.router == "sigmoid":
        return SigmoidRouter(b, name, experts, k, h)
    if m.router == "sigmoid-biased":
        return BiasedRouter(b, name, experts, k, h, normalise=normalise, bias=bool(a.get("use_expert_bias", True)))
    if m.router in ("grouped", "grouped-plain"):
        groups, kept = int(a.get("n_group", 1)), int(a.get("topk_group", 1))
        flags = {"normalise": normalise, "plain": m.router == "grouped-plain"}
        return GroupedRouter(b, name, experts, k, h, groups=groups, kept_groups=kept, **flags)
    if m.router == "grouped-softmax":
        limited = a.get("topk_method") == "group_limited_greedy"
        return GroupedSoftmaxRouter(b, name, experts, k, h, limited=limited)
    if m.router == "ernie":
        return ErnieRouter(b, name, experts, k, h)
    if m.router == "sparsemixer":
        return SparseMixerRouter(b, name, experts, k, h)
    wide, rest = m.router == "softmax-float", m.router != "softmax"
    return SoftmaxRouter(b, name, experts, k, h, normalise=normalise, keep_fp32=rest, fp32_weight=wide)


class Block:
    """One decoder layer: attention, then a mixture of experts or a dense gated MLP."""

    attention_class = Attention

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env) -> None:
        m = mixture_of(a)
        s = self.shape = m.shape
        h = a.hidden_size
        name = f"model.layers.{index}"
        self.kind, sparse = kind
        self.env = env
        self.attention = self.attention_class(a, b, f"{name}.self_attn", s)
        act = str(a.get("hidden_act") or "silu")
        self.mlp: Any
        self.mixture = m
        if m.norms_before:
            self.add_norms(b, name, h)
        if sparse:
            self.mlp = self.sparse_mlp(a, b, f"{name}.{m.name}")
            self.mlp.env = env if a.get("output_router_logits") else None
        else:
            bias = bool(a.get(s.mlp_bias, False)) if isinstance(s.mlp_bias, str) else s.mlp_bias
            owner = None if in_modules(a, b) else a
            self.mlp = GatedMlp(b, f"{name}.mlp", h, a.get("intermediate_size"), act, bias=bias, a=owner)
        self.beside: GatedMlp | None = None
        inner = shared_width(a, m, 0)
        if m.shared == "beside" and inner:
            self.beside = GatedMlp(b, f"{name}.shared_mlp", h, inner, act, fused=True)
        if not m.norms_before:
            self.add_norms(b, name, h)

    def add_norms(self, b: Build, name: str, width: int) -> None:
        """The norms of the layer."""
        names = ("post_attention_layernorm", "post_feedforward_layernorm") if self.shape.norms == "post" else ()
        names = names or ("input_layernorm", "post_attention_layernorm")
        self.norms = [Norm(b, f"{name}.{n}", width, self.shape.norm) for n in names]

    def sparse_mlp(self, a: Architecture, b: Build, name: str) -> Any:
        """The mixture of experts."""
        return Moe(a, b, name, self.mixture)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, s, norms = self.env, self.shape, self.norms
        post = s.norms == "post"
        residual = x
        if not post:
            x = norms[0](f, env, x)
        x = self.attention(f, env, x, self.kind)
        if post:
            x = norms[0](f, env, x)
        x = add(f, residual, scale(f, x) if s.branch_scale else x)
        residual = x
        if not post:
            x = norms[1](f, env, x)
        if self.beside is None:
            x = self.mlp(f, x)
        else:
            routed = self.mlp(f, x)
            x = add(f, routed, self.beside(f, x))
        if post:
            x = norms[1](f, env, x)
        return add(f, residual, scale(f, x) if s.branch_scale else x)


class Model(Body):
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    block = Block

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        m = mixture_of(a)
        super().__init__(a, b, env, m.shape)
        self.kinds = layer_kinds(a)
        self.head_bias = bool(a.get("lm_head_bias", False))
        layers = [(kind, m.sparse is None or m.sparse(a, i)) for i, kind in enumerate(self.kinds)]
        self.layers = Stack(b, layers, lambda build, kind, index: self.block(a, build, kind, index, env))
        self.finish(b, int((a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")) * partial_rotary(a)))
        if m.shape.local_rope and len(set(self.kinds)) > 1:
            b.buffer(self.rotary // 2 * 4)
            b.buffer(self.rotary // 2 * 4)

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        unseen = None
        if self.a.model_type == "qwen2_moe" and "sliding" not in self.kinds:
            # Qwen2MoeModel.forward makes the local layers' mask always, of a window of 0 where there are none.
            unseen = self.env.mask(f, x.shape[0], x.shape[1], x.dtype, 0)
        x = super().body(f, x, batch)
        del unseen
        return x


MODULES = {
    "llama4_text": "llama4",
    "granitemoe_swa": "granite_swa",
    **{kind: kind for kind in ("gpt_oss", "dbrx", "afmoe", "cohere2_moe", "hy_v3", "laguna", "mimo_v2_flash")},
}
"""model_type -> module of this package that holds its ``Model``, where this one does not; modules load on first use."""


def body_of(a: Architecture) -> Callable[[Architecture, Build, Env], Any]:
    """The class that builds a type's body.

    Raises:
        Unsupported: nobody has compared this type with its code.
    """
    module = MODULES.get(a.model_type)
    if module is not None:
        from importlib import import_module

        model: Callable[[Architecture, Build, Env], Any] = import_module(f"memlint.estimate.families.{module}").Model
        return model
    if a.model_type not in TYPES and a.approximate is None:
        raise Unsupported(f"no memory model for `{a.model_type}` yet")
    return Model
