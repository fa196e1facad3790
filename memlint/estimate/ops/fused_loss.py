"""Losses that never make all logits at once: Liger's fused head, TRL's chunked log-probabilities, plain chunks."""

from __future__ import annotations

from math import prod
from typing import Any

from memlint.estimate.engine.pool import GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast
from memlint.estimate.ops.linear import cast_weight, linear, to_autocast
from memlint.estimate.ops.loss import cross_entropy

TRL_TOKENS = 4096
"""TOKEN_CHUNK_SIZE: TRL 1.16 kernels/chunked_logprob.py."""
TRL_VOCABULARY = 32768
"""_CHUNKED_LOGPROB_CHUNK_SIZE: TRL 1.16 trainer/utils.py."""


def _kept_gradients(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(node.meta)


def liger_fused_loss(f: Tape, hidden: Tensor, weight: Tensor) -> Tensor:
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


def _chunked_logprob_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    (hidden_shape, hidden_dtype), (weight_shape, weight_dtype) = node.shapes
    compute: str = node.meta
    tokens = prod(hidden_shape[:-1])
    grad_hidden = f.new(hidden_shape, "fp32", TEMPORARIES) if node.edges[0] is not None else None
    grad_weight = f.new(weight_shape, "fp32", GRADIENTS) if node.edges[1] is not None else None
    tile = f.new((min(tokens, TRL_TOKENS), TRL_VOCABULARY), compute)
    part = f.new((TRL_VOCABULARY, weight_shape[-1]), compute) if weight_dtype != compute else None
    del tile, part
    if grad_hidden is not None:
        grad_hidden = cast(f, grad_hidden, hidden_dtype)
    if grad_weight is not None:
        grad_weight = cast(f, grad_weight, weight_dtype)
    return grad_hidden, grad_weight


def trl_log_probs(f: Tape, hidden: Tensor, weight: Tensor) -> Tensor:
    """TRL's fused LM head: log-probabilities [N] of the labels, the projection in tiles of 4096 tokens by 32,768 words.

    TRL 1.16 trainer/utils.py add_fused_lm_head, kernels/chunked_logprob.py ChunkedLogProbFunction: the scored positions
    are copied out of the hidden states (``hidden_states[mask]``); the backward accumulates both gradients in fp32 and
    casts them.
    """
    x = Tensor((prod(hidden.shape[:-1]), hidden.shape[-1]), hidden.dtype, hidden.storage, hidden.node)
    from memlint.estimate.ops.basic import copy

    x = copy(f, x)
    tokens = x.shape[0]
    compute = f.autocast or x.dtype
    recorded = f.needs(x, weight)
    statistics = [f.new((tokens,), "fp32") for _ in range(7)]
    tile = f.new((min(tokens, TRL_TOKENS), TRL_VOCABULARY), compute)
    part = f.new((TRL_VOCABULARY, x.shape[-1]), compute) if weight.dtype != compute else None
    del tile, part
    log_z, entropy = f.new((tokens,), "fp32"), f.new((tokens,), "fp32")
    out = f.new((tokens,), "fp32")
    del statistics
    if not recorded:
        return out
    saved = f.save(x, weight, log_z, entropy)
    return f.record(out, _chunked_logprob_backward, (x, weight), saved, compute)


def _sum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (Tensor(node.meta, grad.dtype, grad.storage),)


def summed(f: Tape, values: Tensor) -> Tensor:
    """``-values.sum() / n``: a scalar whose backward expands into a view."""
    recorded = f.needs(values)
    out = f.new((), values.dtype, TEMPORARIES)
    return f.record(out, _sum_backward, (values,), (), values.shape) if recorded else out


def chunked_loss(f: Tape, hidden: Tensor, weight: Tensor, labels: Tensor, chunks: int = 8) -> Tensor:
    """Head and cross entropy over one chunk of tokens at a time, each chunk checkpointed."""
    tokens = prod(hidden.shape[:-1])
    size = -(-tokens // chunks)

    def one(x: Tensor) -> Tensor:
        part = Tensor((size, x.shape[-1]), x.dtype, x.storage, x.node)
        logits = cast(f, linear(f, part, weight), "fp32")
        return cross_entropy(f, logits, labels)

    loss: Any = None
    for _ in range(chunks):
        loss = f.checkpoint(one, (hidden,), reentrant=False)
    assert isinstance(loss, Tensor)
    return loss
