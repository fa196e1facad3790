"""GPT-2 and its nearest kin: learned positions, fused projection, pre-norm blocks (gpt2, gpt_bigcode, gpt_neo).

Sources: transformers 5.24 models/{gpt2,gpt_bigcode,gpt_neo}/modeling_*.py. Other types of the family live beside this
module.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Attention:
    """GPT2Attention: one Conv1D for query, key and value."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.c_attn = b.linear(f"{name}.c_attn", h, 3 * h, True)
        self.c_proj = b.linear(f"{name}.c_proj", h, h, True)
        self.dropout = float(a.get("attn_pdrop", 0.0))
        self.residual_dropout = float(a.get("resid_pdrop", 0.0))

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        b, s, h = x.shape
        q, k, v = split(f, self.c_attn(f, x), (b, s, h), (b, s, h), (b, s, h))
        q, k, v = (heads_of(t, self.heads, self.width) for t in (q, k, v))
        out, weights = attend(f, env, q, k, v, env.state["mask"], self.dropout, style="plain")
        out = self.c_proj(f, out)
        out = dropout(f, out, self.residual_dropout)
        return out, weights


class Mlp:
    """GPT2MLP: two projections around an activation."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int) -> None:
        self.act = str(a.get("activation_function", "gelu_new"))
        self.dropout = float(a.get("resid_pdrop", a.get("resid_dropout", 0.0)))
        self.c_fc = b.linear(f"{name}.c_fc", a.hidden_size, width, True)
        self.c_proj = b.linear(f"{name}.c_proj", width, a.hidden_size, True)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.c_fc(f, x)
        x = activate(f, x, self.act)
        x = self.c_proj(f, x)
        return dropout(f, x, self.dropout)


class Block:
    """GPT2Block."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.env = env
        self.ln_1 = LayerNorm(b, f"{name}.ln_1", a.hidden_size)
        self.attn = Attention(a, b, f"{name}.attn")
        self.ln_2 = LayerNorm(b, f"{name}.ln_2", a.hidden_size)
        self.mlp = Mlp(a, b, f"{name}.mlp", int(a.get("n_inner") or 4 * a.hidden_size))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.ln_1(f, x)
        attended, _ = self.attn(f, self.env, x)
        x = add(f, attended, residual)
        residual = x
        x = self.ln_2(f, x)
        forward = self.mlp(f, x)
        return add(f, residual, forward)


class Model:
    """GPT2Model: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False
    block = Block
    embedding_dropout = "embd_pdrop"

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.a, self.env = a, env
        h = a.hidden_size
        self.embed = b.embedding("transformer.wte", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding("transformer.wpe", int(a.get("max_position_embeddings")), h)
        self.dropout = float(a.get(self.embedding_dropout, 0.0))
        self.layers = Stack(
            b, ["block"] * a.num_hidden_layers, lambda build, kind, i: self.block(a, build, kind, i, env)
        )
        self.norm = LayerNorm(b, "transformer.ln_f", h)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        rows, length = batch.rows, batch.length
        embeds = self.embed(f, batch.ids)
        positions = f.new((rows if env.positions else 1, length), "int64")
        position_embeds = self.positions(f, positions)
        x = add(f, embeds, position_embeds)
        env.state["mask"] = env.mask(f, rows, length, embeds.dtype)
        given = [dropout(f, x, self.dropout)]
        del x
        x = self.layers(f, env, given)
        x = self.norm(f, x)
        env.release()
        return x
