"""The chunked state-space scan of Mamba-2 in PyTorch: mamba2, bamba, granitemoehybrid, falcon_h1, nemotron_h, zamba2.

Source: transformers 5.24 models/mamba2/modeling_mamba2.py (mamba2_chunk_scan). Heaviest are the decay matrices
[B, h, chunks, chunk, chunk] in fp32, so memory grows with tokens times chunk_size times heads. Letters: b batch, c
chunks, l and s positions in a chunk, h heads, p head_dim, n state.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import activation, add, cast, cat, copy, mul, saving_output, slice_of
from memlint.estimate.ops.gather import clamp, masked_fill, subtract
from memlint.estimate.ops.linear import to_autocast
from memlint.estimate.ops.strides import Contraction, copied, dense, elementwise, viewed


def _new_shape_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)


def in_chunks(f: Tape, x: Tensor, shape: Shape, back: bool) -> Tensor:
    """A view of a sequence in chunks; ``back``: its gradient is copied for the sequence's own shape."""
    return copied_back(f, x, shape) if back else x.view(*shape)


def copied_back(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """A view whose gradient, arriving in another order of dimensions, is copied (view_backward: reshape)."""
    out = Tensor(shape, x.dtype, x.storage)
    return f.record(out, _new_shape_backward, (x,)) if f.needs(x) else out


def remade(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """A new tensor of another size: padding, repeat_interleave; the gradient is a new tensor of x's shape."""
    recorded = f.needs(x)
    out = f.new(shape, x.dtype)
    return f.record(out, _new_shape_backward, (x,)) if recorded else out


def _product_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    first = f.new(node.shapes[0][0], grad.dtype) if node.edges[0] is not None else None
    second = f.new(node.shapes[1][0], grad.dtype) if node.edges[1] is not None else None
    return first, second


class Folds(NamedTuple):
    """What ``torch.einsum`` copies for its bmm: its two operands, and the gradient of its result."""

    left: bool
    right: bool
    grad: bool


def einsum(f: Tape, a: Tensor, b: Tensor, shape: Shape, folds: Folds) -> Tensor:
    """``torch.einsum`` of two tensors through bmm: operands whose dimensions cannot be folded are copied first."""
    left = copy(f, a) if folds.left else a
    right = copy(f, b) if folds.right else b
    left, right = to_autocast(f, left), to_autocast(f, right)
    recorded = f.needs(left, right)
    saved = f.save(left, right) if recorded else ()
    out = f.new(shape, left.dtype)
    if not recorded:
        return out
    out = f.record(out, _product_backward, (left, right), saved)
    return copied_back(f, out, shape) if folds.grad else out


class Copies(NamedTuple):
    """What the scan copies because it does not lie as it is asked for."""

    scores: Folds
    diagonal: Folds
    states: Folds
    fresh: Folds
    read: Folds
    output: bool
    x: bool
    key: bool
    query: bool
    """The gradients of the three in chunks, for their sequences."""


def scan_copies(b: int, c: int, chunk: int, h: int, p: int, n: int, *, channels_first: bool) -> Copies:
    """What mamba2_chunk_scan copies: that depends on which of its dimensions are of size one alone.

    ``channels_first``: x comes from the convolution [b, channels, S]; padding and products keep that order.
    """
    return _scan_copies(b == 1, c == 1, chunk == 1, h == 1, p == 1, n == 1, channels_first)


@cache
def _scan_copies(*facts: bool) -> Copies:
    """Follow the strides through mamba2_chunk_scan and its backward, with sizes that stand for all but one."""
    b, c, chunk, h, p, n = [1 if one else size for one, size in zip(facts, (2, 3, 5, 7, 11, 13))]
    length = c * chunk
    start = dense((b, length, h, p))
    if facts[-1]:
        start = dense((b, h, p, length)).permuted(0, 3, 1, 2)
    x = viewed(start, (b, c, chunk, h, p))
    assert x is not None
    key = query = dense((b, c, chunk, h, n))
    lower = dense((b, h, c, chunk, chunk)).permuted(0, 2, 3, 4, 1)
    decays = dense((b, h, c, chunk)).permuted(0, 2, 3, 1).unsqueezed()
    scores = Contraction("bclhn,bcshn->bclsh", query, key)
    diagonal = Contraction("bclsh,bcshp->bclhp", elementwise(scores.out, lower), x)
    states = Contraction("bclhn,bclhp->bchpn", elementwise(key, decays), x)
    between = dense((b, h, c + 1, c + 1)).permuted(0, 3, 2, 1)
    all_states = dense((b, c + 1, h, p, n))
    fresh = Contraction("bzch,bzhpn->bchpn", between, all_states)
    read = Contraction("bclhn,bchpn->bclhp", query, fresh.out.narrowed(1, c))
    output = elementwise(diagonal.out, elementwise(read.out, decays))

    grad = dense((b, c, chunk, h, p))
    read_grad, query_grad, _ = read.backward(elementwise(grad, decays))
    fresh_grad, _, states_grad = fresh.backward(all_states)
    states_copied, faded_grad, x_grad = states.backward(states_grad.narrowed(1, c))
    diagonal_grad, weights_grad, more = diagonal.backward(grad)
    x_grad = elementwise(x_grad, more)
    scores_grad, more, key_grad = scores.backward(elementwise(weights_grad, lower))
    query_grad = elementwise(query_grad, more)
    key_grad = elementwise(elementwise(faded_grad, decays), key_grad)
    return Copies(
        scores=Folds(*scores.copies, scores_grad),
        diagonal=Folds(*diagonal.copies, diagonal_grad),
        states=Folds(*states.copies, states_copied),
        fresh=Folds(*fresh.copies, fresh_grad),
        read=Folds(*read.copies, read_grad),
        output=copied(output, (b * length * h * p,)),
        x=copied(x_grad, (b, length, h, p)),
        key=copied(key_grad, (b, length, h, n)),
        query=copied(query_grad, (b, length, h, n)),
    )


def _cumulate_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # cumsum_backward: grad.flip().cumsum().flip()
    flipped, summed = f.like(grad), f.like(grad)
    out = f.like(grad)
    del flipped, summed
    return (out,)


def cumsum(f: Tape, x: Tensor) -> Tensor:
    """``torch.cumsum``: saves nothing."""
    recorded = f.needs(x)
    out = f.like(x)
    return f.record(out, _cumulate_backward, (x,)) if recorded else out


def _spread_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)


def segment_sum(f: Tape, x: Tensor) -> Tensor:
    """segment_sum: x [..., l] -> [..., l, l], the sums between two positions."""
    length = x.shape[-1]
    wide = Tensor((*x.shape, length), x.dtype, x.storage)
    if f.needs(x):
        wide = f.record(wide, _spread_backward, (x,))
    x = masked_fill(f, wide, f.new((length, length), "bool"))
    sums = cumsum(f, x)
    return masked_fill(f, sums, f.new((length, length), "bool"))


def chunk_scan(
    f: Tape,
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    key: Tensor,
    query: Tensor,
    chunk: int,
    d: Tensor,
    dt_bias: Tensor,
    *,
    channels_first: bool = True,
) -> Tensor:
    """mamba2_chunk_scan: x [b, S, h, p], dt [b, S, h], decay [h], key and query [b, S, g, n] -> [b, S, h, p] in
    fp32.
    """
    b, s, h, p = x.shape
    n = key.shape[-1]
    padded = -(-s // chunk) * chunk
    c = padded // chunk
    dt = add(f, dt, cast(f, dt_bias, dt.dtype))
    if f.autocast is not None:
        dt = cast(f, dt, "fp32")
    dt = activation(f, dt)
    dt = clamp(f, dt)
    x = cast(f, x, "fp32")
    key = remade(f, cast(f, key, "fp32"), (b, s, h, n))
    query = remade(f, cast(f, query, "fp32"), (b, s, h, n))
    residual = mul(f, d.view(h, 1), remade(f, x, (b, padded, h, p)))
    x = mul(f, x, cast(f, dt.view(b, s, h, 1), "fp32"))
    decay = mul(f, cast(f, decay, "fp32"), cast(f, dt, "fp32"))
    copies = scan_copies(b, c, chunk, h, p, n, channels_first=channels_first)
    x, decay, key, query = [
        in_chunks(f, remade(f, t, (b, padded, *t.shape[2:])), (b, c, chunk, *t.shape[2:]), back)
        for t, back in ((x, copies.x), (decay, False), (key, copies.key), (query, copies.query))
    ]
    decay = decay.view(b, h, c, chunk)
    cumulated = cumsum(f, decay)
    lower = saving_output(f, segment_sum(f, decay))
    scores = einsum(f, query, key, (b, c, h, chunk, chunk), copies.scores)
    weights = mul(f, scores, lower.view(b, c, h, chunk, chunk))
    diagonal = einsum(f, weights, x, (b, c, h, chunk, p), copies.diagonal)
    last = slice_of(f, cumulated, (b, h, c, 1))
    decays = saving_output(f, subtract(f, last, cumulated))
    faded = mul(f, key, decays.view(b, c, chunk, h, 1))
    states = einsum(f, faded, x, (b, c, h, p, n), copies.states)
    previous = f.new((b, 1, h, p, n), states.dtype)
    states = cat(f, previous, states, shape=(b, c + 1, h, p, n))
    ends = remade(f, slice_of(f, cumulated, (b, h, c)), (b, h, c + 1))
    between = saving_output(f, segment_sum(f, ends))
    del ends
    fresh = einsum(f, between, states, (b, h, c + 1, p, n), copies.fresh)
    states = slice_of(f, fresh, (b, c, h, p, n))
    out_decay = saving_output(f, cumulated)
    read = einsum(f, query, states, (b, c, h, chunk, p), copies.read)
    other = mul(f, read, out_decay.view(b, c, h, chunk, 1))
    output = add(f, diagonal, other)
    if copies.output:
        output = copy(f, output)
    output = add(f, output.view(b, padded, h, p), residual)
    if padded > s:
        output = slice_of(f, output, (b, s, h, p))
    del diagonal, faded, previous, fresh, other, residual
    return output
