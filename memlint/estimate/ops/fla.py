"""Functions of flash-linear-attention: the gated delta rule, its short convolution, and the gated norm.

Source: fla-core 0.6.0 fla/ops/gated_delta_rule/chunk.py (ChunkGatedDeltaRuleFunction), chunk_fwd.py, wy_fast.py,
fla/ops/common/{chunk_delta_h,chunk_o}.py, fla/modules/norm/{l2norm,fused_norm_gate}.py and
fla/modules/causal_conv1d/ops.py. Letters: b batch, s positions, h heads of query and key, j heads of values.
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.mamba_kernels import weight_gradient

CHUNK = 64
"""chunk_size of chunk_gated_delta_rule, and of causal_conv1d."""


def _delta_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    # chunk_gated_delta_rule_bwd: its frame holds everything until it returns; then l2norm_bwd for query and key.
    (b, s, h, k), (_, _, j, v), dtype, rate_dtype = node.meta
    chunks = -(-s // CHUNK)
    keys, values, states = (b, s, j, k), (b, s, j, v), (b, chunks, j, k, v)
    frame = [f.new(keys, dtype), f.new(values, dtype), f.new(states, dtype), f.new(values, dtype)]  # w, u, h, v_new
    local = f.new(values, dtype)
    frame.append(f.new(states, dtype))  # dh
    dv = f.new(values, dtype)
    del local
    dq, dk = f.new(keys, dtype), f.new(keys, dtype)
    dg = f.new((b, s, j), "fp32")
    frame.append(f.new(keys, dtype))  # dw
    if h != j:
        dq = f.new((b, s, h, k), dtype)
        dk = f.new((b, s, h, k), dtype)
    dg = f.like(dg)
    second = f.new(keys, dtype)
    dv = f.new(values, dtype)
    frame += [f.new((b, s, j), "fp32")]
    db = f.new((b, s, j), rate_dtype)
    if h != j:
        second = f.new((b, s, h, k), dtype)
    dg = f.like(dg)
    frame.clear()
    del second
    dq = f.like(dq)
    dk = f.like(dk)
    return dq, dk, dv, dg, db


def chunk_gated_delta_rule(
    f: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    slices: tuple[bool, bool, bool] = (True, True, True),
) -> Tensor:
    """query and key [b, s, h, k], value [b, s, j, v], g and beta [b, s, j] -> [b, s, j, v] in query's dtype.

    ``slices``: which of query, key and value are parts of a wider tensor, and so copied (input_guard). Saves the
    normalised query and key with one fp32 value a row, the value, the cumulated gate in fp32, beta, and the solved
    triangle [b, s, j, 64] (chunk.py:310). States and corrected values are made again in backward.
    """
    b, s, j, v = value.shape
    k, dtype = query.shape[-1], query.dtype
    recorded = f.needs(query, key, value, g, beta)
    q, keys, values = [f.like(t) if part else t for t, part in zip((query, key, value), slices)]
    normed_q, root_q = f.like(q), f.new(q.shape[:-1], "fp32")
    normed_k, root_k = f.like(keys), f.new(keys.shape[:-1], "fp32")
    gate = f.like(g, "fp32")
    solved = f.new((b, s, j, CHUNK), dtype)
    frame = [f.new((b, s, j, k), dtype), f.like(values), f.new((b, -(-s // CHUNK), j, k, v), dtype), f.like(values)]
    out = f.new((b, s, j, v), dtype)
    frame.clear()
    if not recorded:
        return out
    saved = f.save(normed_q, root_q, normed_k, root_k, values, gate, beta, beta, solved)
    meta = (query.shape, value.shape, dtype, beta.dtype)
    return f.record(out, _delta_backward, (query, key, value, g, beta), saved, meta)


def _convolution_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # causal_conv1d_bwd: dw and db in fp32 for every chunk, then summed.
    (b, channels, s), width = node.meta
    chunks = b * -(-s // CHUNK)
    dx = f.like(grad)
    parts = f.new((chunks, channels, width), "fp32")
    summed = weight_gradient(f, node, 1)
    del parts
    return dx, summed, weight_gradient(f, node, 2)


def short_convolution(f: Tape, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """causal_conv1d with its activation: x [b, channels, s] -> the same; saves x and the weights (ops.py:957)."""
    recorded = f.needs(x, weight, bias)
    saved = f.save(x, weight, bias) if recorded else ()
    out = f.like(x)
    if not recorded:
        return out
    return f.record(out, _convolution_backward, (x, weight, bias), saved, (x.shape, weight.shape[-1]))


def _gated_norm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    (shape, dtype), (gate_shape, gate_dtype), _ = node.shapes
    return f.new(shape, dtype), f.new(gate_shape, gate_dtype), weight_gradient(f, node, 2)


def gated_norm(f: Tape, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """FusedRMSNormGated: saves x, the gate, the weight and one fp32 value a row (fused_norm_gate.py:667)."""
    recorded = f.needs(x, gate, weight)
    out = f.like(x)
    root = f.new(x.shape[:-1], "fp32")
    if not recorded:
        return out
    return f.record(out, _gated_norm_backward, (x, gate, weight), f.save(x, gate, weight, root))
