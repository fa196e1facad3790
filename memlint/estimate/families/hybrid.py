"""Hybrids of state-space or linear-attention layers and full attention.

Source: transformers 5.24 models/{bamba,granitemoehybrid,falcon_h1,jamba,nemotron_h,qwen3_next}/modeling_*.py. Which of
their layers run in kernels of mamba-ssm, causal-conv1d and flash-linear-attention: estimate/kernels.py.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.hybrid_parts import (
    NemotronMoe,
    PlainMlp,
    ScaledMlp,
    bamba_mixer,
    falcon_mixer,
    jamba_mixer,
    nemotron_mixer,
)
from memlint.estimate.families.hybrid_types import (
    DELTA,
    GRANITE,
    JAMBA,
    MODULES,
    QWEN,
    TYPES,
    Hybrid,
    Kind,
    layer_kinds,
)
from memlint.estimate.families.llama import Attention
from memlint.estimate.families.moe import Moe
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import partial_rotary, rotary_tables, rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.basic import add, cast, scale
from memlint.estimate.stack import Stack
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture


class HybridAttention(Attention):
    """Llama's attention, with rotary positions or without; falcon_h1 scales its keys."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape, rope: bool) -> None:
        super().__init__(a, b, name, s)
        self.rope = rope
        self.scaled_keys = a.model_type == "falcon_h1"

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        q, k, v = self.project(f, env, x)
        if self.scaled_keys:
            k = scale(f, k)
        dense = False
        if self.rope:
            tables = env.state["rope"]
            q, k = rotate_both(f, q, k, tables, self.shape)
            dense = self.shape.rope_cat or tables[0].shape[-1] < self.dim
        out = env.attend(f, q, k, v, env.state["masks"]["full"], self.dropout, dense=dense)
        result: Tensor = self.o(f, out)
        return result


def make_mixer(a: Architecture, b: Build, name: str, kind: str, h: Hybrid, rope: bool) -> Any:
    """The mixer of a layer, under its own name."""
    if kind == "attention":
        if a.model_type in DELTA:
            from memlint.estimate.families.delta import GatedAttention

            return GatedAttention(a, b, f"{name}.self_attn", h.shape)
        return HybridAttention(a, b, f"{name}.self_attn" if not h.single else f"{name}.mixer", h.shape, rope)
    if kind == "delta":
        from memlint.estimate.families.delta import DeltaNet

        return DeltaNet(a, b, f"{name}.{h.mixer}")
    if kind == "mlp":
        return PlainMlp(a, b, f"{name}.mixer", int(a.get("intermediate_size")))
    if kind == "moe":
        return NemotronMoe(a, b, f"{name}.mixer")
    makers: dict[str, Callable[[Architecture, Build, str], Any]] = {
        "jamba": jamba_mixer,
        "nemotron_h": nemotron_mixer,
        "falcon_h1": falcon_mixer,
    }
    return makers.get(a.model_type, bamba_mixer)(a, b, f"{name}.mixer" if h.single else f"{name}.{h.mixer}")


