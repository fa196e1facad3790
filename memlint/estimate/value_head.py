"""LLaMA-Factory's reward model: a value head beside a language model whose logits nobody asks for."""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch
from memlint.estimate.heads import CausalHead
from memlint.estimate.ops.basic import cast, dropout
from memlint.estimate.ops.fused_loss import summed
from memlint.estimate.ops.linear import linear
from memlint.estimate.outputs import held_by_the_next
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

DROPOUT = 0.1
"""summary_dropout_prob where the config has none: ValueHead in TRL 0.24 models/modeling_value_head.py."""


class ValueHead:
    """AutoModelForCausalLMWithValueHead.forward (TRL 0.24, the newest that LLaMA-Factory 0.9.5 takes): the model gives
    logits of all positions and every layer's output; the value head reads the last one in fp32; the logits are cast to
    fp32, and the trainer drops them (train/rm/trainer.py compute_loss).
    """

    loss_kind = "standard"

    def __init__(self, a: Architecture, b: Build, body: Any) -> None:
        b.idle, before = not a.tie_word_embeddings, b.idle
        self.language = CausalHead(a, b, body.embed, bias=getattr(body, "head_bias", False))
        b.idle = before
        self.language.loss_kind = "standard"  # no fused or chunked loss replaces logits that the model returns
        self.dropout = float(a.get("summary_dropout_prob", DROPOUT))
        self.weight = b.parameter("v_head.summary.weight", 1, a.hidden_size, dtype="fp32", trainable=True)
        self.bias = b.parameter("v_head.summary.bias", 1, dtype="fp32", trainable=True)
        self.layers = body.layers if isinstance(getattr(body, "layers", None), Stack) else None
        self.held = held_by_the_next(b.training.checkpointing)
        if self.layers is not None:
            self.layers.keeps = self.layers.keeps_first = True

    def logits(self, f: Tape, hidden: Tensor) -> Tensor:
        """A value for every position, [B, S]."""
        if self.layers is not None:
            # The last hidden state is the normalised one: the last layer's own output is not kept.
            self.layers.drop_last(f)
        # The logits' graph lives as long as they do, and no gradient ever comes: their nodes leave the tape with them.
        first = len(f.nodes)
        logits = self.language.logits(f, hidden)
        last = len(f.nodes)
        assert logits is not None
        x = cast(f, dropout(f, hidden, self.dropout), "fp32")
        values = linear(f, x, self.weight, self.bias)
        del x
        f.component = LOGITS
        whole = cast(f, logits.detach(), "fp32")
        del whole, logits
        for node in f.nodes[first:last]:
            node.saved = ()  # one that saves its own output would hold itself
        del f.nodes[first:last]
        f.component = TEMPORARIES
        if self.layers is not None:
            self.layers.outputs.forget(f, f.grad_enabled and self.held)
        return values

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """The pairwise loss of one value a row."""
        assert logits is not None
        return summed(f, logits)
