"""EuroBERT: Llama's layers, every token seeing every other, under the heads of an encoder.

Source: transformers 5.24 models/eurobert/modeling_eurobert.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import llama
from memlint.estimate.families.encoder_heads import TokenHead, labels_of
from memlint.estimate.families.rotary import rotary_tables
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import mean_last, slice_of
from memlint.models.architecture import Architecture


class MaskedHead:
    """``lm_head``; its bias follows mlp_bias."""

    def __init__(self, a: Architecture, b: Build, embed: Any) -> None:
        rows, bias = embed.weight.shape[0], bool(a.get("mlp_bias", False))
        if a.tie_word_embeddings:
            self.decoder: Any = Linear(embed.weight, b.parameter("lm_head.bias", rows) if bias else None)
        else:
            self.decoder = b.linear("lm_head", a.hidden_size, rows, bias)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, None]:
        """Logits over the vocabulary."""
        f.component = LOGITS
        logits = self.decoder(f, x)
        f.component = TEMPORARIES
        return logits, None


class SequenceHead:
    """Projection, GELU and classifier over all tokens and their mean (``late``), or over a pooled vector."""

    def __init__(self, a: Architecture, b: Build) -> None:
        self.pooling = str(a.get("classifier_pooling", "late"))
        self.dense = b.linear("dense", a.hidden_size, a.hidden_size, True)
        self.classifier = b.linear("classifier", a.hidden_size, labels_of(a), True)

    def __call__(self, f: Tape, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, labels], and what they were made of."""
        x = hidden
        if self.pooling == "bos":
            x = slice_of(f, hidden, (hidden.shape[0], hidden.shape[2]))
        elif self.pooling == "mean":
            x = _mean(f, hidden)
        x = self.dense(f, x)
        x = activate(f, x, "gelu")
        logits = self.classifier(f, x)
        return (_mean(f, logits) if self.pooling == "late" else logits), x


def _mean(f: Tape, x: Tensor) -> Tensor:
    rows, count, width = x.shape
    return mean_last(f, x.view(rows, width, count)).view(rows, width)


class Model(llama.Model):
    """EuroBertModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    upcasts = True

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        super().__init__(a, b, env)
        self.head: Any
        if objective == "contrastive":
            self.head = None
        elif objective == "masked-lm":
            self.head = MaskedHead(a, b, self.embed)
        elif objective == "token-classification":
            self.head = TokenHead(a, b, 0.0)
        else:
            self.head = SequenceHead(a, b)

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm; there is a mask only where there is padding."""
        env, (rows, length) = self.env, x.shape[:2]
        env.state["positions"] = f.new((1, length), "int64")
        env.state["masks"] = {"full": env.mask(f, rows, length, x.dtype) if env.padding else None}
        env.state["rope"] = rotary_tables(f, length, self.rotary, x.dtype)
        x = self.layers(f, env, x, *self.others)
        x = self.norm(f, env, x)
        env.release()
        return x
