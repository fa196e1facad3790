"""Losses that never make all logits at once: Liger's fused head, TRL's chunked log-probabilities, plain chunks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from memlint.estimate.engine.pool import GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor, cast_backward
from memlint.estimate.ops.basic import add, cast, copy, slice_of
from memlint.estimate.ops.linear import cast_weight, linear, to_autocast
from memlint.estimate.ops.loss import cross_entropy, log_softmax, nll

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


class _Tiles:
    """What ChunkedLogProbFunction's loops hold: a tile of the projection, and casts of its two factors.

    A loop variable holds the old cast while the next one is made; in the forward the weight's cast has no variable.
    """

    def __init__(self, f: Tape, x: tuple[Shape, str], weight: tuple[Shape, str], compute: str) -> None:
        tokens, width = x[0]
        full, rest = divmod(tokens, TRL_TOKENS)
        # Whole tiles after the third hold nothing that the third did not.
        self.sizes = [TRL_TOKENS] * min(full, STEADY_CHUNKS) + [rest] * (rest > 0)
        self.chunks = [min(TRL_VOCABULARY, weight[0][0] - start) for start in range(0, weight[0][0], TRL_VOCABULARY)]
        self.width, self.compute = width, compute
        self.casts_x, self.casts_weight = x[1] != compute, weight[1] != compute
        self.tile = f.new((min(tokens, TRL_TOKENS), TRL_VOCABULARY), compute)
        self.part_of_x: Tensor | None = None
        self.part_of_weight: Tensor | None = None

    def run(self, f: Tape, *, holds: bool, widens: bool = False) -> None:
        """Run the loops. ``holds``: the weight's cast has a variable; ``widens``: the gradients' factors are cast to
        fp32, one product after the other.
        """
        for size in self.sizes:
            if self.casts_x:
                self.part_of_x = f.new((size, self.width), self.compute)
            for chunk in self.chunks:
                part = f.new((chunk, self.width), self.compute) if self.casts_weight else None
                if holds:
                    self.part_of_weight = part
                del part
                if widens:
                    f.pool.touch(4 * size * chunk + 4 * max(size, chunk) * self.width, TEMPORARIES)


def _chunked_logprob_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    hidden, weight = node.shapes
    compute, widens = node.meta
    grad_hidden = f.new(hidden[0], "fp32", TEMPORARIES) if node.edges[0] is not None else None
    grad_weight = f.new(weight[0], "fp32", GRADIENTS) if node.edges[1] is not None else None
    # The tile and the last casts live until the function returns, so beside both gradients and their own casts.
    tiles = _Tiles(f, hidden, weight, compute)
    tiles.run(f, holds=True, widens=widens and compute != "fp32")
    first = f.new(hidden[0], hidden[1]) if grad_hidden is not None and hidden[1] != "fp32" else grad_hidden
    second = f.new(weight[0], weight[1], GRADIENTS) if grad_weight is not None and weight[1] != "fp32" else grad_weight
    return first, second


def dense(f: Tape, weight: Tensor) -> Tensor:
    """The weight behind a node of its own: its gradient is a whole tensor, to which a tied embedding's is added in
    place, as it is to a cast one.
    """
    if weight.node is None:
        return weight
    return f.record(Tensor(weight.shape, weight.dtype, weight.storage), cast_backward, (weight,), (), weight.dtype)


def _index_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # index_backward: zeros of the indexed tensor's shape, the gradients added in place (index_put_, accumulate).
    return (f.new(node.meta, grad.dtype),)


def trl_log_probs(
    f: Tape, hidden: Tensor, weight: Tensor, scored: int | None = None, *, widens: bool = False
) -> Tensor:
    """TRL's fused LM head: log-probabilities [N] of the labels, the projection in tiles of 4096 tokens by 32,768 words.

    hidden: [B, S, H]; scored: positions of a row whose label counts, at most S - 1. widens: torch before 2.8, which
    multiplies half factors into an fp32 sum only as fp32.

    TRL 1.16 trainer/utils.py add_fused_lm_head, kernels/chunked_logprob.py ChunkedLogProbFunction: the scored positions
    are copied out of the hidden states (``hidden_states[mask]``); the backward accumulates both gradients in fp32 and
    casts them.
    """
    rows, length, width = hidden.shape
    tokens = rows * (length - 1 if scored is None else min(scored, length - 1))
    mask = f.new((rows, length - 1), "bool")
    shifted = slice_of(f, hidden, (rows, length - 1, width))
    recorded = f.needs(hidden)
    x = f.new((tokens, width), hidden.dtype)
    if recorded:
        f.record(x, _index_backward, (shifted,), f.save(mask), shifted.shape)
    del hidden, shifted
    targets = f.new((tokens,), "int64")
    compute = f.autocast or x.dtype
    recorded = f.needs(x, weight)
    saved = f.save(x, weight, targets) if recorded else ()
    statistics = [f.new((tokens,), "fp32") for _ in range(7)]
    tiles = _Tiles(f, (x.shape, x.dtype), (weight.shape, weight.dtype), compute)
    tiles.run(f, holds=False)
    log_z, entropy = f.new((tokens,), "fp32"), f.new((tokens,), "fp32")
    out = f.new((tokens,), "fp32")
    if recorded:
        saved = (*saved, *f.save(log_z, entropy))
    del statistics, tiles
    if not recorded:
        return out
    return f.record(out, _chunked_logprob_backward, (x, dense(f, weight)), saved, (compute, widens))


def _pass_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


TRL_CHUNK = 256
"""_CHUNKED_LM_HEAD_CHUNK_SIZE: TRL 1.9 trainer/sft_trainer.py."""
STEADY_CHUNKS = 3
"""Chunks that are run: from the second on, each adds to gradients that are there."""


def trl_chunked_loss(f: Tape, hidden: Tensor, weight: Tensor, turn: Callable[[Tape, Tensor], Tensor]) -> Tensor:
    """TRL's ``chunked_nll`` of 1.6 to 1.14: head and loss of 256 tokens at a time in fp32, each chunk checkpointed.

    TRL 1.9 trainer/sft_trainer.py _chunked_cross_entropy_loss: hidden states [B, S, H] without their last position are
    packed (``hidden[order]``); each chunk casts the whole weight to fp32 and, beside the loss, takes the entropy.
    ``turn`` is what the model does to its logits (logit_scale, final_logit_softcapping).
    """
    rows, length, width = hidden.shape
    tokens = rows * (length - 1)
    shifted = slice_of(f, hidden, (rows, length - 1, width))
    flat = (copy(f, shifted) if rows > 1 else shifted).view(tokens, width)
    del shifted
    order, targets = f.new((tokens,), "int64"), f.new((tokens,), "int64")
    packed = f.new(flat.shape, flat.dtype)
    if f.needs(flat):
        f.record(packed, _index_backward, (flat,), f.save(order), flat.shape)
    del flat, order
    plain = Tensor(weight.shape, weight.dtype, weight.storage, weight.node)
    size = min(TRL_CHUNK, tokens)

    def one(part: Tensor) -> Tensor:
        first, second = cast(f, part, "fp32"), cast(f, plain, "fp32")
        if second is plain and f.needs(second):
            # ``weight.float().t()`` of an fp32 weight: the gradient arrives as a view, to which none is added in place.
            second = f.record(Tensor(plain.shape, plain.dtype, plain.storage), _pass_backward, (plain,))
        if f.autocast is not None:
            # The transposed weight is no leaf: autocast does not cache its half copy.
            logits = linear(f, cast(f, first, f.autocast), cast(f, second, f.autocast))
        else:
            logits = linear(f, first, second)
        del first, second
        logits = turn(f, logits)
        log_probs = log_softmax(f, logits)
        loss = nll(f, log_probs, targets)
        exponent = f.like(log_probs)
        product = f.like(log_probs)
        del exponent, product
        f.save(targets)  # the entropy's last product: recomputation runs this far
        return loss

    total = f.new((), "fp32", TEMPORARIES)
    for _ in range(min(STEADY_CHUNKS, -(-tokens // size))):
        total = add(f, total, f.checkpoint(one, (slice_of(f, packed, (size, width)),), reentrant=False))
    return total


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
