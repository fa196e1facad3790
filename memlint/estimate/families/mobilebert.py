"""MobileBERT: layers with bottlenecks, several narrow feed-forwards, and products in place of norms.

Source: transformers 5.24 models/mobilebert/modeling_mobilebert.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import GRADIENTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import PooledHead, TokenHead, classifier_dropout
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cat, dropout, mul
from memlint.estimate.ops.chunk_scan import remade
from memlint.estimate.ops.linear import linear
from memlint.estimate.ops.views import add_in_place
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class NoNorm:
    """NoNorm: ``x * weight + bias``."""

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.bias, self.weight = b.parameter(f"{name}.bias", width), b.parameter(f"{name}.weight", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        return add(f, mul(f, x, self.weight), self.bias)


def make_norm(a: Architecture, b: Build, name: str, width: int) -> Any:
    """NORM2FN[config.normalization_type]."""
    return NoNorm(b, name, width) if a.get("normalization_type") == "no_norm" else LayerNorm(b, name, width)


class Projection:
    """A projection with its norm, whose input may be a sum: BottleneckLayer, FFNOutput and their like."""

    def __init__(self, a: Architecture, b: Build, name: str, inputs: int, outputs: int, p: float = 0.0) -> None:
        self.dense = b.linear(f"{name}.dense", inputs, outputs, True)
        self.norm = make_norm(a, b, f"{name}.LayerNorm", outputs)
        self.dropout = p

    def __call__(self, f: Tape, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [B, S, in] -> [B, S, out]."""
        x = self.dense(f, x)
        x = dropout(f, x, self.dropout)
        out: Tensor = self.norm(f, x if residual is None else add(f, x, residual))
        return out


class FeedForward:
    """FFNLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int, act: str) -> None:
        inner = int(a.get("intermediate_size"))
        self.act = act
        self.up = b.linear(f"{name}.intermediate.dense", width, inner, True)
        self.output = Projection(a, b, f"{name}.output", inner, width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, h] -> [B, S, h]."""
        fed = activate(f, self.up(f, x), self.act)
        return self.output(f, fed, x)


class Layer:
    """MobileBertLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, self.env = a.hidden_size, env
        self.narrow = bool(a.get("use_bottleneck", True))
        width = int(a.get("intra_bottleneck_size", 128)) if self.narrow else h
        self.whole = bool(a.get("use_bottleneck_attention", False))
        self.shared = bool(a.get("key_query_shared_bottleneck", True))
        self.heads = int(a.get("num_attention_heads"))
        self.act, p = str(a.get("hidden_act", "relu")), float(a.get("hidden_dropout_prob", 0.0))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        at = f"{name}.attention"
        self.query, self.key = (b.linear(f"{at}.self.{n}", width, width, True) for n in ("query", "key"))
        self.value = b.linear(f"{at}.self.value", width if self.whole or not self.narrow else h, width, True)
        plain = 0.0 if self.narrow else p
        self.out = Projection(a, b, f"{at}.output", width, width, plain)
        inner = int(a.get("intermediate_size"))
        self.up = b.linear(f"{name}.intermediate.dense", width, inner, True)
        self.down = Projection(a, b, f"{name}.output", inner, width, plain)
        if self.narrow:
            self.widen = Projection(a, b, f"{name}.output.bottleneck", width, h, p)
            self.input = Projection(a, b, f"{name}.bottleneck.input", h, width)
            if self.shared:
                self.queries = Projection(a, b, f"{name}.bottleneck.attention", h, width)
        extra = int(a.get("num_feedforward_networks", 4)) - 1
        self.feeds = [FeedForward(a, b, f"{name}.ffn.{i}", width, self.act) for i in range(extra)]

    def attend(self, f: Tape, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """MobileBertSelfAttention."""
        q, k, v = self.query(f, query), self.key(f, key), self.value(f, value)
        width = q.shape[-1] // self.heads
        q, k, v = (heads_of(t, self.heads, width) for t in (q, k, v))
        mask = self.env.state["mask"]
        return attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False, style="raw")

    def narrowed(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bottleneck: inputs of query, key and value, and what the attention is added to."""
        if not self.narrow:
            return x, x, x, x
        small = self.input(f, x)
        if self.whole:
            return small, small, small, small
        if self.shared:
            both = self.queries(f, x)
            return both, both, x, small
        return x, x, x, small

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        query, key, value, small = self.narrowed(f, x)
        attended, weights = self.attend(f, query, key, value)
        attended = self.out(f, attended, small)
        first = attended
        for feed in self.feeds:
            attended = feed(f, attended)
        fed = activate(f, self.up(f, attended), self.act)
        out = self.down(f, fed, attended)
        if self.narrow:
            out = self.widen(f, out, x)
        del weights, first, query, key, value, small
        return out


