"""Encoders of BERT's shape that compose their attention themselves: RoFormer (rotary positions) and RemBERT.

Sources: transformers 5.24 models/{roformer,rembert}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import bert
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, classifier_dropout, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, heads_of
from memlint.estimate.families.pre_norm_bert import composed
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cat, dropout, mul, scale, slice_of
from memlint.estimate.ops.views import add_in_place, split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Layer(bert.Layer):
    """RemBertLayer: the model's loop holds the weights that it returns."""

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """RemBertSelfAttention."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        q, k = self.placed(f, q, k)
        return composed(f, q, k, v, None, self.env.state["mask"], self.attention_dropout)

    def placed(self, f: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as the scores take them."""
        return q, k

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended, weights = self.attend(f, x)
        attended = self.joined(f, self.out, attended, x, self.attention_norm, self.branch_dropout)
        out = self.chunk(f, attended)
        self.env.left = weights
        return out

    def chunk(self, f: Tape, x: Tensor) -> Tensor:
        """feed_forward_chunk."""
        fed = self.fed(f, x)
        return self.joined(f, self.down, fed, x, self.norm, self.hidden_dropout)

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """RemBertIntermediate."""
        x = self.up(f, x)
        return activate(f, x, self.act)


class RotaryLayer(Layer):
    """RoFormerLayer: sines and cosines come from a table that trains."""

    def placed(self, f: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """apply_rotary_position_embeddings."""
        places: Tensor = self.env.state["places"]
        half = (*places.shape[:-1], places.shape[-1] // 2)
        sin, cos = split(f, places, half, half)
        sin_pos, cos_pos = cat(f, sin, sin), cat(f, cos, cos)
        turned_q = _turned(f, q)
        q = add(f, mul(f, q, cos_pos), mul(f, turned_q, sin_pos))
        turned_k = _turned(f, k)
        k = add(f, mul(f, k, cos_pos), mul(f, turned_k, sin_pos))
        del turned_q, turned_k
        return q, k


def _turned(f: Tape, x: Tensor) -> Tensor:
    half = (*x.shape[:-1], x.shape[-1] // 2)
    return cat(f, scale(f, slice_of(f, x, half)), slice_of(f, x, half))


class Embeddings:
    """Words, token types and, but for RoFormer, positions that are added in place."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int) -> None:
        rows, longest = b.training.vocab_size or a.vocab_size, int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", rows, width, entry=True)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), width)
        self.positions: Any = None
        if a.model_type == "rembert":
            self.positions = b.embedding(f"{name}.position_embeddings", longest, width)
            b.buffer(longest * 8)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", width)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))

    def __call__(self, f: Tape, ids: Tensor, type_ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, E]."""
        words = self.words(f, ids)
        types = self.types(f, type_ids)
        x = add(f, words, types)
        places = None
        if self.positions is not None:
            places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
            x = add_in_place(f, x, places)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del words, types, places
        return x


class Model:
    """ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        env.attention = "eager"
        self.env, root, h = env, a.model_type, a.hidden_size
        if a.get("rotary_value", False):
            raise Unsupported("no memory model of a `roformer` that turns its values, too")
        width = int(a.get("embedding_size" if root == "roformer" else "input_embedding_size") or h)
        self.embeddings = Embeddings(a, b, f"{root}.embeddings", width)
        self.project: Any = None
        if root == "rembert":
            self.project = b.linear("rembert.encoder.embedding_hidden_mapping_in", width, h, True)
        elif width != h:
            self.project = b.linear("roformer.embeddings_project", width, h, True)
        self.places: Any = None
        if root == "roformer":
            longest, heads = int(a.get("max_position_embeddings")), int(a.get("num_attention_heads"))
            # Built frozen; from_pretrained of transformers 5.24 puts a parameter that trains in its place.
            self.places = b.embedding("roformer.encoder.embed_positions", longest, h // heads)
        layer = RotaryLayer if root == "roformer" else Layer
        # The last layer's backward makes the first gradient of what all layers share.
        kinds = ["layer"] * (a.num_hidden_layers - 1) + ["last" if self.places is not None else "layer"]
        self.layers = Stack(b, kinds, lambda build, kind, i: layer(a, build, f"{root}.encoder.layer.{i}", env))
        self.head = head(a, b, self.embeddings.words, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, (rows, length) = self.env, batch.ids.shape
        ones = batch.mask or f.new((rows, length), "fp32")
        type_ids = f.new((rows, length), "int64")
        embedded = self.embeddings(f, batch.ids, type_ids)
        if self.project is not None and self.places is not None:
            embedded = self.project(f, embedded)
        env.state["mask"] = env.mask(f, rows, length, embedded.dtype) if env.padding else None
        x = embedded
        if self.places is not None:
            table = self.places(f, f.new((length,), "int64"))
            env.state["places"] = table.view(1, 1, *table.shape)
        elif self.project is not None:
            x = self.project(f, embedded)
        x = self.layers(f, env, x)
        env.release()
        del ones, type_ids
        return x


class RemBertHead(MaskedHead):
    """RemBertLMPredictionHead: a decoder of its own over a wider vector."""

    def __init__(self, a: Architecture, b: Build) -> None:
        width, rows = int(a.get("output_embedding_size")), b.training.vocab_size or a.vocab_size
        at = "cls.predictions"
        self.dense = b.linear(f"{at}.dense", a.hidden_size, width, True)
        self.act = str(a.get("hidden_act", "gelu"))
        self.norm = LayerNorm(b, f"{at}.LayerNorm", width)
        weight = b.parameter(f"{at}.decoder.weight", rows, width)
        self.decoder = Linear(weight, b.parameter(f"{at}.decoder.bias", rows))


def head(a: Architecture, b: Build, words: Any, objective: str) -> Any:
    """The head that transformers' class for this type and objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p, act = classifier_dropout(a), str(a.get("hidden_act", "gelu"))
    if a.model_type == "rembert":
        p = float(a.get("classifier_dropout_prob", 0.1))
        if objective == "sequence-classification":
            return PooledHead(a, b, dense="rembert.pooler.dense", act="tanh", classifier="classifier", after=p)
        return TokenHead(a, b, p) if objective == "token-classification" else RemBertHead(a, b)
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        p = float(a.get("hidden_dropout_prob", 0.0))
        names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
        return PooledHead(a, b, act=act, before=p, after=p, **names)
    at = "cls.predictions"
    names = {"dense": f"{at}.transform.dense", "norm": f"{at}.transform.LayerNorm", "decoder": f"{at}.decoder"}
    return MaskedHead(a, b, words, bias=f"{at}.bias", act=act, **names)
