"""From last hidden states to the loss: language-model heads, classifiers, and how the loss is computed."""

from __future__ import annotations

from math import prod
from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch
from memlint.estimate.ops.basic import cast, saving_output, scale
from memlint.estimate.ops.linear import Weight, cast_weight, linear, to_autocast
from memlint.estimate.ops.loss import causal_lm_loss, cross_entropy
from memlint.models.architecture import Architecture


SCALED_LOGITS = ("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "cohere", "cohere2")
"""Model types whose logits are multiplied or divided by a number, always (modeling files of transformers 5.24)."""


class CausalHead:
    """lm_head over all positions, then transformers' ForCausalLMLoss, or one of its fused or chunked substitutes."""

    def __init__(self, a: Architecture, b: Build, embed: Any, *, name: str = "lm_head", bias: bool = False) -> None:
        self.loss_kind = b.training.loss
        self.softcap = a.get("final_logit_softcapping") is not None
        self.scaled = a.model_type in SCALED_LOGITS
        rows = b.training.vocab_size or a.vocab_size
        self.tied = a.tie_word_embeddings
        if self.tied:
            offset = b.parameter(f"{name}.bias", rows) if bias else None
            self.head: Any = Linear(embed.weight, offset)
        else:
            self.head = b.linear(name, a.hidden_size, rows, bias)

    def logits(self, f: Tape, hidden: Tensor) -> Tensor | None:
        """Logits [B, S, V]; None when the loss never makes them whole."""
        if self.loss_kind != "standard":
            return None
        f.component = LOGITS
        logits: Tensor = self.head(f, hidden)
        if self.softcap:
            logits = scale(f, logits)
            logits = saving_output(f, logits)
            logits = scale(f, logits)
        elif self.scaled:
            logits = scale(f, logits)
        f.component = TEMPORARIES
        return logits

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """The scalar loss."""
        assert batch.labels is not None
        if logits is not None:
            return causal_lm_loss(f, logits, batch.labels)
        assert hidden is not None
        f.component = LOGITS
        weight = self.head.weight
        if self.loss_kind == "fused":
            return liger_fused_loss(f, hidden, weight)
        return chunked_loss(f, hidden, weight, batch.labels)


def _kept_gradients(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(node.meta)


def liger_fused_loss(f: Tape, hidden: Tensor, weight: Weight) -> Tensor:
    """Liger's fused linear cross entropy: gradients are made in forward, a chunk of logits at a time.

    Liger-Kernel 0.6 ops/fused_linear_cross_entropy.py: chunk = next power of two of tokens / ceil(V / H); grad_input
    and grad_weight are kept until backward, which scales them in place.
    """
    x = to_autocast(f, hidden)
    held = cast_weight(f, weight)
    assert held is not None
    tokens, width, rows = prod(x.shape[:-1]), x.shape[-1], weight.shape[0]
    factor = -(-rows // width)
    chunk = min(tokens, 1 << max(0, (-(-tokens // factor) - 1).bit_length()))
    recorded = f.needs(x, held)
    grad_x = f.like(x, x.dtype) if x.node is not None and recorded else None
    grad_w = f.new(weight.shape, held.dtype) if held.node is not None and recorded else None
    losses = f.new((tokens,), "fp32")
    logits = f.new((chunk, rows), x.dtype)
    part = f.new((chunk, width), x.dtype)
    update = f.new(weight.shape, held.dtype) if grad_w is not None else None
    del logits, part, update, losses
    loss = f.new((), "fp32", TEMPORARIES)
    if not recorded:
        return loss
    f.save(grad_x, grad_w)
    return f.record(loss, _kept_gradients, (x, held), (), (grad_x, grad_w))


def chunked_loss(f: Tape, hidden: Tensor, weight: Weight, labels: Tensor, chunks: int = 8) -> Tensor:
    """Head and cross entropy over one chunk of tokens at a time, each chunk checkpointed."""
    tokens = prod(hidden.shape[:-1])
    size = -(-tokens // chunks)

    def one(x: Tensor) -> Tensor:
        part = Tensor((size, x.shape[-1]), x.dtype, x.storage, x.node)
        logits = cast(f, linear(f, part, weight), "fp32")
        return cross_entropy(f, logits, labels)

    loss = None
    for _ in range(chunks):
        loss = f.checkpoint(one, (hidden,), reentrant=False)
    assert loss is not None
    return loss


class ClassificationHead:
    """GenericForSequenceClassification: ``score`` over every position, then the last token's logits
    (modeling_layers.py).
    """

    def __init__(self, a: Architecture, b: Build, embed: Any, *, per_token: bool = False) -> None:
        self.labels = int(a.get("num_labels", 2))
        self.per_token = per_token
        self.score = b.linear("score", a.hidden_size, self.labels, per_token)

    def logits(self, f: Tape, hidden: Tensor) -> Tensor | None:
        """[B, S, labels]."""
        logits: Tensor = self.score(f, hidden)
        return logits

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """Cross entropy over the pooled (or all) positions."""
        assert logits is not None and batch.labels is not None
        if not self.per_token:
            from memlint.estimate.ops.basic import slice_of

            logits = slice_of(f, logits, (batch.rows, self.labels))
        return cross_entropy(f, cast(f, logits, "fp32"), batch.labels)
