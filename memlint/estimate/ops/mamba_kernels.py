"""Functions of causal-conv1d and of mamba-ssm's first generation.

Source: causal-conv1d 1.7.0 causal_conv1d/causal_conv1d_interface.py, cpp_functions.py; mamba-ssm 2.3.2
mamba_ssm/ops/selective_scan_interface.py and csrc/selective_scan/selective_scan.cpp. Letters: b batch, i inner width,
s positions, n state.
"""

from __future__ import annotations

from memlint.estimate.engine.pool import GRADIENTS
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.linear import Weight

CHUNK = 2048
"""Positions between two states that the scan keeps (selective_scan.cpp, n_chunks)."""


def causal_conv(f: Tape, x: Tensor, weight: Weight, bias: Weight | None) -> Tensor:
    """causal_conv1d_fn with or without its activation: x [b, channels, s] -> the same, in x's dtype.

    One kernel; saves x and the weights (causal_conv1d_interface.py:56).
    """
    recorded = f.needs(x, weight, bias)
    saved = f.save(x, weight, bias) if recorded else ()
    out = f.like(x)
    return f.record(out, _conv_backward, (x, weight, bias), saved) if recorded else out


def weight_gradient(f: Tape, node: Node, index: int, dtype: str = "") -> Tensor | None:
    """The gradient of one parameter, which a Function makes whether it is wanted or not; None without a parameter."""
    shape, own = node.shapes[index]
    if not own:
        return None
    return f.new(shape, dtype or own, None if node.edges[index] is None else GRADIENTS)


def _conv_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    return f.like(grad), weight_gradient(f, node, 1), weight_gradient(f, node, 2)


