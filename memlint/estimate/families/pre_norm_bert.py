"""Encoders of BERT's parts with the norms before the branches: roberta-prelayernorm, xlm-roberta-xl, megatron-bert.

Sources: transformers 5.24 models/{roberta_prelayernorm,xlm_roberta_xl,megatron_bert}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import bert
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, classifier_dropout, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, scale
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import add_in_place
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

NORMS = {
    "megatron-bert": ("attention.ln", "ln"),
    "roberta-prelayernorm": ("attention.LayerNorm", "intermediate.LayerNorm"),
    "xlm-roberta-xl": ("attention.self_attn_layer_norm", "LayerNorm"),
    "esm": ("attention.LayerNorm", "LayerNorm"),
}
"""Names of a layer's norms."""


class Layer:
    """RobertaPreLayerNormLayer, XLMRobertaXLLayer and MegatronBertLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env = env
        self.own = a.model_type == "megatron-bert"
        """Attention is composed in the layer itself, whatever the job asks for."""
        self.heads = int(a.get("num_attention_heads"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.last_dropout = 0.0 if a.model_type == "xlm-roberta-xl" else self.dropout
        before, between = NORMS[a.model_type]
        self.before = LayerNorm(b, f"{name}.{before}", h)
        at = f"{name}.attention"
        self.query, self.key, self.value = (b.linear(f"{at}.self.{n}", h, h, True) for n in ("query", "key", "value"))
        self.out = b.linear(f"{at}.output.dense", h, h, True)
        self.between = LayerNorm(b, f"{name}.{between}", h)
        self.up = b.linear(f"{name}.intermediate.dense", h, inner, True)
        self.down = b.linear(f"{name}.output.dense", inner, h, True)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Attention and its weights."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        mask = self.env.state["mask"]
        if not self.own:
            return attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False, style="raw")
        return composed(f, q, k, v, None, mask, self.attention_dropout)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended, weights = self._attended(f, x)
        fed = self._intermediate(f, attended)
        out = self._output(f, fed, attended)
        if self.own:
            self.env.left = weights
        return out

    def _attended(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        normed = self.before(f, x)
        attended, weights = self.attend(f, normed)
        attended = self._joined(f, attended, x)
        return attended, weights

    def _joined(self, f: Tape, x: Tensor, residual: Tensor) -> Tensor:
        x = self.out(f, x)
        x = dropout(f, x, self.dropout)
        return add(f, x, residual)

    def _intermediate(self, f: Tape, x: Tensor) -> Tensor:
        x = self.between(f, x)
        return self._fed(f, x)

    def _fed(self, f: Tape, x: Tensor) -> Tensor:
        x = self.up(f, x)
        return activate(f, x, self.act)

    def _output(self, f: Tape, x: Tensor, residual: Tensor) -> Tensor:
        x = self.down(f, x)
        x = dropout(f, x, self.last_dropout)
        return add(f, x, residual)


def composed(
    f: Tape, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, p: float
) -> tuple[Tensor, Tensor]:
    """Attention as BERT's own class once wrote it: q, k, v [B, h, S, D] -> [B, S, h*D], its weights.

    ``bias`` [B, h, S, S] is added in place.
    """
    b, heads, s, width = q.shape
    scores = matmul(f, q, k, s, copy_a=b > 1, copy_b=b > 1)
    scores = scale(f, scores)
    if bias is not None:
        scores = add_in_place(f, scores, bias)
    if mask is not None:
        scores = add(f, scores, mask)
    probabilities = softmax(f, scores)
    probabilities = dropout(f, probabilities, p)
    context = matmul(f, probabilities, v, width, copy_b=b > 1)
    context = copy(f, context)
    return context.view(b, s, heads * width), probabilities


class XlEmbeddings(bert.Embeddings):
    """XLMRobertaXLEmbeddings: RoBERTa's without a norm."""

    def __init__(self, a: Architecture, b: Build, name: str, p: float) -> None:
        h, longest = a.hidden_size, int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 1)), h)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        b.buffer(longest * 8)
        b.buffer(longest * 8)
        self.dropout = p

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        assert self.types is not None
        position_ids = f.new(ids.shape, "int64")
        type_ids = f.new(ids.shape, "int64")
        words = self.words(f, ids)
        types = self.types(f, type_ids)
        x = add(f, words, types)
        places = self.positions(f, position_ids)
        x = add(f, x, places)
        return dropout(f, x, self.dropout)


class MegatronEmbeddings(bert.Embeddings):
    """MegatronBertEmbeddings: no norm, positions added in place, token types made anew."""

    def __init__(self, a: Architecture, b: Build, name: str, p: float) -> None:
        h, longest = a.hidden_size, int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), h)
        b.buffer(longest * 8)
        self.dropout = p

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        assert self.types is not None
        words = self.words(f, ids)
        types = self.types(f, f.new(ids.shape, "int64"))
        x = add(f, words, types)
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        x = add_in_place(f, x, places)
        return dropout(f, x, self.dropout)


PARTS: dict[str, tuple[str, str, type[bert.Embeddings]]] = {
    "megatron-bert": ("bert", "encoder.ln", MegatronEmbeddings),
    "roberta-prelayernorm": ("roberta_prelayernorm", "LayerNorm", bert.Embeddings),
    "xlm-roberta-xl": ("roberta", "encoder.LayerNorm", XlEmbeddings),
}
"""base_model_prefix, name of the last norm, embeddings."""


class Model:
    """ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env = env
        self.own = a.model_type == "megatron-bert"
        if self.own:
            env.attention = "eager"
        root, final, embeddings = PARTS[a.model_type]
        p = float(a.get("hidden_dropout_prob", 0.0))
        self.embeddings = embeddings(a, b, f"{root}.embeddings", p)
        make = lambda build, kind, i: Layer(a, build, f"{root}.encoder.layer.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, f"{root}.{final}", a.hidden_size)
        self.head = head(a, b, self.embeddings, root, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        ones = batch.mask or (f.new((batch.rows, batch.length), "fp32") if self.own else None)
        embedded = self.embeddings(f, batch.ids)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, embedded.dtype) if env.padding else None
        x = self.layers(f, env, embedded)
        x = self.norm(f, x)
        env.release()
        del ones
        return x


def head(a: Architecture, b: Build, embeddings: bert.Embeddings, root: str, objective: str) -> Any:
    """The head that transformers' class for this type and objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p = classifier_dropout(a)
    own = root == "bert"
    if objective == "token-classification":
        return TokenHead(a, b, float(a.get("hidden_dropout_prob", 0.0)) if own else p)
    if objective == "sequence-classification":
        if own:
            after = float(a.get("hidden_dropout_prob", 0.0))
            return PooledHead(a, b, dense="bert.pooler.dense", act="tanh", classifier="classifier", after=after)
        names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
        return PooledHead(a, b, act="tanh", before=p, after=p, **names)
    if own:
        at = "cls.predictions"
        names = {"dense": f"{at}.transform.dense", "norm": f"{at}.transform.LayerNorm", "decoder": f"{at}.decoder"}
        return MaskedHead(a, b, embeddings.words, bias=f"{at}.bias", act=str(a.get("hidden_act", "gelu")), **names)
    names = {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"}
    return MaskedHead(a, b, embeddings.words, bias="lm_head.bias", act="gelu", **names)