class Block:
    """One layer: norm, mixer, residual, and unless single a second norm and feed-forward."""

    def __init__(self, a: Architecture, b: Build, kind: Kind, index: int, env: Env, rope: bool) -> None:
        h = self.hybrid = TYPES[a.model_type]
        self.env, width, name = env, a.hidden_size, f"model.layers.{index}"
        self.kind, sparse = kind
        if self.kind not in ("attention", "both"):
            # Its mask is one of tokens, None without padding; positions and tables go to all layers.
            self.uses = ("positions", "rope") if rope else ("positions",)
        self.attention: Any = None
        self.shared: GatedMlp | None = None
        self.mlp: Any = None
        for part in h.order.split():
            if part == "norms":
                self.norm = Norm(b, f"{name}.{'norm' if h.single else 'input_layernorm'}", width, h.shape.norm)
                if not h.single:
                    self.second = Norm(b, f"{name}.{h.second_norm}", width, h.shape.norm)
            elif part == "mlp":
                self.add_mlp(a, b, name, sparse)
            elif self.kind == "both":
                self.mixer = make_mixer(a, b, name, "mamba", h, rope)
                self.attention = make_mixer(a, b, name, "attention", h, rope)
            else:
                self.mixer = make_mixer(a, b, name, self.kind, h, rope)

    def add_mlp(self, a: Architecture, b: Build, name: str, sparse: bool) -> None:
        """What comes after the mixer: a mixture, a dense feed-forward, or both."""
        h, width, act = self.hybrid, a.hidden_size, str(a.get("hidden_act") or "silu")
        if a.model_type == "granitemoehybrid":
            self.mlp = Moe(a, b, f"{name}.block_sparse_moe", GRANITE) if sparse else None
            inner = int(a.get("shared_intermediate_size"))
            self.shared = GatedMlp(b, f"{name}.shared_mlp", width, inner, act, fused=True)
        elif sparse:
            self.mlp = Moe(a, b, f"{name}.{h.feed_forward}", QWEN if a.model_type in DELTA else JAMBA)
        elif a.model_type == "falcon_h1":
            self.mlp = ScaledMlp(a, b, f"{name}.{h.feed_forward}")
        else:
            bias = bool(a.get("mlp_bias", False))
            self.mlp = GatedMlp(b, f"{name}.{h.feed_forward}", width, a.get("intermediate_size"), act, bias=bias, a=a)

    def mix(self, f: Tape, x: Tensor) -> Tensor:
        """The mixer's branch."""
        env = self.env
        result: Tensor
        if self.kind == "both":
            state = scale(f, self.mixer(f, env, scale(f, x) if self.hybrid.embed_scale else x))
            attended = scale(f, self.attention(f, env, scale(f, x), "full"))
            return add(f, state, attended)
        if self.kind == "attention":
            result = self.mixer(f, env, x, "full")
        else:
            result = self.mixer(f, env, x)
        return result

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, h = self.env, self.hybrid
        residual = x
        if h.single:
            assert self.norm.weight is not None
            x = cast(f, x, self.norm.weight.dtype)
        x = self.norm(f, env, x)
        x = self.mix(f, x)
        x = add(f, residual, scale(f, x) if h.branch_scale else x)
        if h.single:
            return x
        residual = x
        x = self.second(f, env, x)
        if self.shared is not None:
            routed = self.mlp(f, x) if self.mlp is not None else None
            x = self.shared(f, x) if routed is None else add(f, routed, self.shared(f, x))
            del routed
        else:
            x = self.mlp(f, x)
        return add(f, residual, scale(f, x) if h.branch_scale else x)


class Model:
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if a.model_type not in TYPES:
            raise Unsupported(f"no memory model for `{a.model_type}` yet")
        h = self.hybrid = TYPES[a.model_type]
        self.a, self.env = a, env
        rows = b.training.vocab_size or a.vocab_size
        self.rope = h.rope and (a.model_type != "granitemoehybrid" or a.get("position_embedding_type") == "rope")
        self.embed = b.embedding(f"model.{h.embed}", rows, a.hidden_size, entry=True)
        self.layers = Stack(b, layer_kinds(a), lambda build, kind, index: Block(a, build, kind, index, env, self.rope))
        self.norm = Norm(b, f"model.{h.final_norm}", a.hidden_size, h.shape.norm)
        self.rotary = int((a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")) * partial_rotary(a))
        if self.rope:
            b.buffer(self.rotary // 2 * 4)
            b.buffer(self.rotary // 2 * 4)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        x = self.embed(f, batch.ids)
        if self.hybrid.embed_scale:
            x = scale(f, x)
        return self.body(f, x, batch)

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        env = self.env
        rows, length = x.shape[0], x.shape[1]
        env.state["masks"] = {"full": env.mask(f, rows, length, x.dtype)}
        env.number(f, length)
        if self.rope:
            # qwen3_5 has positions in three dimensions, so its tables have a row for each sequence.
            several = rows if self.a.model_type.startswith("qwen3_5") else 1
            cos, sin = rotary_tables(f, several * length, self.rotary, x.dtype)
            shape = (several, 1, length, self.rotary)
            env.state["rope"] = cos.view(*shape), sin.view(*shape)
        x = self.layers(f, env, x)
        x = self.norm(f, env, x)
        env.release()
        return x


def build_hybrid(job: TrainingJob, build: Build, env: Env) -> Any:
    """A hybrid with its head; nemotron_h makes its logits fp32 itself."""
    assert job.architecture is not None
    if job.architecture.model_type in ("lfm2", "lfm2_moe"):
        from memlint.estimate.families import lfm2
        from memlint.estimate.families.decoder import DecoderModel

        return DecoderModel(job, build, env, lfm2.Model)
    if job.architecture.model_type in MODULES:
        from importlib import import_module

        from memlint.estimate.families.decoder import DecoderModel

        module = import_module(f"memlint.estimate.families.{MODULES[job.architecture.model_type]}")
        return DecoderModel(job, build, env, module.Model)
    if job.architecture.model_type == "nemotron_h":
        from memlint.estimate.families.mamba import FloatLogits

        return FloatLogits(job, build, env, Model)
    from memlint.estimate.families.decoder import DecoderModel

    return DecoderModel(job, build, env, Model)
