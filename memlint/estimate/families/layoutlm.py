"""LayoutLM: BERT whose embeddings also say where on the page a word stands.

Source: transformers 5.24 models/layoutlm/modeling_layoutlm.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import bert
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, UnusedPooler, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

PLACES = ("x", "y", "x", "y")
"""Which table each side of a box is looked up in."""


class Embeddings:
    """LayoutLMEmbeddings: the sum of nine lookups."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, longest = a.hidden_size, int(a.get("max_position_embeddings"))
        page = int(a.get("max_2d_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        self.tables = {n: b.embedding(f"{name}.{n}_position_embeddings", page, h) for n in "xyhw"}
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), h)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", h)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor, boxes: Tensor, types: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        words = self.words(f, ids)
        parts = [self.positions(f, Tensor((1, ids.shape[1]), "int64", None))]
        parts += [self.tables[n](f, Tensor(ids.shape, "int64", boxes.storage)) for n in PLACES]
        parts += [self.tables[n](f, f.new(ids.shape, "int64")) for n in "hw"]
        parts.append(self.types(f, types))
        x = words
        for part in parts:
            x = add(f, x, part)
        x = self.norm(f, x)
        return dropout(f, x, self.dropout)


class Layer(bert.Layer):
    """LayoutLMLayer: weights in fp32, gone when the attention is projected."""

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """LayoutLMSelfAttention."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        mask = self.env.state["mask"]
        return attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False)

    def attended(self, f: Tape, x: Tensor) -> Tensor:
        """LayoutLMAttention."""
        out, _ = self.attend(f, x)
        return self.joined(f, self.out, out, x, self.attention_norm, self.branch_dropout)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.attended(f, x)
        fed = activate(f, self.up(f, x), self.act)
        return self.joined(f, self.down, fed, x, self.norm, self.hidden_dropout)


class Model:
    """LayoutLMModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env, root = env, "layoutlm"
        self.dtype = b.training.precision.weights
        self.embeddings = Embeddings(a, b, f"{root}.embeddings")
        make = lambda build, kind, i: Layer(a, build, f"{root}.encoder.layer.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.pooler = UnusedPooler(a, b, f"{root}.pooler.dense") if objective != "sequence-classification" else None
        self.head: Any = head(a, b, self.embeddings, root, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, shape = self.env, batch.ids.shape
        ones = batch.mask or f.new(shape, "fp32")
        types = f.new(shape, "int64")
        boxes = f.new((*shape, 4), "int64")
        env.state["mask"] = f.new((shape[0], 1, 1, shape[1]), self.dtype)
        x = self.embeddings(f, batch.ids, boxes, types)
        x = self.layers(f, env, x)
        env.release()
        if self.pooler is not None:
            self.pooler(f, x)
        del ones, types, boxes
        return x


def head(a: Architecture, b: Build, embeddings: Any, root: str, objective: str) -> Any:
    """The head that transformers' class for this objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p = float(a.get("hidden_dropout_prob", 0.0))
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        return PooledHead(a, b, dense=f"{root}.pooler.dense", act="tanh", classifier="classifier", after=p)
    at = "cls.predictions"
    names: dict[str, Any] = {
        "dense": f"{at}.transform.dense",
        "norm": f"{at}.transform.LayerNorm",
        "decoder": f"{at}.decoder",
    }
    return MaskedHead(a, b, embeddings.words, bias=f"{at}.bias", act=str(a.get("hidden_act", "gelu")), **names)
