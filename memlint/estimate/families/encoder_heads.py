"""Heads of encoders: hidden states [B, S, H] -> logits [B, S, V], [B, labels] or [B, S, labels]."""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Embedding, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import dropout
from memlint.estimate.ops.views import select
from memlint.models.architecture import Architecture


class MaskedHead:
    """Transform (projection, activation, norm), then the embedding matrix as decoder with a bias of its own."""

    def __init__(
        self,
        a: Architecture,
        b: Build,
        embed: Embedding,
        *,
        dense: str,
        norm: str,
        decoder: str,
        bias: str | None,
        act: str,
        dense_bias: bool = True,
        norm_bias: bool = True,
    ) -> None:
        rows, width = embed.weight.shape
        self.dense = b.linear(dense, a.hidden_size, width, dense_bias)
        self.act = act
        self.norm = LayerNorm(b, norm, width, bias=norm_bias)
        offset = b.parameter(bias, rows) if bias is not None else None
        weight = embed.weight if a.tie_word_embeddings else b.parameter(f"{decoder}.weight", rows, width)
        self.decoder = Linear(weight, offset)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, None]:
        """Logits over the vocabulary."""
        x = self.dense(f, x)
        x = activate(f, x, self.act)
        x = self.norm(f, x)
        f.component = LOGITS
        logits = self.decoder(f, x)
        f.component = TEMPORARIES
        return logits, None


class PooledHead:
    """First token -> dropout, projection, activation, dropout, classifier."""

    def __init__(
        self,
        a: Architecture,
        b: Build,
        *,
        dense: str,
        act: str,
        classifier: str,
        before: float = 0.0,
        after: float = 0.0,
    ) -> None:
        self.before, self.after, self.act = before, after, act
        self.dense = b.linear(dense, a.hidden_size, a.hidden_size, True)
        self.classifier: Any = b.linear(classifier, a.hidden_size, labels_of(a), True)

    def __call__(self, f: Tape, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, labels], and the pooled vectors."""
        x = select(f, hidden, (hidden.shape[0], hidden.shape[2]))
        x = dropout(f, x, self.before)
        x = self.dense(f, x)
        x = activate(f, x, self.act)
        x = dropout(f, x, self.after)
        return self.classifier(f, x), x


class TokenHead:
    """Dropout and a classifier over every position."""

    def __init__(self, a: Architecture, b: Build, p: float, name: str = "classifier") -> None:
        self.dropout = p
        self.classifier: Any = b.linear(name, a.hidden_size, labels_of(a), True)

    def __call__(self, f: Tape, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, S, labels], and what they were made of, which the model's forward holds."""
        x = dropout(f, hidden, self.dropout)
        return self.classifier(f, x), x


class UnusedPooler:
    """A pooler that runs, but nothing follows it."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        b.idle = True
        self.dense = b.linear(name, a.hidden_size, a.hidden_size, True)
        b.idle = False

    def __call__(self, f: Tape, x: Tensor) -> None:
        """Its graph is gone with its output; what autocast makes of its weight stays."""
        outer, f.grad_enabled = f.grad_enabled, False
        self.dense(f, select(f, x, (x.shape[0], x.shape[-1])))
        f.grad_enabled = outer


POOLERS = {
    **{"bert": "bert.pooler.dense", "ernie": "ernie.pooler.dense", "rembert": "rembert.pooler.dense"},
    **{"roberta": "roberta.pooler.dense", "xlm-roberta": "roberta.pooler.dense", "camembert": "roberta.pooler.dense"},
    **{"data2vec-text": "data2vec_text.pooler.dense", "mpnet": "mpnet.pooler.dense", "albert": "albert.pooler"},
    **{"jina_embeddings_v3": "roberta.pooler.dense", "xlm-roberta-xl": "roberta.pooler.dense"},
    **{"roberta-prelayernorm": "roberta_prelayernorm.pooler.dense", "megatron-bert": "bert.pooler.dense"},
}
"""Types whose AutoModel has a pooler (``add_pooling_layer`` is true by default in transformers 5.24) -> its name."""


def unused_pooler(a: Architecture, b: Build) -> UnusedPooler | None:
    """What AutoModel has behind its hidden states, which an embedding is not made of."""
    name = POOLERS.get(a.model_type)
    return None if name is None else UnusedPooler(a, b, name)


def labels_of(a: Architecture) -> int:
    """Number of classes: num_labels, or as many as id2label has; two as transformers' default."""
    names = a.get("id2label")
    return int(a.get("num_labels") or (len(names) if hasattr(names, "__len__") else 2))


def classifier_dropout(a: Architecture) -> float:
    """classifier_dropout, or hidden_dropout_prob where it is null."""
    return float(a.get("classifier_dropout", a.get("hidden_dropout_prob", 0.0)))
