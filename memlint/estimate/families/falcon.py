"""Falcon: multi-query or grouped heads from one projection, rotary positions or ALiBi, one or two norms in parallel.

Source: transformers 5.24 models/falcon/modeling_falcon.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.bloom import dropout_add
from memlint.estimate.families.pieces import LayerNorm, turn
from memlint.estimate.families.rotary import rotary_tables
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import fused_attention, sdpa, softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout, expand_copy, scale, slice_of
from memlint.estimate.ops.linear import linear, matmul, to_autocast
from memlint.estimate.ops.views import add_in_place, index, scale_in_place
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class FalconLinear:
    """FalconLinear: ``x @ weight.T`` and the bias added apart; the transposed view escapes autocast's weight cache."""

    def __init__(self, b: Build, name: str, inputs: int, outputs: int, bias: bool) -> None:
        self.inner = b.linear(name, inputs, outputs, subclass=True)
        self.bias = b.parameter(f"{name}.bias", outputs) if bias else None

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        if isinstance(self.inner, Linear) and f.autocast is not None:
            x = to_autocast(f, x)
            out = linear(f, x, cast(f, self.inner.weight, f.autocast))
        else:
            out = self.inner(f, x)
        return out if self.bias is None else add(f, out, self.bias)


def _broadcast_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def broadcast_heads(f: Tape, x: Tensor, heads: int) -> Tensor:
    """``expand`` of one head [B, 1, S, D] inside matmul: a view for one row, a copy when batch and heads do not
    fold.
    """
    b, one, s, d = x.shape
    if one == heads:
        return x
    shape = (b, heads, s, d)
    out = Tensor(shape, x.dtype, x.storage)
    if f.needs(x):
        f.record(out, _broadcast_backward, (x,), (), x.shape)
    return copy(f, out) if b > 1 else out


