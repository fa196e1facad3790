"""OPT: learned positions with an offset of two, ReLU, norms before or after the branches.

Source: transformers 5.24 models/opt/modeling_opt.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout, scale
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

POSITION_OFFSET = 2
"""Rows that OPTLearnedPositionalEmbedding adds."""


class Attention:
    """OPTAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        bias = bool(a.get("enable_bias", True))
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            b.linear(f"{name}.{n}", h, h, bias) for n in ("k_proj", "v_proj", "q_proj", "out_proj")
        )
        self.dropout = float(a.get("attention_dropout", 0.0))

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        q = scale(f, self.q_proj(f, x))
        q = heads_of(q, self.heads, self.width)
        k = heads_of(self.k_proj(f, x), self.heads, self.width)
        v = heads_of(self.v_proj(f, x), self.heads, self.width)
        out, weights = attend(f, env, q, k, v, env.state["mask:causal"], self.dropout)
        out = self.out_proj(f, out)
        return out, weights


class Block:
    """OPTDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"model.decoder.layers.{index}"
        h, width = a.hidden_size, int(a.get("ffn_dim"))
        bias, affine = bool(a.get("enable_bias", True)), bool(a.get("layer_norm_elementwise_affine", True))
        self.env = env
        self.before = bool(a.get("do_layer_norm_before", True))
        self.dropout = float(a.get("dropout", 0.0))
        self.act = str(a.get("activation_function", "relu"))
        self.self_attn = Attention(a, b, f"{name}.self_attn")
        self.self_attn_layer_norm = LayerNorm(b, f"{name}.self_attn_layer_norm", h, affine=affine)
        self.fc1 = b.linear(f"{name}.fc1", h, width, bias)
        self.fc2 = b.linear(f"{name}.fc2", width, h, bias)
        self.final_layer_norm = LayerNorm(b, f"{name}.final_layer_norm", h, affine=affine)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        if self.before:
            x = self.self_attn_layer_norm(f, x)
        x, _ = self.self_attn(f, self.env, x)
        x = dropout(f, x, self.dropout)
        x = add(f, residual, x)
        if not self.before:
            x = self.self_attn_layer_norm(f, x)
        residual = x
        if self.before:
            x = self.final_layer_norm(f, x)
        x = self.fc1(f, x)
        x = activate(f, x, self.act)
        x = self.fc2(f, x)
        x = dropout(f, x, self.dropout)
        x = add(f, residual, x)
        if not self.before:
            x = self.final_layer_norm(f, x)
        return x


class Model:
    """OPTDecoder: ids [B, S] -> hidden states [B, S, word_embed_proj_dim]."""

    head_bias = False

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h = a.hidden_size
        width = int(a.get("word_embed_proj_dim", h))
        affine = bool(a.get("layer_norm_elementwise_affine", True))
        root = "model.decoder"
        self.embed = b.embedding(f"{root}.embed_tokens", b.training.vocab_size or a.vocab_size, width, entry=True)
        self.positions = b.embedding(
            f"{root}.embed_positions", int(a.get("max_position_embeddings")) + POSITION_OFFSET, h
        )
        projects = width != h
        self.project_out = b.linear(f"{root}.project_out", h, width) if projects else None
        self.project_in = b.linear(f"{root}.project_in", width, h) if projects else None
        final = bool(a.get("do_layer_norm_before", True)) and not a.get("_remove_final_layer_norm", False)
        self.norm = LayerNorm(b, f"{root}.final_layer_norm", h, affine=affine) if final else None
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: Block(a, build, i, env))

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        embeds = self.embed(f, batch.ids)
        position_mask = batch.mask or f.new((batch.rows, batch.length), "fp32")
        position_ids = env.state["positions"] = f.new((batch.rows, batch.length), "int64")
        env.state["mask:causal"] = env.mask(f, batch.rows, batch.length, embeds.dtype)
        position_embeds = self.positions(f, f.like(position_ids))
        if self.project_in is not None:
            embeds = self.project_in(f, embeds)
        summed = [add(f, embeds, position_embeds)]
        x = self.layers(f, env, summed)
        if self.norm is not None:
            x = self.norm(f, x)
        if self.project_out is not None:
            x = self.project_out(f, x)
        env.release()
        del position_mask
        return x
