"""Persimmon: one projection for query, key and value, norms of queries and keys, and half of each head turned.

Source: transformers 5.24 models/persimmon/modeling_persimmon.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.gpt_neox import Mlp
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of, rotate_apart
from memlint.estimate.families.rotary import partial_rotary, rotary_tables
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.ops.views import select
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Attention:
    """PersimmonAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.qkv = b.linear(f"{name}.query_key_value", h, 3 * h, True)
        self.dense = b.linear(f"{name}.dense", h, h, True)
        self.norms: tuple[LayerNorm, LayerNorm] | None = None
        if a.get("qk_layernorm", True):
            width = self.width
            self.norms = LayerNorm(b, f"{name}.q_layernorm", width), LayerNorm(b, f"{name}.k_layernorm", width)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        fused = self.qkv(f, x)
        part = (*x.shape[:2], self.heads, self.width)
        q, k, v = select(f, fused, part), select(f, fused, part), select(f, fused, part)
        if self.norms is not None:
            q = self.norms[0](f, q)
            k = self.norms[1](f, k)
        q, k, v = (heads_of(t, self.heads, self.width) for t in (q, k, v))
        q, k, held = rotate_apart(f, q, k, *env.state["rope"])
        out, weights = attend(f, env, q, k, v, env.state["mask:causal"], self.dropout, dense=True)
        out = self.dense(f, out)
        del fused, held
        return out, weights


class Block:
    """PersimmonDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"model.layers.{index}"
        self.env, self.dropout = env, float(a.get("hidden_dropout", 0.0))
        self.before = LayerNorm(b, f"{name}.input_layernorm", a.hidden_size)
        self.between = LayerNorm(b, f"{name}.post_attention_layernorm", a.hidden_size)
        self.attention = Attention(a, b, f"{name}.self_attn")
        self.mlp = Mlp(a, b, f"{name}.mlp", ("dense_h_to_4h", "dense_4h_to_h"))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.before(f, x)
        x, _ = self.attention(f, self.env, x)
        x = add(f, residual, x)
        residual = x
        x = self.between(f, x)
        x = self.mlp(f, x)
        x = dropout(f, x, self.dropout)
        return add(f, x, residual)


class Model:
    """PersimmonModel: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env, h = env, a.hidden_size
        self.embed = b.embedding("model.embed_tokens", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: Block(a, build, i, env))
        self.norm = LayerNorm(b, "model.final_layernorm", h)
        self.rotary = int(h // int(a.get("num_attention_heads")) * partial_rotary(a))
        b.buffer(self.rotary // 2 * 4)
        b.buffer(self.rotary // 2 * 4)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        x = self.embed(f, batch.ids)
        env.state["mask:causal"] = env.mask(f, batch.rows, batch.length, x.dtype)
        env.number(f, batch.length)
        env.state["rope"] = rotary_tables(f, batch.length, self.rotary, x.dtype)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x
