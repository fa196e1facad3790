"""State-space operations as transformers runs them in PyTorch, without the mamba-ssm and causal-conv1d packages.

Source: transformers 5.24 models/mamba/modeling_mamba.py (causal_conv1d_fn, mamba_selective_scan). The sequential scan
keeps the state [B, I, N] of every position: its memory is what makes the slow path so much heavier than the kernels.
"""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import GRADIENTS, rounded
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import cast, slice_of
from memlint.estimate.ops.linear import Weight, cast_weight, to_autocast
from memlint.units import DTYPE_BYTES


def _repack_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)


def repack(f: Tape, x: Tensor, shape: Shape | None = None) -> Tensor:
    """A copy into another order of dimensions whose gradient has to be copied back."""
    recorded = f.needs(x)
    out = f.new(shape or x.shape, x.dtype)
    return f.record(out, _repack_backward, (x,)) if recorded else out


def _convolution_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # convolution_backward: gradients of input, weight and bias in one call.
    parts: list[Tensor | None] = []
    for index, (edge, (shape, _)) in enumerate(zip(node.edges, node.shapes)):
        parts.append(f.new(shape, grad.dtype, None if index == 0 else GRADIENTS) if edge is not None else None)
    return tuple(parts)


def causal_convolution(f: Tape, x: Tensor, weight: Weight, bias: Weight | None) -> Tensor:
    """Depthwise ``F.conv1d(x, weight, bias, padding=k - 1)[:, :, :S]``: x [B, C, S]; saves x and the weight."""
    x = to_autocast(f, cast(f, x, weight.dtype))
    # The models give it a view of their weight, and autocast caches none of a view.
    kernel, offset = cast(f, weight, f.autocast or weight.dtype), cast_weight(f, bias)
    recorded = f.needs(x, kernel, offset)
    saved = f.save(x, kernel) if recorded else ()
    out = f.new((*x.shape[:-1], x.shape[-1] + weight.shape[-1] - 1), x.dtype)
    if recorded:
        inputs = (x, kernel) if offset is None else (x, kernel, offset)
        out = f.record(out, _convolution_backward, inputs, saved)
    return slice_of(f, out, x.shape)


def _scan_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # From the last position to the first: each step frees its saved states, and select_backward makes a full-sized
    # gradient of dA and dB u that is added into the first one.
    (b, i, s, n), half = node.meta
    step: Shape = (b, i, n)
    saved = list(node.saved)
    node.saved = ()
    grad_c = f.new((b, s, n), grad.dtype)
    full: Shape = (b, i, s, n)
    grad_u: Tensor | None = None
    grad_a: Tensor | None = None
    carried: Tensor | None = None
    for _ in range(min(s, 2)):
        arriving = f.new(step, grad.dtype)
        if len(saved) > 1:
            saved.pop()
        if half:
            arriving = f.new(step, "fp32")
        if carried is not None:
            arriving = carried
        more = f.new(full, "fp32")
        if grad_u is None:
            grad_u = more
        del more
        carried, product = f.new(step, "fp32"), f.new(step, "fp32")
        del arriving
        if half and len(saved) > 1:
            saved.pop()
        more = f.new(full, "fp32")
        del product
        if grad_a is None:
            grad_a = more
        del more
    saved.clear()
    del carried
    assert grad_a is not None and grad_u is not None
    return grad_a, grad_u, grad_c


def _uncast_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], node.shapes[0][1]),)


def _cast_by_position(f: Tape, c: Tensor, dtype: str) -> Tensor:
    """c [B, S, N] as autocast casts it for S products: one small tensor each."""
    b, s, n = c.shape
    recorded = f.needs(c)
    out = f.new((s * rounded(b * n * DTYPE_BYTES[dtype]),), "uint8")
    out = Tensor(c.shape, dtype, out.storage)
    return f.record(out, _uncast_backward, (c,)) if recorded else out


def scan(f: Tape, decay: Tensor, update: Tensor, c: Tensor, dtype: str) -> tuple[Tensor, list[Tensor]]:
    """``state = decay[:, :, t] * state + update[:, :, t]; y_t = state @ c_t`` for every t.

    decay and update [B, I, S, N] fp32, c [B, S, N] -> y [B, I, S] in ``dtype``, or autocast's, and what the caller's
    frame still holds: the last state and the outputs of the single positions.
    """
    b, i, s, n = decay.shape
    step: Shape = (b, i, n)
    recorded = f.needs(decay, update, c)
    first = f.new(step, dtype)
    # Under autocast, where a 4-bit layer has kept fp32, each position's product casts both of its factors.
    dtype = f.autocast or dtype
    half = dtype != "fp32"
    if recorded and c.dtype != dtype:
        c = _cast_by_position(f, c, dtype)
    held: list[Tensor] = []
    parts = f.new((s * rounded(b * i * DTYPE_BYTES[dtype]),), "uint8")
    if not recorded:
        held.append(f.new(step, "fp32"))
    else:
        # Positions whose states go in the first two steps of backward stand alone; the rest is one block. In half
        # precision each position keeps its state in fp32 for the next one and in half for the product with c.
        alone = min(s - 1, 2) if half else min(s, 2)
        bulk = first.size + rounded(4 * prod(step)) * ((s - 1 if half else s) - alone)
        if half:
            bulk += rounded(2 * prod(step)) * (s - alone)
        # Where nothing is kept each state goes with the next one.
        kept: list[Tensor] = [f.buffer(bulk, hollow=first.size)]
        product = f.new(step, "fp32")
        for _ in range(alone):
            kept.append(f.new(step, "fp32"))
            if half:
                kept.append(f.new(step, dtype))
        del product
        if half:
            held.append(f.new(step, "fp32"))
        saved = f.save(decay, c, *kept)
        del kept
    out = f.new((b, i, s), dtype)
    held.append(parts)
    if recorded:
        out = f.record(out, _scan_backward, (decay, update, c), saved, ((b, i, s, n), half))
    return out, held
