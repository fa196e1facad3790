"""BLOOM: ALiBi through baddbmm, its own GELU function, a norm after the embedding; eager attention only.

Source: transformers 5.24 models/bloom/modeling_bloom.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout
from memlint.estimate.ops.linear import matmul, to_autocast
from memlint.estimate.ops.views import select
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


def _bloom_gelu_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # bloom_gelu_back, statement by statement: tanh_out, then ff from its left factor, its right factor and the second
    # term.
    like = f.like
    inner = like(grad)
    cubic = like(grad)
    cubic = like(grad)
    cubic = like(grad)
    inner = like(grad)
    del cubic
    tanh_out = like(grad)
    del inner
    half = like(grad)
    square = like(grad)
    square = like(grad)
    slope = like(grad)
    slope = like(grad)
    slope = like(grad)
    square = like(grad)
    del slope
    left = like(grad)
    del half, square
    right = like(grad)
    right = like(grad)
    out = like(grad)
    del left, right, tanh_out
    result = like(grad)
    del out
    return (result,)


def bloom_gelu(f: Tape, x: Tensor) -> Tensor:
    """GeLUFunction: saves its input; its forward and backward are elementwise expressions without history."""
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    half = f.like(x)
    inner = f.like(x)
    cubic = f.like(x)
    cubic = f.like(x)
    cubic = f.like(x)
    inner = f.like(x)
    del cubic
    inner = f.like(x)
    inner = f.like(x)
    out = f.like(x)
    del half, inner
    return f.record(out, _bloom_gelu_backward, (x,), saved) if recorded else out


def _baddbmm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # grad.bmm(batch2^T) * alpha and batch1^T.bmm(grad) * alpha (derivatives.yaml).
    a, b = node.saved
    grads: list[Tensor | None] = []
    for other, (shape, dtype) in zip((b, a), node.shapes):
        if other is None:
            grads.append(None)
            continue
        product = f.new(shape, dtype)
        scaled = f.new(shape, dtype)
        del product
        grads.append(scaled)
    return grads[0], grads[1]


def baddbmm(f: Tape, bias: Tensor, a: Tensor, b: Tensor, columns: int) -> Tensor:
    """``bias.baddbmm(a, b, alpha=...)``: a [n, S, D], b [n, D, T] -> [n, S, T]; saves a and b."""
    bias, a, b = to_autocast(f, bias), to_autocast(f, a), to_autocast(f, b)
    recorded = f.needs(a, b)
    saved = f.save(a if b.node is not None else None, b if a.node is not None else None) if recorded else ()
    out = f.new((*a.shape[:-1], columns), a.dtype)
    return f.record(out, _baddbmm_backward, (a, b), saved) if recorded else out


class Attention:
    """BloomAttention; the residual is added inside it."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads") or a.get("n_head"))
        self.width = h // self.heads
        self.query_key_value = b.linear(f"{name}.query_key_value", h, 3 * h, True)
        self.dense = b.linear(f"{name}.dense", h, h, True)
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.hidden_dropout = float(a.get("hidden_dropout", 0.0))

    def __call__(self, f: Tape, env: Env, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, S, H] -> [B, S, H], attention probabilities."""
        b, s, h = x.shape
        fused = self.query_key_value(f, x)
        part = (b, self.heads, s, self.width)
        q, k, v = select(f, fused, part), select(f, fused, part), select(f, fused, part)
        if b > 1:
            # reshape(B * h, ...) of a transposed view
            q = copy(f, q)
            k = copy(f, k)
            v = copy(f, v)
        scores = baddbmm(f, env.state["alibi"], q, k, s)
        weights = scores.view(b, self.heads, s, s)
        mask = env.state["mask:causal"]
        if mask is not None:
            weights = add(f, weights, mask)
        probs = cast(f, softmax(f, weights, "fp32"), q.dtype)
        probs = dropout(f, probs, self.dropout)
        context = matmul(f, probs, v, self.width)
        context = copy(f, context).view(b, s, h)
        out = self.dense(f, context)
        out = dropout_add(f, out, residual, self.hidden_dropout)
        del scores
        return out, probs


def dropout_add(f: Tape, x: Tensor, residual: Tensor, p: float) -> Tensor:
    """``residual + dropout(x)``."""
    out = dropout(f, x, p)
    return add(f, residual, out)


class Mlp:
    """BloomMLP; the residual is added inside it."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.up = b.linear(f"{name}.dense_h_to_4h", h, 4 * h, True)
        self.down = b.linear(f"{name}.dense_4h_to_h", 4 * h, h, True)
        self.dropout = float(a.get("hidden_dropout", 0.0))

    def __call__(self, f: Tape, x: Tensor, residual: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = bloom_gelu(f, self.up(f, x))
        out = self.down(f, x)
        return dropout_add(f, out, residual, self.dropout)


class Block:
    """BloomBlock; returns the attention probabilities as a second output."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.env = env
        self.normed_residual = bool(a.get("apply_residual_connection_post_layernorm", False))
        self.input_layernorm = LayerNorm(b, f"{name}.input_layernorm", a.hidden_size)
        self.self_attention = Attention(a, b, f"{name}.self_attention")
        self.post_attention_layernorm = LayerNorm(b, f"{name}.post_attention_layernorm", a.hidden_size)
        self.mlp = Mlp(a, b, f"{name}.mlp")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        normed = self.input_layernorm(f, x)
        residual = normed if self.normed_residual else x
        attended, probs = self.self_attention(f, self.env, normed, residual)
        normed = self.post_attention_layernorm(f, attended)
        residual = normed if self.normed_residual else attended
        out = self.mlp(f, normed, residual)
        self.env.left = probs
        return out


class Model:
    """BloomModel: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        env.attention = "eager"
        self.env = env
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads") or a.get("n_head"))
        self.embed = b.embedding("transformer.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.embed_norm = LayerNorm(b, "transformer.word_embeddings_layernorm", h)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: Block(a, build, i, env))
        self.norm = LayerNorm(b, "transformer.ln_f", h)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        embeds = self.embed(f, batch.ids)
        normed = [self.embed_norm(f, embeds)]
        env.state["alibi"] = f.new((batch.rows * self.heads, 1, batch.length), normed[0].dtype)
        env.state["mask:causal"] = env.mask(f, batch.rows, batch.length, embeds.dtype)
        x = self.layers(f, env, normed)
        x = self.norm(f, x)
        env.release()
        return x
