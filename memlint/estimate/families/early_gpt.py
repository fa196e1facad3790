"""The first GPT and CTRL: neither has activation checkpointing.

Sources: transformers 5.24 models/{openai,ctrl}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, mul, scale, shift
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import scale_in_place, split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES


class Attention:
    """OpenAI GPT's Attention: scores masked by a product with a buffer, whatever attention the job asks for."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, longest = a.hidden_size, int(a.get("n_positions", 512))
        self.heads = int(a.get("num_attention_heads"))
        self.c_attn = b.linear(f"{name}.c_attn", h, 3 * h, True)
        self.c_proj = b.linear(f"{name}.c_proj", h, h, True)
        self.dropout = float(a.get("attn_pdrop", 0.0))
        self.residual_dropout = float(a.get("resid_pdrop", 0.0))
        self.dtype = b.training.precision.weights
        b.buffer(longest * longest * DTYPE_BYTES[self.dtype])

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, h = x.shape
        x = self.c_attn(f, x)
        q, k, v = split(f, x, (b, s, h), (b, s, h), (b, s, h))
        q, k, v = (heads_of(t, self.heads, h // self.heads) for t in (q, k, v))
        out = self.attend(f, q, k, v, env.state["mask"])
        out = copy(f, out).view(b, s, h)
        out = self.c_proj(f, out)
        return dropout(f, out, self.residual_dropout)

    def attend(self, f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attention._attn."""
        s, several = q.shape[2], q.shape[0] > 1
        weights = matmul(f, q, k, s, copy_a=several, copy_b=several)
        weights = scale(f, weights)
        allowed = Tensor((1, 1, s, s), self.dtype, None)
        weights = self._masked(f, weights, allowed)
        if mask is not None:
            weights = add(f, weights, mask)
        weights = softmax(f, weights)
        weights = dropout(f, weights, self.dropout)
        return matmul(f, weights, v, v.shape[-1], copy_b=several)

    def _masked(self, f: Tape, weights: Tensor, allowed: Tensor) -> Tensor:
        return add(f, mul(f, weights, allowed), scale(f, f.like(allowed)))


class Block:
    """OpenAI GPT's Block: norms after the branches."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h = a.hidden_size
        act = str(a.get("afn", "gelu"))
        self.env, self.act = env, "gelu_new" if act == "gelu" else act
        self.dropout = float(a.get("resid_pdrop", 0.0))
        self.attn = Attention(a, b, f"{name}.attn")
        self.ln_1 = LayerNorm(b, f"{name}.ln_1", h)
        self.c_fc = b.linear(f"{name}.mlp.c_fc", h, 4 * h, True)
        self.c_proj = b.linear(f"{name}.mlp.c_proj", 4 * h, h, True)
        self.ln_2 = LayerNorm(b, f"{name}.ln_2", h)

    def feed(self, f: Tape, x: Tensor) -> Tensor:
        """MLP."""
        hidden = activate(f, self.c_fc(f, x), self.act)
        out = self.c_proj(f, hidden)
        return dropout(f, out, self.dropout)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended = self.attn(f, self.env, x)
        normed = self.ln_1(f, add(f, x, attended))
        fed = self.feed(f, normed)
        return self.ln_2(f, add(f, normed, fed))


class CtrlBlock:
    """CTRL's EncoderLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("dff", 8192))
        self.env, self.heads = env, int(a.get("num_attention_heads"))
        at = f"{name}.multi_head_attention"
        self.q, self.k, self.v = (b.linear(f"{at}.W{n}", h, h, True) for n in "qkv")
        self.dense = b.linear(f"{at}.dense", h, h, True)
        self.up = b.linear(f"{name}.ffn.0", h, inner, True)
        self.down = b.linear(f"{name}.ffn.2", inner, h, True)
        self.norm1, self.norm2 = (LayerNorm(b, f"{name}.layernorm{n}", h) for n in (1, 2))
        self.dropout = float(a.get("resid_pdrop", 0.0))

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """MultiHeadAttention."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.q(f, x), self.heads, width)
        k = heads_of(self.k(f, x), self.heads, width)
        v = heads_of(self.v(f, x), self.heads, width)
        out, weights = attend(f, self.env, q, k, v, self.env.state["mask"], style="raw")
        out = self.dense(f, out)
        return out, weights

    def feed(self, f: Tape, x: Tensor) -> Tensor:
        """The Sequential of two projections around a ReLU."""
        x = self.up(f, x)
        x = activate(f, x, "relu")
        result: Tensor = self.down(f, x)
        return result

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        normed = self.norm1(f, x)
        attended, _ = self.attend(f, normed)
        attended = dropout(f, attended, self.dropout)
        out1 = add(f, x, attended)
        out2 = self.norm2(f, out1)
        fed = self.feed(f, out2)
        fed = dropout(f, fed, self.dropout)
        return add(f, out1, fed)


class Model:
    """OpenAIGPTModel and CTRLModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if env.checkpointing.mode != "none":
            raise Unsupported(f"the class of `{a.model_type}` in transformers has no activation checkpointing")
        self.env, self.ctrl, h = env, a.model_type == "ctrl", a.hidden_size
        self.head_bias = self.ctrl
        rows, longest = b.training.vocab_size or a.vocab_size, int(a.get("n_positions", 512))
        self.dropout = float(a.get("embd_pdrop", 0.0))
        self.positions: Any = None
        self.norm: LayerNorm | None = None
        self.dtype = b.training.precision.weights
        if self.ctrl:
            self.embed = b.embedding("transformer.w", rows, h)
            self.norm = LayerNorm(b, "transformer.layernorm", h)
            # The first forward replaces the table of sines by one in the embeddings' dtype.
            b.buffer(longest * h * DTYPE_BYTES[self.dtype])
        else:
            self.embed = b.embedding("transformer.tokens_embed", rows, h)
            self.positions = b.embedding("transformer.positions_embed", longest, h)
            b.buffer(longest * 8)
        block = CtrlBlock if self.ctrl else Block
        make = lambda build, kind, i: block(a, build, f"transformer.h.{i}", env)  # noqa: E731
        # No norm follows GPT-1's last layer: its gradient is the head's own, which a fused loss goes on holding.
        alone = () if self.ctrl else (a.num_hidden_layers - 1,)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, make, alone=alone)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, (rows, length) = self.env, batch.ids.shape
        if self.ctrl:
            embeds = self.embed(f, batch.ids)
            positions = f.new((1, length), "int64")
            env.state["mask"] = env.mask(f, rows, length, embeds.dtype)
            embeds = scale_in_place(f, embeds)
            places = f.new((1, length, embeds.shape[-1]), embeds.dtype)
        else:
            mask = f.new((rows, 1, 1, length), self.dtype) if env.padding else None
            env.state["mask"] = mask
            embeds = self.embed(f, batch.ids)
            positions = Tensor((1, length), "int64", None)
            places = self.positions(f, positions)
        x = shift(f, add(f, embeds, places))
        x = dropout(f, x, self.dropout)
        x = self.layers(f, env, x)
        if self.norm is not None:
            x = self.norm(f, x)
        env.release()
        del places, positions
        return x
