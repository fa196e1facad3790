"""Cut cross entropy: head and loss in kernels that make no logits, and gradients only in the backward.

Source: cut_cross_entropy/{cce,cce_lse_forward,cce_backward,indexed_dot,utils}.py of cut-cross-entropy 25.1.1 and of the
fork that axolotl 0.19 asks for (axolotl-ai-cloud/ml-cross-entropy 100a0777; transformers/utils.py apply_lce), whose
``cce`` accumulates no gradient in fp32. Held to traces of the former's Python, whose kernels then did nothing
(tests/estimate/test_cut_loss.py). Its locks, a number for some 128 rows, are left out.
"""

from __future__ import annotations

from memlint.estimate.engine.pool import GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast
from memlint.estimate.ops.fused_loss import dense


def _cut_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # sort_logit_avg: argsort, then int32; the order is there while both gradients are made and filled.
    (shape, dtype), (rows, own) = node.shapes
    places = f.new((rows[0],), "int64")
    order = f.new((rows[0],), "int32")
    del places
    first = f.new(shape, dtype) if node.edges[0] is not None else None
    second = f.new(rows, own, GRADIENTS) if node.edges[1] is not None else None
    del order
    return first, second


def cut_cross_entropy(f: Tape, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """linear_cross_entropy(hidden, weight, labels, shift=True): hidden [B, S, H], weight [V, H] -> the mean loss.

    Saves both factors, one fp32 log-sum-exp and one place for each position, and each word's mean logit. Autocast does
    not reach into the function; apply_lce casts fp32 states to a half weight's dtype.
    """
    x = cast(f, hidden, weight.dtype) if hidden.dtype == "fp32" and weight.dtype == "bf16" else hidden
    positions = hidden.shape[0] * (hidden.shape[1] - 1)
    recorded = f.needs(x, weight)
    # _build_flat_valids: (targets != ignore_index).nonzero() in int64, in int32, and its sum over a row.
    pairs = f.new((positions, 2), "int64")
    narrow = f.new((positions, 2), "int32")
    del pairs
    places = f.new((positions,), "int64")
    del narrow
    log_sums, means = f.new((positions,), "fp32"), f.new((weight.shape[0],), "fp32")
    losses = f.new((positions,), "fp32")
    loss = f.new((), "fp32", TEMPORARIES)
    del losses
    if not recorded:
        return loss
    saved = f.save(x, weight, log_sums, labels, places, means)
    return f.record(loss, _cut_backward, (x, dense(f, weight)), saved)
