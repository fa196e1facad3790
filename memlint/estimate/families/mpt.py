"""MPT: ALiBi added in fp32, a boolean causal mask, no biases; eager attention only.

Source: transformers 5.24 models/mpt/modeling_mpt.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout, scale
from memlint.estimate.ops.gather import clamp, masked_fill
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


def setting(a: Architecture, name: str) -> float:
    """A number of the nested ``attn_config``; 0 where it is absent or null."""
    inner = a.get("attn_config")
    value = inner.get(name) if hasattr(inner, "get") else None
    return float(value or 0.0)


class Attention:
    """MptAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads") or a.get("n_heads"))
        self.width = h // self.heads
        self.clips = setting(a, "clip_qkv") > 0
        self.dropout = setting(a, "attn_pdrop")
        self.qkv = b.linear(f"{name}.Wqkv", h, 3 * h)
        self.out_proj = b.linear(f"{name}.out_proj", h, h)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        b, s, h = x.shape
        mixed = self.qkv(f, x)
        if self.clips:
            mixed = clamp(f, mixed)
        q, k, v = (heads_of(t, self.heads, self.width) for t in split(f, mixed, (b, s, h), (b, s, h), (b, s, h)))
        loose = b > 1
        scores = scale(f, matmul(f, q, k, s, copy_a=loose, copy_b=loose))
        scores = add(f, scores, env.state["alibi"])
        scores = masked_fill(f, scores, env.state["mask"])
        weights = cast(f, softmax(f, cast(f, scores, "fp32")), v.dtype)
        weights = dropout(f, weights, self.dropout)
        context = matmul(f, weights, v, self.width, copy_b=loose)
        context = copy(f, context).view(b, s, h)
        out = self.out_proj(f, context)
        return out, weights


class Block:
    """MptBlock; returns the attention weights as a second output."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"transformer.blocks.{index}"
        h = a.hidden_size
        self.env = env
        self.dropout = setting(a, "attn_pdrop")
        self.norm_1 = LayerNorm(b, f"{name}.norm_1", h, bias=False)
        self.attn = Attention(a, b, f"{name}.attn")
        self.norm_2 = LayerNorm(b, f"{name}.norm_2", h, bias=False)
        self.up = b.linear(f"{name}.ffn.up_proj", h, 4 * h)
        self.down = b.linear(f"{name}.ffn.down_proj", 4 * h, h)

    def feed(self, f: Tape, x: Tensor, residual: Tensor) -> Tensor:
        """MptMLP."""
        x = activate(f, self.up(f, x), "gelu")
        down = self.down(f, x)
        out = dropout(f, down, self.dropout)
        return add(f, out, residual)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        normed = self.norm_1(f, x)
        residual = x
        attended, weights = self.attn(f, self.env, normed)
        x = add(f, dropout(f, attended, self.dropout), residual)
        normed = self.norm_2(f, x)
        residual = x
        out = self.feed(f, normed, residual)
        self.env.left = weights
        return out


class Model:
    """MptModel: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        env.attention = "eager"
        self.env = env
        h = a.hidden_size
        self.alibi = (int(a.get("num_attention_heads") or a.get("n_heads")), 1, int(a.get("max_seq_len", 2048)))
        self.embed = b.embedding("transformer.wte", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: Block(a, build, i, env))
        self.norm = LayerNorm(b, "transformer.norm_f", h, bias=False)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        embeds = self.embed(f, batch.ids)
        x = embeds
        alibi = f.new(self.alibi, "fp32")
        env.state["alibi"] = alibi.view(self.alibi[0], 1, batch.length)
        mask = env.mask(f, batch.rows, batch.length, embeds.dtype)
        assert mask is not None
        env.state["mask"] = f.new(mask.shape, "bool")
        del mask
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x
