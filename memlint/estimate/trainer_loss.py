"""Losses that LLaMA-Factory 0.9.5 takes itself from a causal model's logits.

Sources: v1/core/base_trainer.py (compute_log_probs) and v1/trainers/sft_trainer.py; train/sft/trainer.py and
train/trainer_utils.py (dft_loss_func, eaft_loss_func, asft_loss_func) under transformers' Trainer.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.engine.pool import LOGITS
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.ops.basic import add, cast, copy, slice_of
from memlint.estimate.ops.loss import cross_entropy, log_softmax
from memlint.job import TrainingJob

LABELLED = ("token-weighted", "asft")
"""Those whose trainer leaves the labels among what the model is given, which then takes its own loss as well."""


class TrainerLoss:
    """What lies between a model's logits and the loss of its trainer."""

    def __init__(self, job: TrainingJob, env: Env) -> None:
        self.kind = job.training.loss
        self.env = env
        self.held: list[Any] = []
        """The reference's logits and its cache of keys and values, until the loss is there."""

    def ask_reference(self, f: Tape, batch: Batch, model: tuple[Any, Any]) -> None:
        """ASFT's reference runs before the policy, without gradients and with a cache (use_kv_cache is on where nothing
        is trained).
        """
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        cache: list[Any] = []
        self.env.state["cache"] = cache
        hidden = model[0](f, batch)
        logits = model[1].logits(f, hidden)
        del hidden
        f.grad_enabled = grad_enabled
        f.cast_cache.clear()
        f.component = LOGITS
        if f.autocast is not None:
            logits = cast(f, logits, "fp32")
        self.env.state.clear()
        self.held = [logits, cache]

    def loss(self, f: Tape, held: list[Any], batch: Batch, head: Any) -> Tensor:
        """The scalar loss. held: logits and hidden states; emptied here, as what the trainer does not hold goes."""
        assert batch.labels is not None
        own, start = None, len(f.nodes)
        if self.kind in LABELLED:
            # Nobody asks for its gradient, but the outputs hold it.
            loss = head.loss(f, held[0], None, batch)
            own = (loss, f.nodes[start:])
            del f.nodes[start:], loss
        f.cast_cache.clear()
        f.component = LOGITS
        logits: Tensor = held[0]
        if f.autocast is not None:
            # accelerate's convert_outputs_to_fp32, in whose place the model's own logits go.
            logits = cast(f, logits, "fp32")
            f.autocast = None
        held.clear()
        wide = cast(f, logits, "fp32")
        if self.kind in LABELLED:
            result = self._shifted(f, wide, batch.labels)
        else:
            result = cross_entropy(f, wide, batch.labels)
            if self.kind == "eaft":
                _top_entropy(f, wide)
        for node in () if own is None else own[1]:
            node.saved = ()
        self.held.clear()
        return result

    def _shifted(self, f: Tape, logits: Tensor, labels: Tensor) -> Tensor:
        """Of all positions but the last, which are copied for more than one row."""
        shifted = _all_but_last(f, logits)
        targets = f.new((labels.shape[0], labels.shape[1] - 1), "int64")
        if self.kind == "token-weighted":
            return cross_entropy(f, shifted, targets)
        reference = _all_but_last(f, self.held[0])
        first = cross_entropy(f, shifted, targets)
        return add(f, first, _divergence(f, shifted, reference))


def _top_entropy(f: Tape, logits: Tensor) -> None:
    """What EAFT weighs a token by, without gradients: the entropy of its 20 likeliest words.

    ``source[valid_mask]`` copies all rows, where every label counts.
    """
    rows, shape = f.like(logits), (*logits.shape[:-1], 20)
    values, places = f.new(shape, "fp32"), f.new(shape, "int64")
    log_probs, probs = f.like(values), f.like(values)
    product = f.like(values)
    del rows, places, log_probs, probs, product


def _all_but_last(f: Tape, logits: Tensor) -> Tensor:
    rows, length, width = logits.shape
    shifted = slice_of(f, logits, (rows, length - 1, width))
    return copy(f, shifted) if rows > 1 else shifted


def _divergence_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # Of target * input, subtracted: the negative of the expanded gradient, times the target.
    shape, dtype = node.shapes[0]
    negative = f.new(shape, dtype)
    out = f.new(shape, dtype)
    del negative
    return (out,)


def _divergence(f: Tape, logits: Tensor, reference: Tensor) -> Tensor:
    """``F.kl_div(log_softmax(logits), softmax(reference), reduction="none").sum(-1)``, and its mean.

    aten/src/ATen/native/Loss.cpp kl_div: ``xlogy(target, target) - target * input``.
    """
    log_probs = log_softmax(f, logits)
    target = f.like(reference)
    entropy, product = f.like(target), f.like(log_probs)
    whole = f.like(log_probs)
    del entropy, product
    out = f.new((), "fp32")
    result = f.record(out, _divergence_backward, (log_probs,), f.save(target))
    del whole
    return result
