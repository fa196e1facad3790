"""Decoder-only models of the Llama shape: pre-norm (or post-norm) blocks, rotary positions, gated MLP.

Sources: transformers 5.24 models/<type>/modeling_<type>.py for each type of ``SHAPES`` (families/shapes.py).
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.mlp import Mlp
from memlint.estimate.families.norms import HeadNorms, Norm
from memlint.estimate.families.pieces import rotate_apart
from memlint.estimate.families.rotary import keep_tables, partial_rotary, rotary_tables, rotate_both
from memlint.estimate.families.shapes import Shape, flag, scaled_inside, shape_of
from memlint.estimate.ops.basic import add, cat, dropout, mul, scale, slice_of
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.models.traits import PACKED, SPLIT


class Attention:
    """Grouped-query attention with rotary positions."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        h = a.hidden_size
        self.heads = a.get("num_attention_heads")
        self.kv = a.get("num_key_value_heads", self.heads)
        self.dim = a.get("head_dim") or h // self.heads
        self.dropout = float(a.get("attention_dropout", 0.0))
        qkv_bias = flag(a, s.qkv_bias)
        q, kv = self.heads * self.dim, self.kv * self.dim
        self.splits = SPLIT in a.traits
        self.fused = s.fused_qkv or self.splits or PACKED in a.traits
        if self.fused:
            self.qkv = b.linear(f"{name}.{'W_pack' if PACKED in a.traits else 'qkv_proj'}", h, q + 2 * kv, qkv_bias)
        else:
            self.q = b.linear(f"{name}.q_proj", h, q, qkv_bias)
            self.k = b.linear(f"{name}.k_proj", h, kv, qkv_bias)
            self.v = b.linear(f"{name}.v_proj", h, kv, qkv_bias)
        self.o = b.linear(f"{name}.{s.out_name}", q, h, flag(a, s.o_bias))
        self.shape = s
        self.softcap = s.softcap and a.get("attn_logit_softcapping") is not None
        self.qk_norm = s.qk_norm
        self.q_norm: Any
        self.k_norm: Any
        if s.qk_norm == "each":
            self.q_norm = HeadNorms(b, f"{name}.q_layernorm", self.heads, self.dim)
            self.k_norm = HeadNorms(b, f"{name}.k_layernorm", self.kv, self.dim)
        elif s.qk_norm == "heads":
            self.q_norm = Norm(b, f"{name}.q_norm", (self.heads, self.dim), s.norm)
            self.k_norm = Norm(b, f"{name}.k_norm", (self.kv, self.dim), s.norm)
        elif s.qk_norm is not None:
            head = s.qk_norm == "head"
            q_name, k_name = s.qk_names
            self.q_norm = Norm(b, f"{name}.{q_name}", self.dim if head else q, s.norm)
            self.k_norm = Norm(b, f"{name}.{k_name}", self.dim if head else kv, s.norm)
        self.inner_norm = Norm(b, f"{name}.attn_sub_norm", q, s.norm) if s.inner_norms else None
        self.residual_dropout = float(a.get("residual_dropout", 0.0)) if s.residual_dropout else 0.0

    def project(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, S, H] -> q [B, h, S, D], k and v [B, kv, S, D]."""
        b, s, _ = x.shape
        if self.fused:
            qkv = self.qkv(f, x)
            if self.splits:
                q, k, v = split(f, qkv, *((b, n, s, self.dim) for n in (self.heads, self.kv, self.kv)))
                return q, k, v
            q = slice_of(f, qkv, (b, self.heads, s, self.dim))
            k = slice_of(f, qkv, (b, self.kv, s, self.dim))
            v = slice_of(f, qkv, (b, self.kv, s, self.dim))
            return q, k, v
        if self.qk_norm == "full":
            q, k = self.q_norm(f, env, self.q(f, x)), self.k_norm(f, env, self.k(f, x))
            v = self.v(f, x)
            return q.view(b, self.heads, s, self.dim), k.view(b, self.kv, s, self.dim), v.view(b, self.kv, s, self.dim)
        if self.qk_norm == "heads":
            # CohereLayerNorm, with a weight for each head and feature, before the transpose.
            q = self.q_norm(f, env, self.q(f, x).view(b, s, self.heads, self.dim))
            k = self.k_norm(f, env, self.k(f, x).view(b, s, self.kv, self.dim))
            v = self.v(f, x)
            return q.view(b, self.heads, s, self.dim), k.view(b, self.kv, s, self.dim), v.view(b, self.kv, s, self.dim)
        if self.qk_norm == "head" and not self.shape.norm_after_rope:
            q = self.q_norm(f, env, self.q(f, x).view(b, self.heads, s, self.dim))
            k = self.k_norm(f, env, self.k(f, x).view(b, self.kv, s, self.dim))
            return q, k, self.v(f, x).view(b, self.kv, s, self.dim)
        q = self.q(f, x).view(b, self.heads, s, self.dim)
        k = self.k(f, x).view(b, self.kv, s, self.dim)
        v = self.v(f, x).view(b, self.kv, s, self.dim)
        if self.qk_norm == "each":
            q = self.q_norm(f, env, q)
            k = self.k_norm(f, env, k)
        return q, k, v

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        q, k, v = self.project(f, env, x)
        rope = env.state.get(f"rope:{kind}") or env.state["rope"]
        held: tuple[Tensor, ...] = ()
        if self.shape.rope_apart:
            q, k, held = rotate_apart(f, q, k, *rope)
        elif kind != "nope":
            q, k = rotate_both(f, q, k, rope, self.shape)
        if self.shape.query_scale:
            # get_llama_4_attn_scale: one number for each position.
            q = mul(f, q, f.new((1, 1, q.shape[2], 1), q.dtype))
        if self.shape.norm_after_rope:
            q = self.q_norm(f, env, q)
            k = self.k_norm(f, env, k)
        cache = env.state.get("cache")
        if cache is not None:
            # DynamicCache.update: cat((nothing yet, new)), held until the model's outputs die.
            k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
            cache.append((k.detach(), v.detach()))
        dense = self.shape.rope_cat or rope[0].shape[-1] < self.dim
        mask = env.state["masks"]["full" if kind == "nope" else kind]
        out = env.attend(f, q, k, v, mask, self.dropout, dense=dense, softcap=self.softcap)
        held = env.named(f, q, k, v, *held)
        del q, k, v
        if self.inner_norm is not None:
            out = self.inner_norm(f, env, out)
        result: Tensor = self.o(f, out)
        del held
        return dropout(f, result, self.residual_dropout)


class Block:
    """One decoder layer."""

    attention_class = Attention

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        s = self.shape = shape_of(a)
        h = a.hidden_size
        name = f"model.layers.{index}"
        self.kind = kind
        self.env = env
        self.attention = self.attention_class(a, b, f"{name}.self_attn", s)
        self.mlp = Mlp(a, b, f"{name}.mlp", s)
        names = (
            s.norm_names
            or {
                "pre": ("input_layernorm", "post_attention_layernorm"),
                "parallel": ("input_layernorm",),
                "post": ("post_attention_layernorm", "post_feedforward_layernorm"),
                "both": (
                    "input_layernorm",
                    "post_attention_layernorm",
                    "pre_feedforward_layernorm",
                    "post_feedforward_layernorm",
                ),
            }[s.norms]
        )
        self.norms = [Norm(b, f"{name}.{n}", h, s.norm) for n in names]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, s, norms = self.env, self.shape, self.norms
        if s.norms == "parallel":
            residual = x
            x = norms[0](f, env, x)
            attended = self.attention(f, env, x, self.kind)
            fed = self.mlp(f, env, x)
            return add(f, add(f, residual, attended), fed)
        residual = x
        if s.norms != "post":
            x = norms[0](f, env, x)
        x = self.attention(f, env, x, self.kind)
        if s.norms == "both":
            x = norms[1](f, env, x)
        elif s.norms == "post":
            x = norms[0](f, env, x)
        if s.branch_scale:
            x = scale(f, x)
        x = add(f, residual, x)
        residual = x
        if s.norms == "pre":
            x = norms[1](f, env, x)
        elif s.norms == "both":
            x = norms[2](f, env, x)
        x = self.mlp(f, env, x)
        if s.norms == "post":
            x = norms[1](f, env, x)
        elif s.norms == "both":
            x = norms[3](f, env, x)
        if s.branch_scale:
            x = scale(f, x)
        return add(f, residual, x)


def layer_kinds(a: Architecture) -> list[str]:
    """``full``, ``sliding`` or ``nope`` for each layer, from layer_types, sliding_window and no_rope_layers."""
    layers = a.num_hidden_layers
    types = a.get("layer_types")
    window = a.get("sliding_window")
    if isinstance(types, (list, tuple)) and len(types) == layers:
        kinds = ["sliding" if t == "sliding_attention" and window else "full" for t in types]
    elif window and a.get("use_sliding_window", True):
        kinds = ["sliding"] * layers
    else:
        kinds = ["full"] * layers
    if shape_of(a).rope_only_local and (window or a.model_type != "exaone4"):
        kinds = ["nope" if kind == "full" else kind for kind in kinds]
    no_rope = a.get("no_rope_layers")
    if isinstance(no_rope, (list, tuple)) and len(no_rope) == layers:
        kinds = [kind if uses else "nope" for kind, uses in zip(kinds, no_rope)]
    return kinds


class Model:
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    block = Block

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.a, self.env = a, env
        s = self.shape = shape_of(a)
        rows = b.training.vocab_size or a.vocab_size
        self.embed = self.embedding(b, rows)
        self.scales = s.embed_scale and not scaled_inside(a, s)
        """The model multiplies what its embedding gives."""
        self.kinds = layer_kinds(a)
        self.blocks = False
        """Tokens of an image see one another (gemma3, paligemma): there is always a mask."""
        self.layers: Any = self.stack(b)
        self.others: tuple[Tensor, ...] = ()
        """What every layer gets beside the hidden states (mllama's image states)."""
        self.norm = Norm(b, "model.norm", a.hidden_size, s.norm)
        self.rotary = int((a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")) * partial_rotary(a))
        b.buffer(self.rotary // 2 * 4)
        b.buffer(self.rotary // 2 * 4)
        keep_tables(a, b, self.rotary)

    def embedding(self, b: Build, rows: int) -> Any:
        """The token embedding."""
        inside = scaled_inside(self.a, self.shape)
        return b.embedding("model.embed_tokens", rows, self.a.hidden_size, entry=True, scaled=inside)

    def stack(self, b: Build) -> Any:
        """The layers."""
        return Stack(b, self.kinds, lambda build, kind, index: self.block(self.a, build, kind, index, self.env))

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        x = self.embed(f, batch.ids)
        if self.scales:
            x = scale(f, x)
        return self.body(f, x, batch)

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        env, a = self.env, self.a
        rows, length = x.shape[0], x.shape[1]
        state = env.state
        state["masks"] = {
            kind: env.mask(
                f, rows, length, x.dtype, a.get("sliding_window") if kind == "sliding" else None, blocks=self.blocks
            )
            for kind in dict.fromkeys("full" if kind == "nope" else kind for kind in self.kinds)
        }
        env.number(f, length)
        dtype = "fp32" if self.shape.rope_fp32 else x.dtype
        wide = self.shape.rope_rows or env.positions
        state["rope"] = rotary_tables(f, length, self.rotary, dtype, rows if wide else 1)
        if self.shape.local_rope and len(state["masks"]) > 1:
            state["rope:sliding"] = rotary_tables(f, length, self.rotary, dtype, rows if env.positions else 1)
        del state
        if self.shape.normed_embeddings:
            x = self.norm(f, env, x)
        x = self.layers(f, env, x, *self.others)
        x = self.norm(f, env, x)
        env.release()
        return x