def _scanned(f: Tape, b: int, i: int, s: int, n: int, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """selective_scan_cuda.fwd with a gate: its output before the gate, the states of every 2048th position, and the
    output.
    """
    out = f.new((b, i, s), dtype)
    states = f.new((b, i, -(-s // CHUNK), 2 * n), "fp32")
    return out, states, f.new((b, i, s), dtype)


def _scan_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    (b, i, s, n), dtype = node.meta
    arriving = f.like(grad)
    dz = f.new((b, i, s), dtype)
    du, step = f.new((b, i, s), dtype), f.new((b, i, s), dtype)
    decay = f.new((i, n), "fp32")
    sums = f.new((b, n, s), "fp32"), f.new((b, n, s), "fp32")
    d, bias = f.new((i,), "fp32"), f.new((i,), "fp32")
    key, query = f.new((b, n, s), dtype), f.new((b, n, s), dtype)
    del arriving, sums
    return du, step, decay, key, query, d, dz, bias


def selective_scan(
    f: Tape,
    u: Tensor,
    step: Tensor,
    decay: Tensor,
    key: Tensor,
    query: Tensor,
    d: Tensor,
    gate: Tensor,
    bias: Tensor,
) -> Tensor:
    """selective_scan_fn: u, step and gate [b, i, s], decay [i, n], key and query [b, s, n] -> [b, i, s].

    Input, gate, key and query lie with the positions first and are copied; the copies, the step, the states and the
    output before the gate are saved (selective_scan_interface.py:54).
    """
    b, i, s = u.shape
    n = key.shape[-1]
    recorded = f.needs(u, step, decay, key, query, d, gate, bias)
    kept = [f.like(u), f.like(key), f.like(query), f.like(gate)]
    before, states, out = _scanned(f, b, i, s, n, step.dtype)
    if not recorded:
        return out
    saved = f.save(kept[0], step, decay, kept[1], kept[2], d, kept[3], bias, states, before)
    del kept, before, states
    inputs = (u, step, decay, key, query, d, gate, bias)
    return f.record(out, _scan_backward, inputs, saved, ((b, i, s, n), step.dtype))


def halved(f: Tape, weight: Tensor) -> Tensor:
    """``weight.to(torch.get_autocast_gpu_dtype())`` under autocast: a copy outside autocast's cache."""
    if f.autocast is None or weight.dtype == f.autocast:
        return weight
    return f.new(weight.shape, f.autocast)


def _inner_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # The convolution and the step are computed again (checkpoint_lvl 1). Every gradient is made, wanted or not.
    (b, i, s, n, rank), dtype, norms = node.meta
    inner, rows = (b, i, s), b * s
    convolved, step = f.new(inner, dtype), f.new(inner, dtype)
    if norms:
        step = _renormed(f, step)
    dxz = f.new((b, 2 * i, s), dtype)
    dy = f.new(inner, dtype)
    du, dstep = f.new(inner, dtype), f.new(inner, dtype)
    decay = f.new((i, n), "fp32")
    sides = [f.new((b, n, s), "fp32"), f.new((b, n, s), "fp32")]
    d, offset = f.new((i,), "fp32"), f.new((i,), "fp32")
    gated = f.new(inner, dtype)
    out_weight, out_bias = weight_gradient(f, node, 5, dtype), weight_gradient(f, node, 6, dtype)
    dbl = f.new((rows, rank + 2 * n), dtype)
    sides.clear()
    step_weight = weight_gradient(f, node, 4, dtype)
    mixed = f.new((rows, i), dtype) if b > 1 else convolved
    x_weight = weight_gradient(f, node, 3, dtype)
    del mixed
    kernel, kernel_bias = weight_gradient(f, node, 1), weight_gradient(f, node, 2)
    del convolved, step, dy, du, dstep, gated, dbl
    return dxz, kernel, kernel_bias, x_weight, step_weight, out_weight, out_bias, decay, d, offset


def _renormed(f: Tape, step: Tensor) -> Tensor:
    # dt_rms_weight: rearranged, normalised, and rearranged back, a copy each.
    turned = f.like(step)
    del step
    normed = f.like(turned)
    root = f.new((turned.shape[0] * turned.shape[2],), "fp32")
    del turned, root
    return f.like(normed)


def mamba_inner(
    f: Tape,
    projected: Tensor,
    conv: Weight,
    conv_bias: Weight | None,
    x_proj: Weight,
    dt_proj: Weight,
    out_proj: Weight,
    out_bias: Weight | None,
    decay: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    *,
    norms: bool = False,
) -> Tensor:
    """mamba_inner_fn: everything from the input projection [b, 2i, s] to the output projection [b, s, H].

    Saves a copy of the projection with the positions last, x_proj's result, B and C, the states of every 2048th
    position and the output before the gate, and under autocast half copies of three weights
    (selective_scan_interface.py:275, checkpoint_lvl 1). ``norms``: falcon_mamba normalises B, C and the step inside.
    """
    b, both, s = projected.shape
    i, n, dtype = both // 2, decay.shape[-1], projected.dtype
    rank = dt_proj.shape[-1]
    inputs = (projected, conv, conv_bias, x_proj, dt_proj, out_proj, out_bias, decay, d, dt_bias)
    recorded = f.needs(*inputs)
    weights = [halved(f, x_proj), halved(f, dt_proj), halved(f, out_proj)]
    offset = None if out_bias is None else halved(f, out_bias)
    xz = f.like(projected)
    convolved = f.new((b, i, s), dtype)
    rows = f.new((b * s, i), dtype) if b > 1 else None
    dbl = f.new((b * s, rank + 2 * n), dtype)
    del rows
    step = f.new((b, i, s), dtype)
    key, query = f.new((b, n, s), dtype), f.new((b, n, s), dtype)
    if norms:
        step = _renormed(f, step)
    before, states, gated = _scanned(f, b, i, s, n, dtype)
    del convolved, step
    rows = f.new((b, s, i), dtype) if b > 1 else None
    out = f.new((b, s, out_proj.shape[0]), weights[2].dtype)
    del rows, gated, offset
    if not recorded:
        return out
    saved = f.save(
        xz, conv, conv_bias, dbl, weights[0], weights[1], weights[2], decay, key, query, d, dt_bias, states, before
    )
    return f.record(out, _inner_backward, inputs, saved, ((b, i, s, n, rank), dtype, norms))
