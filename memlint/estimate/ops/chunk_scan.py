"""The chunked state-space scan of Mamba-2 in PyTorch: mamba2, bamba, granitemoehybrid, falcon_h1, nemotron_h, zamba2.

Source: transformers 5.24 models/mamba2/modeling_mamba2.py (mamba2_chunk_scan). Heaviest are the decay matrices
[B, h, chunks, chunk, chunk] in fp32, so memory grows with tokens times chunk_size times heads. Letters: b batch, c
chunks, l and s positions in a chunk, h heads, p head_dim, n state.
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import activation, add, cast, cat, copy, mul, saving_output, slice_of
from memlint.estimate.ops.gather import clamp, masked_fill, subtract
from memlint.estimate.ops.linear import to_autocast


def _new_shape_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)


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


def einsum(
    f: Tape, a: Tensor, b: Tensor, shape: Shape, *, copies: tuple[bool, bool] = (True, True), grad_copy: bool = True
) -> Tensor:
    """``torch.einsum`` of two tensors through bmm: operands whose dimensions cannot be folded are copied first."""
    left = copy(f, a) if copies[0] else a
    right = copy(f, b) if copies[1] else b
    left, right = to_autocast(f, left), to_autocast(f, right)
    recorded = f.needs(left, right)
    saved = f.save(left, right) if recorded else ()
    out = f.new(shape, left.dtype)
    if not recorded:
        return out
    out = f.record(out, _product_backward, (left, right), saved)
    return copied_back(f, out, shape) if grad_copy else out


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
    x, decay, key, query = [
        copied_back(f, remade(f, t, (b, padded, *t.shape[2:])), (b, c, chunk, *t.shape[2:]))
        for t in (x, decay, key, query)
    ]
    decay = decay.view(b, h, c, chunk)
    cumulated = cumsum(f, decay)
    lower = saving_output(f, segment_sum(f, decay))
    scores = einsum(f, query, key, (b, c, h, chunk, chunk), grad_copy=False)
    weights = mul(f, scores, lower.view(b, c, h, chunk, chunk))
    diagonal = einsum(f, weights, x, (b, c, h, chunk, p), copies=(False, True))
    last = slice_of(f, cumulated, (b, h, c, 1))
    decays = saving_output(f, subtract(f, last, cumulated))
    faded = mul(f, key, decays.view(b, c, chunk, h, 1))
    states = einsum(f, faded, x, (b, c, h, p, n))
    previous = f.new((b, 1, h, p, n), states.dtype)
    states = cat(f, previous, states, shape=(b, c + 1, h, p, n))
    ends = remade(f, slice_of(f, cumulated, (b, h, c)), (b, h, c + 1))
    between = saving_output(f, segment_sum(f, ends))
    del ends
    fresh = einsum(f, between, states, (b, h, c + 1, p, n), copies=(False, True))
    states = slice_of(f, fresh, (b, c, h, p, n))
    out_decay = saving_output(f, cumulated)
    read = einsum(f, query, states, (b, c, h, chunk, p))
    other = mul(f, read, out_decay.view(b, c, h, chunk, 1))
    output = copy(f, add(f, diagonal, other)).view(b, padded, h, p)
    output = add(f, output, residual)
    if padded > s:
        output = slice_of(f, output, (b, s, h, p))
    del diagonal, faded, previous, fresh, other, residual
    return output
