"""Connectionist temporal classification: ``F.ctc_loss`` by PyTorch's own kernel.

Source: aten/src/ATen/native/cuda/LossCTC.cu (torch 2.13), transformers 5.24 loss/loss_ctc.py.
"""

from __future__ import annotations

from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.attention import softmax


def _ctc_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # ctc_loss_backward_gpu_template: log_beta of log_alpha's size, then the gradient of the log-probabilities.
    shape, dtype = node.shapes[0]
    beta = f.new(node.meta, "fp32")
    out = f.new(shape, dtype)
    del beta
    return (out,)


def ctc_loss(f: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """ForCTCLoss of logits [B, L, V] over labels [B, T]: log-probabilities in fp32, and a table of L x (2 T + 1)."""
    f.component = LOGITS
    rows, length, _ = logits.shape
    mask = f.new(labels.shape, "bool")
    targets = f.new(labels.shape, "int64")
    log_probs = softmax(f, logits, "fp32")
    recorded = f.needs(log_probs)
    table = (rows, length, 2 * labels.shape[1] + 1)
    saved = f.save(log_probs, targets) if recorded else ()
    losses = f.new((rows,), "fp32")
    alpha = f.new(table, "fp32")
    loss = f.new((), "fp32", TEMPORARIES)
    del mask
    return f.record(loss, _ctc_backward, (log_probs,), saved + f.save(losses, alpha), table) if recorded else loss