class Embeddings:
    """MobileBertEmbeddings: each word beside its neighbours, projected."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, longest, narrow = a.hidden_size, int(a.get("max_position_embeddings")), int(a.get("embedding_size"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, narrow, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), h)
        self.three = bool(a.get("trigram_input", True))
        # The projection is there whether or not it runs.
        self.runs = self.three or narrow != h
        b.idle = not self.runs
        self.project = b.linear(f"{name}.embedding_transformation", narrow * (3 if self.three else 1), h, True)
        b.idle = False
        self.norm = make_norm(a, b, f"{name}.LayerNorm", h)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        types = f.new(ids.shape, "int64")
        words = self.words(f, ids)
        if self.three:
            words = cat(f, _shifted(f, words), words, _shifted(f, words))
        if self.runs:
            words = self.project(f, words)
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        kinds = self.types(f, types)
        x = add(f, add(f, words, places), kinds)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del places, kinds
        return x


def _shifted(f: Tape, x: Tensor) -> Tensor:
    """``pad(x[:, 1:])``: a slice, and a copy with a row of zeros."""
    b, s, h = x.shape
    part = Tensor((b, s - 1, h), x.dtype, x.storage)
    if f.needs(x):
        part = f.record(part, _slice_backward, (x,), (), x.shape)
    return remade(f, part, x.shape)


def _slice_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


class Model:
    """MobileBertModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env, root = env, "mobilebert"
        self.embeddings = Embeddings(a, b, f"{root}.embeddings")
        make = lambda build, kind, i: Layer(a, build, f"{root}.encoder.layer.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        p = classifier_dropout(a)
        self.head: Any
        if objective == "token-classification":
            self.head = TokenHead(a, b, p)
        elif objective == "sequence-classification":
            self.head = PooledHead(a, b, dense=f"{root}.pooler.dense", act="tanh", classifier="classifier", after=p)
        else:
            self.head = Head(a, b, self.embeddings)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        x = self.embeddings(f, batch.ids)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, x.dtype) if env.padding else None
        x = self.layers(f, env, x)
        env.release()
        return x


class Head:
    """MobileBertLMPredictionHead: the embedding matrix and one of its own are put together in every forward."""

    def __init__(self, a: Architecture, b: Build, embeddings: Embeddings) -> None:
        h, at = a.hidden_size, "cls.predictions"
        rows, narrow = embeddings.words.weight.shape
        self.act = str(a.get("hidden_act", "relu"))
        self.transform = b.linear(f"{at}.transform.dense", h, h, True)
        self.norm = LayerNorm(b, f"{at}.transform.LayerNorm", h)
        self.alone = not a.tie_word_embeddings
        self.tied = b.parameter(f"{at}.decoder.weight", rows, narrow) if self.alone else embeddings.words.weight
        # PEFT puts an adapter beside it, but the forward reads its weight alone.
        b.idle = b.adapter
        rest = b.linear(f"{at}.dense", rows, h - narrow)
        b.idle = False
        self.rest = rest.weight if isinstance(rest, Linear) else Tensor((h - narrow, rows), self.tied.dtype, None)
        # Where the two are not tied the forward adds the decoder's own, and the other gets no gradient.
        b.idle = self.alone
        self.bias = b.parameter(f"{at}.bias", rows)
        b.idle = False
        if self.alone:
            self.bias = b.parameter(f"{at}.decoder.bias", rows)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, None]:
        """Logits over the vocabulary."""
        x = self.transform(f, x)
        x = activate(f, x, self.act)
        x = self.norm(f, x)
        f.component = LOGITS
        rows, narrow = self.tied.shape
        if isinstance(self.rest.node, Leaf) and self.rest.node.grad is True:
            # The gradient of the micro batch before is a part of that of the whole, and keeps it.
            f.kept.append(f.new((narrow, rows), self.rest.dtype, GRADIENTS))
        turned = Tensor((narrow, rows), self.tied.dtype, None)
        if f.needs(self.tied):
            turned = f.record(turned, _turned_backward, (self.tied,), (), (self.tied.shape, self.alone))
        whole = cat(f, turned, self.rest, shape=(x.shape[-1], rows))
        whole = Tensor((rows, x.shape[-1]), whole.dtype, whole.storage, whole.node)
        logits = linear(f, x, whole)
        del whole
        logits = add_in_place(f, logits, self.bias)
        f.component = TEMPORARIES
        return logits, None


def _turned_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # The gradient of the transposed part does not lie as the parameter does, so AccumulateGrad copies it. A tied one
    # waits for the embedding's, and it is their sum that is copied when both are gone.
    shape, alone = node.meta
    return (f.new(shape, grad.dtype) if alone else Tensor(shape, grad.dtype, grad.storage),)
