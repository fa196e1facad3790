"""Losses over a vocabulary, as the trainers really compute them."""

from __future__ import annotations

from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast, copy, slice_of


def _log_softmax_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def _nll_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # nll_loss_backward: zeros of the log-probabilities' size.
    shape, dtype = node.shapes[0]
    return (f.new(shape, dtype),)


def cross_entropy(f: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """``F.cross_entropy``: log_softmax saves its result, nll_loss saves that result again (the same storage).

    Under autocast nll_loss is on the fp32 list; log_softmax is too, but cross_entropy_loss names the logits' dtype
    (aten/src/ATen/native/LossNLL.cpp), which autocast leaves alone: half log-probabilities and their fp32 copy are
    kept.
    """
    recorded = f.needs(logits)
    log_probs = f.like(logits)
    if recorded:
        f.record(log_probs, _log_softmax_backward, (logits,), f.save(log_probs))
    if f.autocast is not None:
        log_probs = cast(f, log_probs, "fp32")
    return nll(f, log_probs, labels)


def log_softmax(f: Tape, logits: Tensor) -> Tensor:
    """``F.log_softmax`` over the last dimension: saves its result; on autocast's fp32 list."""
    if f.autocast is not None:
        logits = cast(f, logits, "fp32")
    recorded = f.needs(logits)
    out = f.like(logits)
    return f.record(out, _log_softmax_backward, (logits,), f.save(out)) if recorded else out


def nll(f: Tape, log_probs: Tensor, labels: Tensor) -> Tensor:
    """``F.nll_loss``, a scalar: saves the log-probabilities, the labels and the sum of the weights, a scalar too."""
    recorded = f.needs(log_probs)
    saved = f.save(log_probs, labels) if recorded else ()
    loss, weights = f.new((), log_probs.dtype, TEMPORARIES), f.new((), log_probs.dtype, TEMPORARIES)
    return f.record(loss, _nll_backward, (log_probs,), (*saved, *f.save(weights))) if recorded else loss


def causal_lm_loss(f: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """transformers' ForCausalLMLoss (loss/loss_utils.py, 5.24): logits to fp32, labels shifted, cross entropy.

    The labels are padded at their end; all but the first of one row are contiguous as they are, those of several are
    copied, and the padded ones live as long as the call.
    """
    f.component = LOGITS
    logits = cast(f, logits, "fp32")
    rows, length = labels.shape
    padded = f.new((rows, length + 1), "int64", TEMPORARIES)
    shifted = padded if rows == 1 else f.new(labels.shape, "int64", TEMPORARIES)
    return cross_entropy(f, logits, shifted)


def shifting_lm_loss(f: Tape, logits: Tensor, labels: Tensor, *, upcast: bool) -> Tensor:
    """The loss of transformers before 4.49 and of code on the hub: ``logits[..., :-1, :].contiguous()``.

    The slice of one sequence is contiguous as it is; that of several is copied. ``upcast``: to fp32 first
    (loss/loss_utils.py of 4.46); else cross entropy runs in the logits' dtype, or in fp32 under autocast.
    """
    f.component = LOGITS
    if upcast:
        logits = cast(f, logits, "fp32")
    rows, length, width = logits.shape
    shifted = slice_of(f, logits, (rows, length - 1, width))
    if rows > 1:
        shifted = copy(f, shifted)
    targets = labels if rows == 1 else f.new((rows, length - 1), "int64", TEMPORARIES)
    return cross_entropy(f, shifted, targets)
