"""Nyströmformer with as many landmarks as its segments have: full attention beside a convolution of the values.

Source: transformers 5.24 models/nystromformer/modeling_nystromformer.py. Attention is composed, whatever the job asks
for.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import bert
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, heads_of
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, scale
from memlint.estimate.ops.images import convolution
from memlint.estimate.ops.linear import Weight, matmul
from memlint.estimate.ops.views import add_in_place
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Embeddings:
    """NystromformerEmbeddings: positions are added in place."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, longest = a.hidden_size, int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest + 2, h)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), h)
        self.norm, self.dropout = LayerNorm(b, f"{name}.LayerNorm", h), float(a.get("hidden_dropout_prob", 0.0))
        b.buffer(longest * 8)
        b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        words = self.words(f, ids)
        types = self.types(f, Tensor(ids.shape, "int64", None))
        x = add(f, words, types)
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        x = add_in_place(f, x, places)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del words, types, places
        return x


class Layer(bert.Layer):
    """NystromformerLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        super().__init__(a, b, name, env)
        kernel = a.get("conv_kernel_size")
        self.kernel: Weight | None = None
        if kernel is not None:
            self.kernel = b.parameter(f"{name}.attention.self.conv.weight", self.heads, 1, int(kernel), 1)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """NystromformerSelfAttention."""
        b, s, h = x.shape
        width = h // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        q = scale(f, q)
        k = scale(f, k)
        scores = matmul(f, q, k, s, copy_a=b > 1, copy_b=b > 1)
        mask = self.env.state["mask"]
        if mask is not None:
            scores = add(f, scores, mask)
        weights = softmax(f, scores)
        context = matmul(f, weights, v, width, copy_b=b > 1)
        if self.kernel is not None:
            context = add_in_place(f, context, convolution(f, v, self.kernel, None, v.shape))
        return copy(f, context).view(b, s, h), None


class Model:
    """NystromformerModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        if int(a.get("num_landmarks", 64)) != int(a.get("segment_means_seq_len", 64)):
            raise Unsupported("no memory model of a `nystromformer` with fewer landmarks than segments yet")
        env.attention = "eager"
        self.env, root = env, "nystromformer"
        self.embeddings = Embeddings(a, b, f"{root}.embeddings")
        make = lambda build, kind, i: Layer(a, build, f"{root}.encoder.layer.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.head: Any = head(a, b, self.embeddings, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, shape = self.env, batch.ids.shape
        ones = batch.mask or f.new(shape, "fp32")
        x = self.embeddings(f, batch.ids)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, x.dtype) if env.padding else None
        x = self.layers(f, env, x)
        env.release()
        del ones
        return x


def head(a: Architecture, b: Build, embeddings: Embeddings, objective: str) -> Any:
    """The head that transformers' class for this objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p, act = float(a.get("hidden_dropout_prob", 0.0)), str(a.get("hidden_act", "gelu_new"))
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
        return PooledHead(a, b, act=act, before=p, after=p, **names)
    at = "cls.predictions"
    names = {"dense": f"{at}.transform.dense", "norm": f"{at}.transform.LayerNorm", "decoder": f"{at}.decoder"}
    return MaskedHead(a, b, embeddings.words, bias=f"{at}.bias", act=act, **names)
