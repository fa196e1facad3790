"""DeBERTa (the first): one projection of queries, keys and values, biases of queries and values, composed layer norms.

Source: transformers 5.24 models/deberta/modeling_deberta.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import deberta
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import (
    add,
    cast,
    copy,
    dropout,
    mean_last,
    mul,
    saving_output,
    scale,
    shift,
    slice_of,
    square,
)
from memlint.estimate.ops.gather import divide, masked_fill, subtract
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import add_in_place, gather, scale_in_place, split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Norm:
    """DebertaLayerNorm: in fp32, cast back, then weight and bias."""

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight, self.bias = b.parameter(f"{name}.weight", width), b.parameter(f"{name}.bias", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        dtype = x.dtype
        h = cast(f, x, "fp32")
        mean = mean_last(f, h)
        variance = mean_last(f, square(f, subtract(f, h, mean)))
        h = divide(f, subtract(f, h, mean), saving_output(f, shift(f, variance)))
        h = cast(f, h, dtype)
        return add(f, mul(f, self.weight, h), self.bias)


class Attention:
    """DisentangledSelfAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = self.inner = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        if a.get("talking_head", False):
            raise Unsupported("no memory model for talking heads in DeBERTa yet")
        self.in_proj = b.linear(f"{name}.in_proj", h, 3 * h)
        self.q_bias, self.v_bias = b.parameter(f"{name}.q_bias", h), b.parameter(f"{name}.v_bias", h)
        self.relative = bool(a.get("relative_attention", False))
        self.ways = deberta.directions(a) if self.relative else ()
        longest = int(a.get("max_relative_positions", -1))
        self.longest = int(a.get("max_position_embeddings")) if longest < 1 else longest
        if "c2p" in self.ways:
            self.pos_proj = b.linear(f"{name}.pos_proj", h, h)
        if "p2c" in self.ways:
            self.pos_q_proj = b.linear(f"{name}.pos_q_proj", h, h, True)
        self.dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.pos_dropout = float(a.get("hidden_dropout_prob", 0.0))

    def bias(self, f: Tape, q: Tensor, k: Tensor, relative: Tensor, embeddings: Tensor) -> Tensor | None:
        """disentangled_att_bias: content to position, position to content, or both."""
        rows, _, length, _ = q.shape
        span = min(length, self.longest)
        if span < self.longest:
            embeddings = slice_of(f, embeddings, (2 * span, embeddings.shape[1]))
        heads = (1, self.heads, 2 * span, self.width)
        square_shape = (rows, self.heads, length, length)
        score: Tensor | None = None
        held: list[Any] = []
        if "c2p" in self.ways:
            position = self.pos_proj(f, embeddings).view(*heads)
            attended = matmul(f, q, self._spread(f, position, rows), 2 * span, copy_a=rows > 1)
            buckets = f.like(relative)
            buckets = f.like(relative)
            attended = gather(f, attended, buckets, square_shape)
            score = shift(f, attended)
            held.append((position, buckets, attended))
        if "p2c" in self.ways:
            position = scale_in_place(f, self.pos_q_proj(f, embeddings).view(*heads))
            buckets = f.like(relative)
            buckets = f.like(relative)
            attended = matmul(f, k, self._spread(f, position, rows), 2 * span, copy_a=rows > 1)
            attended = gather(f, attended, buckets, square_shape)
            score = shift(f, attended) if score is None else add_in_place(f, score, attended)
            held.append((position, buckets, attended))
        del held
        return score

    def _spread(self, f: Tape, position: Tensor, rows: int) -> Tensor:
        """matmul expands its second operand over the batch, which is a copy."""
        if rows == 1:
            return position
        return deberta.repeat(f, position, (rows, *position.shape[1:]))

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        rows, length, _ = x.shape
        state, shape = env.state, (rows, self.heads, length, self.width)
        whole = self.in_proj(f, x)
        q, k, v = split(f, whole, shape, shape, shape)
        q = add(f, q, self.q_bias.view(1, self.heads, 1, self.width))
        v = add(f, v, self.v_bias.view(1, self.heads, 1, self.width))
        q = scale(f, q)
        scores = matmul(f, q, k, length, copy_a=rows > 1, copy_b=rows > 1)
        extra = None
        if self.relative:
            embeddings = dropout(f, state["relative embeddings"], self.pos_dropout)
            extra = self.bias(f, q, k, state["relative"], embeddings)
        if extra is not None:
            scores = add(f, scores, extra)
        mask = f.new(state["mask"].shape, "bool")
        scores = masked_fill(f, scores, f.like(mask))
        probabilities = softmax(f, scores)
        probabilities = dropout(f, probabilities, self.dropout)
        context = matmul(f, probabilities, v, self.width, copy_b=rows > 1)
        context = copy(f, context)
        del mask, extra, whole
        return context.view(rows, length, self.inner)


class Layer(deberta.Layer):
    """DebertaLayer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name, h, width = f"deberta.encoder.layer.{index}", a.hidden_size, int(a.get("intermediate_size"))
        self.env, self.conv = env, None
        self.act = str(a.get("hidden_act", "gelu"))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.attention: Any = Attention(a, b, f"{name}.attention.self")
        self.out = b.linear(f"{name}.attention.output.dense", h, h, True)
        self.attention_norm: Any = Norm(b, f"{name}.attention.output.LayerNorm", h)
        self.up = b.linear(f"{name}.intermediate.dense", h, width, True)
        self.down = b.linear(f"{name}.output.dense", width, h, True)
        self.norm: Any = Norm(b, f"{name}.output.LayerNorm", h)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended = self.attention(f, self.env, x)
        attended = self.joined(f, self.out, attended, x, self.attention_norm)
        fed = activate(f, self.up(f, attended), self.act)
        return self.joined(f, self.down, fed, attended, self.norm)


class Model(deberta.Model):
    """DebertaModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        env.attention = "eager"
        self.env = env
        h, name = a.hidden_size, "deberta.embeddings"
        longest = int(a.get("max_position_embeddings"))
        width = int(a.get("embedding_size", h))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, width)
        self.positions = None
        if a.get("position_biased_input", True):
            self.positions = b.embedding(f"{name}.position_embeddings", longest, width)
        types = int(a.get("type_vocab_size", 0))
        self.types = b.embedding(f"{name}.token_type_embeddings", types, width) if types > 0 else None
        self.project = b.linear(f"{name}.embed_proj", width, h) if width != h else None
        self.embed_norm: Any = Norm(b, f"{name}.LayerNorm", h)
        self.dropout, self.convolves = float(a.get("hidden_dropout_prob", 0.0)), False
        b.buffer(longest * 8)
        kinds = ["layer"] * (a.num_hidden_layers - 1) + ["last"]
        self.layers = Stack(b, kinds, lambda build, kind, i: Layer(a, build, i, env))
        self.table = self.table_norm = None
        if a.get("relative_attention", False):
            reach = int(a.get("max_relative_positions", -1))
            reach = longest if reach < 1 else reach
            self.table = b.parameter("deberta.encoder.rel_embeddings.weight", 2 * reach, h)
        if objective == "masked-lm" and not a.get("legacy", True):
            raise Unsupported("no memory model for DeBERTa's newer masked head yet")
        self.head = deberta.head(a, b, self.words, objective)
