"""Decoders that came from fairseq: XGLM and BioGPT. Scaled embeddings, norms before the branches.

Sources: transformers 5.24 models/{xglm,biogpt}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, scale
from memlint.estimate.ops.linear import matmul
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

POSITION_OFFSET = 2
"""Rows that either table of positions has in front."""


def _floor_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # maximum: where(self == other, grad / 2, grad).masked_fill_(self < other, 0) (derivatives.yaml, torch 2.13).
    equal = f.new(grad.shape, "bool")
    half = f.like(grad)
    out = f.like(grad)
    del equal, half
    return (out,)


def _floored(f: Tape, x: Tensor) -> Tensor:
    """``torch.max(x, lowest)``: saves its input."""
    saved = f.save(x) if f.needs(x) else ()
    out = f.like(x)
    return f.record(out, _floor_backward, (x,), saved) if f.needs(x) else out


class Attention:
    """XGLMAttention (eager, by bmm) and BioGptAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.composed = a.model_type == "xglm"
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            b.linear(f"{name}.{n}", h, h, True) for n in ("k_proj", "v_proj", "q_proj", "out_proj")
        )
        field = "attention_dropout" if self.composed else "attention_probs_dropout_prob"
        self.dropout = float(a.get(field, 0.0))

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        q = self.q_proj(f, x)
        if self.composed:
            q = scale(f, q)
        q = heads_of(q, self.heads, self.width)
        k, v = heads_of(self.k_proj(f, x), self.heads, self.width), heads_of(self.v_proj(f, x), self.heads, self.width)
        mask = env.state["mask"]
        weights: Tensor | None
        if self.composed:
            if q.shape[0] > 1:
                # reshape to [B * h, S, D] copies what is a transposed view.
                q = copy(f, q)
                k = copy(f, k)
                v = copy(f, v)
            out, weights = self._by_bmm(f, q, k, v, mask)
        else:
            out, weights = attend(f, env, q, k, v, mask, self.dropout, style="raw")
        out = self.out_proj(f, out)
        return out, weights

    def _by_bmm(self, f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        b, heads, s, width = q.shape
        weights = matmul(f, q, k, s)
        if mask is not None:
            weights = add(f, weights, mask)
            weights = _floored(f, weights)
        weights = softmax(f, weights)
        probabilities = dropout(f, weights, self.dropout)
        out = copy(f, matmul(f, probabilities, v, width))
        return out.view(b, s, heads * width), weights


class Block:
    """XGLMDecoderLayer and BioGptDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        xglm = a.model_type == "xglm"
        h, width = a.hidden_size, int(a.get("ffn_dim" if xglm else "intermediate_size"))
        self.env, self.xglm = env, xglm
        self.dropout = float(a.get("dropout" if xglm else "hidden_dropout_prob", 0.0))
        self.activation_dropout = float(a.get("activation_dropout", 0.0))
        self.act = str(a.get("activation_function" if xglm else "hidden_act", "gelu"))
        self.self_attn = Attention(a, b, f"{name}.self_attn")
        self.self_attn_layer_norm = LayerNorm(b, f"{name}.self_attn_layer_norm", h)
        self.fc1 = b.linear(f"{name}.fc1", h, width, True)
        self.fc2 = b.linear(f"{name}.fc2", width, h, True)
        self.final_layer_norm = LayerNorm(b, f"{name}.final_layer_norm", h)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.self_attn_layer_norm(f, x)
        x, _ = self.self_attn(f, self.env, x)
        x = dropout(f, x, self.dropout)
        x = add(f, residual, x)
        residual = x
        x = self.final_layer_norm(f, x)
        x = self.fc1(f, x)
        x = activate(f, x, self.act)
        x = dropout(f, x, self.activation_dropout)
        x = self.fc2(f, x)
        x = dropout(f, x, self.dropout)
        return add(f, residual, x)


class Model:
    """ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        self.xglm = a.model_type == "xglm"
        h, root = a.hidden_size, "model" if self.xglm else "biogpt"
        if self.xglm:
            env.attention = "eager"
        self.dtype = b.training.precision.weights
        self.dropout = float(a.get("dropout" if self.xglm else "hidden_dropout_prob", 0.0))
        rows = b.training.vocab_size or a.vocab_size
        self.embed = b.embedding(f"{root}.embed_tokens", rows, h, entry=True, scaled=True)
        rows = int(a.get("max_position_embeddings")) + POSITION_OFFSET
        self.positions: Any = None
        if self.xglm:
            b.buffer(rows * h * DTYPE_BYTES[self.dtype])
        else:
            self.positions = b.embedding(f"{root}.embed_positions", rows, h)
        make = lambda build, kind, i: Block(a, build, f"{root}.layers.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, f"{root}.layer_norm", h)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        rows, length = batch.rows, batch.length
        embeds = self.embed(f, batch.ids)
        ones = batch.mask or (None if self.xglm else f.new((rows, length), "fp32"))
        env.state["mask"] = env.mask(f, rows, length, embeds.dtype)
        position_ids = f.new((1, length), "int64")
        if self.positions is None:
            positions = f.new((1, length, embeds.shape[-1]), self.dtype)
        else:
            env.state["positions"] = position_ids
            positions = self.positions(f, f.like(position_ids))
        x = add(f, embeds, positions)
        del positions
        x = dropout(f, x, self.dropout)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        del ones
        return x
