"""Log-probabilities of labels from whole logits, as preference and RL trainers take them."""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast


def _half_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # One row after the other: gather_backward zeros, _log_softmax_backward_data; unbind's backward stacks all rows.
    shape, dtype = node.shapes[0]
    row = shape[1:]
    rows = []
    for _ in range(shape[0]):
        scattered = f.new(row, dtype)
        rows.append(f.new(row, dtype))
        del scattered
    return (f.new(shape, dtype),)


def _single_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # logsumexp_backward of each row: grad * exp(self - result); unbind stacks them; gather_backward's zeros are added.
    shape, dtype = node.shapes[0]
    row = shape[1:]
    rows = []
    for _ in range(shape[0]):
        difference = f.new(row, dtype)
        exponent = f.new(row, dtype)
        rows.append(f.new(row, dtype))
        del difference, exponent
    stacked = f.new(shape, dtype)
    del rows
    scattered = f.new(shape, dtype)
    del scattered
    return (stacked,)


def selective_log_softmax(f: Tape, logits: Tensor) -> Tensor:
    """TRL's selective_log_softmax (trainer/utils.py, 1.9): logits [B, S, V] -> [B, S].

    Half precision keeps a log-softmax of every row; fp32 keeps only the logits themselves.
    """
    rows = logits.shape[0]
    row = logits.shape[1:]
    out_shape = logits.shape[:-1]
    recorded = f.needs(logits)
    if logits.dtype == "fp32":
        saved = f.save(logits) if recorded else ()
        for _ in range(rows):
            exponent = f.new(row, "fp32")
            del exponent
        out = f.new(out_shape, "fp32")
        return f.record(out, _single_backward, (logits,), saved) if recorded else out
    kept = []
    for _ in range(rows):
        log_probs = f.new(row, logits.dtype)
        if recorded:
            kept.append(log_probs)
        del log_probs
    saved = f.save(*kept) if recorded else ()
    out = f.new(out_shape, logits.dtype)
    return f.record(out, _half_backward, (logits,), saved) if recorded else out


def _whole_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    shape, dtype = node.shapes[0]
    scattered = f.new(shape, dtype)
    out = f.new(shape, dtype)
    del scattered
    return (out,)


def log_softmax_gather(f: Tape, logits: Tensor) -> Tensor:
    """``gather(logits.log_softmax(-1), labels)`` over all rows at once (LLaMA-Factory 0.9 train/trainer_utils.py)."""
    logits = cast(f, logits, "fp32")
    recorded = f.needs(logits)
    log_probs = f.like(logits)
    saved = f.save(log_probs) if recorded else ()
    out = f.new(logits.shape[:-1], "fp32")
    return f.record(out, _whole_backward, (logits,), saved) if recorded else out
