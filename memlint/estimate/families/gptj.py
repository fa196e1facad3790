"""GPT-J and CodeGen: rotary positions on neighbouring pairs, one norm before attention and MLP side by side.

Sources: transformers 5.24 models/{gptj,codegen}/modeling_*.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, attend, joined, turn_every_two
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, copy, dropout, slice_of
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHARDS = 4
"""mp_num of CodeGenAttention: the fused projection is interleaved over four shards."""


class Attention:
    """GPTJAttention and CodeGenAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        rotary = a.config.get("rotary_dim")
        self.rotary = None if rotary is None else int(rotary)
        self.fused = a.model_type == "codegen"
        names = ("qkv_proj",) if self.fused else ("q_proj", "k_proj", "v_proj")
        self.projections = [b.linear(f"{name}.{n}", h, 3 * h if self.fused else h) for n in names]
        self.out_proj = b.linear(f"{name}.out_proj", h, h)
        self.dropout = float(a.get("attn_pdrop", 0.0))
        self.residual_dropout = float(a.get("resid_pdrop", 0.0))

    def project(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, S, h, D] of x [B, S, H]; codegen's interleaved parts are copied by reshape."""
        shape = (*x.shape[:-1], self.heads, self.width)
        if not self.fused:
            q, k, v = (p(f, x).view(*shape) for p in self.projections)
            return q, k, v
        local = (*x.shape[:-1], SHARDS, x.shape[-1] // SHARDS)
        q, v, k = split(f, self.projections[0](f, x), local, local, local)
        if self.heads == SHARDS:
            return q.view(*shape), k.view(*shape), v.view(*shape)
        q = copy(f, q, shape)
        k = copy(f, k, shape)
        v = copy(f, v, shape)
        return q, k, v

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        b, s, _ = x.shape
        q, k, v = self.project(f, x)
        tables = env.state["rope"]
        if self.rotary is not None:
            turned, rest = (b, s, self.heads, self.rotary), (b, s, self.heads, self.width - self.rotary)
            k_rot, k_pass = slice_of(f, k, turned), slice_of(f, k, rest)
            q_rot, q_pass = slice_of(f, q, turned), slice_of(f, q, rest)
            k_rot = turn_every_two(f, k_rot, self.rotary, tables)
            q_rot = turn_every_two(f, q_rot, self.rotary, tables)
            k = joined(f, k_rot, k_pass)
            q = joined(f, q_rot, q_pass)
        else:
            k = turn_every_two(f, k, self.width, tables)
            q = turn_every_two(f, q, self.width, tables)
        head = (b, self.heads, s, self.width)
        if self.fused:
            q = cast(f, q, v.dtype)
            k = cast(f, k, v.dtype)
        q, k, v = q.view(*head), k.view(*head), v.view(*head)
        out, weights = attend(f, env, q, k, v, env.state["mask:causal"], self.dropout, style="upcast")
        out = self.out_proj(f, out)
        out = dropout(f, out, self.residual_dropout)
        return out, weights


class Mlp:
    """GPTJMLP."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        width = int(a.get("n_inner") or 4 * a.hidden_size)
        self.act = str(a.get("activation_function", "gelu_new"))
        self.fc_in = b.linear(f"{name}.fc_in", a.hidden_size, width, True)
        self.fc_out = b.linear(f"{name}.fc_out", width, a.hidden_size, True)
        self.dropout = float(a.get("resid_pdrop", 0.0))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.fc_in(f, x)
        x = activate(f, x, self.act)
        x = self.fc_out(f, x)
        return dropout(f, x, self.dropout)


class Block:
    """GPTJBlock."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.env = env
        self.ln_1 = LayerNorm(b, f"{name}.ln_1", a.hidden_size)
        self.attn = Attention(a, b, f"{name}.attn")
        self.mlp = Mlp(a, b, f"{name}.mlp")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.ln_1(f, x)
        attended, _ = self.attn(f, self.env, x)
        fed = self.mlp(f, x)
        return add(f, add(f, attended, fed), residual)


class Model:
    """GPTJModel and CodeGenModel: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = True

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h = a.hidden_size
        self.fp32_tables = a.model_type == "codegen"
        self.rotary = int(a.get("rotary_dim") or h)
        self.embed = b.embedding("transformer.wte", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.dropout = float(a.get("embd_pdrop", 0.0))
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: Block(a, build, i, env))
        self.norm = LayerNorm(b, "transformer.ln_f", h)
        b.buffer(int(a.get("max_position_embeddings")) * self.rotary * 4)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        embeds = self.embed(f, batch.ids)
        env.state["mask:causal"] = env.mask(f, batch.rows, batch.length, embeds.dtype)
        x = dropout(f, embeds, self.dropout)
        env.number(f, batch.length)
        env.state["rope"] = f.new((1, batch.length, self.rotary), "fp32" if self.fp32_tables else x.dtype)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x
