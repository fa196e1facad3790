"""Log-probabilities of labels from whole logits, as preference and RL trainers take them."""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import DECOMPOSED, LOGITS
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import copy, slice_of
from memlint.estimate.ops.loss import cross_entropy


def _half_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # One row after the other, the last one first: gather_backward, _log_softmax_backward_data, and the row's
    # log-probabilities go; unbind's backward stacks all rows.
    shape, dtype = node.shapes[0]
    row = shape[1:]
    saved = list(node.saved)
    node.saved = ()
    rows = []
    while saved:
        scattered = _gather_backward(f, row, dtype)
        rows.append(f.new(row, dtype))
        del scattered
        saved.pop()
    return (f.new(shape, dtype),)


def _gather_backward(f: Tape, shape: Shape, dtype: str) -> Tensor:
    # Zeros that are added into; a trace on fake tensors makes the sum another tensor (see ops/gather.py).
    zeros = None if f.one_kernel_silu else f.new(shape, dtype, DECOMPOSED)
    scattered = f.new(shape, dtype)
    del zeros
    return scattered


def _single_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # logsumexp_backward of each row: grad * exp(self - result); unbind stacks them; gather's gradient is added.
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
    scattered = _gather_backward(f, shape, dtype)
    del scattered
    return (stacked,)


def selective_log_softmax(f: Tape, logits: Tensor) -> Tensor:
    """TRL's selective_log_softmax before its kernel (trainer/utils.py, 1.9 to 1.13): logits [B, S, V] -> [B, S].

    Half precision keeps a log-softmax of every row; fp32 keeps only the logits themselves.
    """
    rows = logits.shape[0]
    row = logits.shape[1:]
    out_shape = logits.shape[:-1]
    recorded = f.needs(logits)
    if logits.dtype == "fp32":
        saved = f.save(logits) if recorded else ()
        # logsumexp's own temporary is a row of exponentials inside the operator, which a trace does not see.
        for _ in range(rows):
            f.pool.touch(4 * prod(row), LOGITS)
        out = f.new(out_shape, "fp32")
        return f.record(out, _single_backward, (logits,), saved) if recorded else out
    kept = []
    log_probs = None
    for _ in range(rows):
        # The loop variable holds the row before.
        log_probs = f.new(row, logits.dtype)
        if recorded:
            kept.append(log_probs)
    saved = f.save(*kept) if recorded else ()
    out = f.new(out_shape, logits.dtype)
    return f.record(out, _half_backward, (logits,), saved) if recorded else out


ENTROPY_ROWS = 128
"""Default ``chunk_size`` of entropy_from_logits (TRL 1.9 trainer/utils.py)."""


def entropy(f: Tape, logits: Tensor, *, counted: bool = True) -> None:
    """TRL's entropy_from_logits for its logs (trainer/utils.py, 1.9 to 1.13), without gradients.

    ``reshape(-1, V)`` of logits [B, S, V] without their last position copies more than one row, as does the SFT
    trainer's ``contiguous`` for the token accuracy alone (not ``counted``); then 128 positions at a time, log-softmax,
    its exponential and their product are alive.
    """
    rows, length, width = logits.shape
    whole = f.new((rows * length, width), logits.dtype) if rows > 1 else None
    chunk = (min(ENTROPY_ROWS, rows * length), width)
    parts = [f.new(chunk, logits.dtype) for _ in range(3)] if counted else None
    del parts, whole


def _divided_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # CopySlices (torch/csrc/autograd/functions/tensor.cpp): a copy of the gradient, its viewed part cloned and divided.
    whole = f.new(*node.shapes[0])
    part = f.new(node.meta, grad.dtype)
    quotient = f.new(node.meta, grad.dtype)
    del part, quotient
    return (whole,)


def divided_in_place(f: Tape, logits: Tensor, positions: int | None = None) -> Tensor:
    """``logits[:, :-1, :].div_(temperature)`` (TRL before 1.15 grpo_trainer.py): logits [B, S, V], the same storage.

    ``positions``: how many of a row are divided (TRL's PPO); None: all but the last.
    """
    out = Tensor(logits.shape, logits.dtype, logits.storage)
    rows, length, width = logits.shape
    part = (rows, length - 1 if positions is None else positions, width)
    return f.record(out, _divided_backward, (logits,), (), part) if f.needs(logits) else out


def _whole_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    shape, dtype = node.shapes[0]
    scattered = _gather_backward(f, shape, dtype)
    out = f.new(shape, dtype)
    del scattered
    return (out,)


def _kernel_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # The Triton kernel writes one gradient, contiguous, in the logits' dtype.
    shape, dtype = node.shapes[0]
    return (f.new(shape, dtype),)


def kernel_log_probs(f: Tape, logits: Tensor) -> Tensor:
    """TRL's selective_log_softmax on a GPU (1.14 to 1.16 kernels/logprob_entropy.py _LogProbEntropyFunction).

    logits [B, S, V] -> [B, S] in fp32. It saves the logits themselves; log-probabilities, entropy and two statistics
    are fp32 numbers a row.
    """
    recorded = f.needs(logits)
    shape = logits.shape[:-1]
    out, entropy = f.new(shape, "fp32"), f.new(shape, "fp32")
    log_z, expected = f.new(shape, "fp32"), f.new(shape, "fp32")
    if not recorded:
        return out
    del entropy
    return f.record(out, _kernel_backward, (logits,), f.save(logits, log_z, expected))


def chosen_loss(f: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of the chosen half that ORPO and CPO add (concatenated_forward in TRL 1.16
    experimental/{orpo,cpo}).

    logits [2B, S, V], in their own dtype: ``logits[..., :-1, :].contiguous()``, which copies more than one row.
    """
    rows, length, width = logits.shape
    chosen = slice_of(f, logits, (rows // 2, length, width))
    shifted = slice_of(f, chosen, (rows // 2, length - 1, width))
    del logits, chosen
    if rows > 2:
        shifted = copy(f, shifted)
    targets = f.new((rows // 2 * (length - 1),), labels.dtype)
    flat = shifted.view(rows // 2 * (length - 1), width)
    del shifted
    return cross_entropy(f, flat, targets)


def log_softmax_gather(f: Tape, logits: Tensor) -> Tensor:
    """``gather(logits[:, :-1].log_softmax(-1), labels)`` over all rows at once (LLaMA-Factory 0.9.5
    train/trainer_utils.py get_batch_logps), in fp32.

    The kernel makes a strided input contiguous first (host_softmax in aten/src/ATen/native/cuda/SoftMax.cu): the slice
    of more than one row.
    """
    rows, length, width = logits.shape
    logits = slice_of(f, logits, (rows, length - 1, width))
    recorded = f.needs(logits)
    log_probs = f.like(logits)
    if rows > 1:
        f.pool.touch(4 * prod(logits.shape), LOGITS)
    saved = f.save(log_probs) if recorded else ()
    out = f.new(logits.shape[:-1], "fp32")
    return f.record(out, _whole_backward, (logits,), saved) if recorded else out