class Attention:
    """FalconAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.new = bool(a.get("new_decoder_architecture", False))
        self.multi_query = bool(a.get("multi_query", True))
        groups = int(a.get("num_kv_heads", self.heads))
        self.kv_heads = groups if self.new or not self.multi_query else 1
        if self.new:
            outputs = (groups * 2 + self.heads) * self.width
        else:
            outputs = h + 2 * self.width if self.multi_query else 3 * h
        bias = bool(a.get("bias", False))
        self.query_key_value = FalconLinear(b, f"{name}.query_key_value", h, outputs, bias)
        self.dense = FalconLinear(b, f"{name}.dense", h, h, bias)
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.alibi = bool(a.get("alibi", False))

    def project(self, f: Tape, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """_split_heads, transposed: q [B, h, S, D], k and v [B, kv, S, D] (all heads in the new architecture)."""
        b, s = fused.shape[0], fused.shape[1]
        heads, width = self.heads, self.width
        whole: Shape = (b, heads, s, width)
        if self.new:
            small = (b, self.kv_heads, s, width)
            q = slice_of(f, fused, whole)
            k, v = index(f, fused, small), index(f, fused, small)
            return copy(f, q), expand_copy(f, k, whole), expand_copy(f, v, whole)
        if not self.multi_query:
            return slice_of(f, fused, whole), slice_of(f, fused, whole), slice_of(f, fused, whole)
        one = (b, 1, s, width)
        return slice_of(f, fused, whole), index(f, fused, one), index(f, fused, one)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention scores."""
        b, s, h = x.shape
        fused = self.query_key_value(f, x)
        q, k, v = self.project(f, fused)
        if not self.alibi:
            q, k = turn(f, q, *env.state["rope"]), turn(f, k, *env.state["rope"])
        scores: Tensor | None = None
        if env.attention == "sdpa":
            out = self.fused(f, env, q, k, v)
        elif env.attention == "eager":
            out, scores = (self.eager_alibi if self.alibi else self.eager)(f, env, q, k, v, x.dtype)
            out = copy(f, out).view(b, s, h)
        else:
            out = sdpa(f, q, k, v, None, force="flash")
        out = self.dense(f, out)
        del fused
        return out, scores

    def eager(self, f: Tape, env: Env, q: Tensor, k: Tensor, v: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
        """Scores divided in place, softmax in the dtype of the hidden states."""
        scores = self.scores(f, q, k)
        scores = scale_in_place(f, scores)
        scores = softmax(f, add(f, scores, env.state["mask:causal"]), dtype)
        return self.weigh(f, scores, v), scores

    def eager_alibi(self, f: Tape, env: Env, q: Tensor, k: Tensor, v: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
        """Scores in fp32 plus ALiBi, scaled in place; the mask holds ALiBi a second time."""
        product = self.scores(f, q, k)
        scores = product
        if product.dtype in ("bf16", "fp16"):
            scores = cast(f, scores, "fp32")
        logits = add(f, scores, env.state["alibi"])
        logits = scale_in_place(f, logits)
        probs = softmax(f, add(f, logits, env.state["mask:causal"]), dtype)
        probs = dropout(f, probs, self.dropout)
        return self.weigh(f, probs, v), probs

    def scores(self, f: Tape, q: Tensor, k: Tensor) -> Tensor:
        """``q @ k^T``."""
        loose = q.shape[0] > 1
        many = k.shape[1] == self.heads
        q, k = to_autocast(f, q), to_autocast(f, k)
        k = broadcast_heads(f, k, self.heads)
        return matmul(f, q, k, k.shape[2], copy_a=loose, copy_b=loose and many)

    def weigh(self, f: Tape, weights: Tensor, v: Tensor) -> Tensor:
        """``weights @ v``."""
        loose = v.shape[0] > 1
        many = v.shape[1] == self.heads
        weights, v = to_autocast(f, weights), to_autocast(f, v)
        v = broadcast_heads(f, v, self.heads)
        return matmul(f, weights, v, self.width, copy_b=loose and many)

    def fused(self, f: Tape, env: Env, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """scaled_dot_product_attention called directly: a mask is always there, so flash is never taken; one key-value
        head without enable_gqa falls to the math kernel, which broadcasts it."""
        b, s = q.shape[0], q.shape[2]
        mask = env.state["mask:causal"]
        q, k, v = to_autocast(f, q), to_autocast(f, k), to_autocast(f, v)
        if k.shape[1] == self.heads:
            return fused_attention(f, q, k, v, mask).view(b, s, self.heads * self.width)
        outer, f.autocast = f.autocast, None
        out = self.math(f, q, k, v, mask)
        f.autocast = outer
        return copy(f, out).view(b, s, self.heads * self.width)

    def math(self, f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """_scaled_dot_product_attention_math (attention.cpp, torch 2.13): half inputs are computed in fp32; the result
        and the weights, which nobody uses, are cast back."""
        dtype = q.dtype
        mask = f.new(mask.shape, dtype) if mask.dtype == "bool" else mask
        if dtype != "fp32":
            q = cast(f, q, "fp32")
            k = cast(f, k, "fp32")
            v = cast(f, v, "fp32")
        q = scale(f, q)
        k = scale(f, k)
        weights = self.scores(f, q, k)
        weights = add(f, weights, mask)
        weights = softmax(f, weights)
        out = cast(f, self.weigh(f, weights, v), dtype)
        cast(f, weights, dtype)
        return out


class Mlp:
    """FalconMLP."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, width, bias = a.hidden_size, int(a.get("ffn_hidden_size", 4 * a.hidden_size)), bool(a.get("bias", False))
        self.act = str(a.get("activation", "gelu"))
        self.up = FalconLinear(b, f"{name}.dense_h_to_4h", h, width, bias)
        self.down = FalconLinear(b, f"{name}.dense_4h_to_h", width, h, bias)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = activate(f, self.up(f, x), self.act)
        return self.down(f, x)


class Block:
    """FalconDecoderLayer; returns the attention scores as a second output."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.env = env
        self.new = bool(a.get("new_decoder_architecture", False))
        self.parallel = bool(a.get("parallel_attn", True))
        norms = a.get("num_ln_in_parallel_attn")
        self.two = self.new and (norms is None or norms == 2)
        self.hidden_dropout = float(a.get("hidden_dropout", 0.0))
        self.attention_dropout = float(a.get("attention_dropout", 0.0))
        self.self_attention = Attention(a, b, f"{name}.self_attention")
        self.mlp = Mlp(a, b, f"{name}.mlp")
        names: tuple[str, ...] = ("input_layernorm",)
        if not self.parallel:
            names = ("input_layernorm", "post_attention_layernorm")
        elif self.two:
            names = ("ln_attn", "ln_mlp")
        self.norms = [LayerNorm(b, f"{name}.{n}", a.hidden_size) for n in names]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        for_attention = self.norms[0](f, x)
        for_mlp = self.norms[1](f, x) if self.two else for_attention
        attended, scores = self.self_attention(f, self.env, for_attention)
        if not self.new and not self.parallel:
            residual = dropout_add(f, attended, residual, self.attention_dropout)
            for_mlp = self.norms[1](f, residual)
        out = self.mlp(f, for_mlp)
        if self.new or self.parallel:
            out = add_in_place(f, out, attended)
        out = dropout_add(f, out, residual, self.hidden_dropout)
        self.env.left = scores
        return out


class Model:
    """FalconModel: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.alibi = bool(a.get("alibi", False))
        self.embed = b.embedding("transformer.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: Block(a, build, i, env))
        self.norm = LayerNorm(b, "transformer.ln_f", h)
        b.buffer(self.width // 2 * 4)
        b.buffer(self.width // 2 * 4)

    def mask(self, f: Tape, batch: Batch, dtype: str) -> Tensor | None:
        """create_causal_mask with allow_is_causal_skip=False; with ALiBi the two become one [B, h, S, S] tensor."""
        env, s = self.env, batch.length
        mask = env.mask(f, batch.rows, s, dtype)
        if mask is None and env.attention == "sdpa":
            mask = f.new((1, 1, s, s), "bool").view(batch.rows, 1, s, s)
        if not self.alibi or mask is None:
            return mask
        if mask.dtype == "bool":
            mask = f.new(mask.shape, dtype)
        env.state["alibi"] = f.new((batch.rows, self.heads, 1, s), dtype)
        hidden = f.new(mask.shape, "bool")
        mask = f.new((batch.rows, self.heads, s, s), dtype)
        del hidden
        return mask

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        embeds = self.embed(f, batch.ids)
        env.state["mask:causal"] = self.mask(f, batch, embeds.dtype)
        x = embeds
        env.number(f, batch.length)
        env.state["rope"] = rotary_tables(f, batch.length, self.width, x.dtype)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x
