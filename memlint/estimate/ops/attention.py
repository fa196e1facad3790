"""Attention kernels: eager as transformers composes it, and scaled_dot_product_attention's three back ends."""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, copy, dropout, expand_copy, saving_output, scale
from memlint.estimate.ops.linear import matmul, to_autocast


def repeat_kv(f: Tape, x: Tensor, heads: int) -> Tensor:
    """``repeat_kv``: [B, kv, S, D] -> [B, heads, S, D], a copy when kv differs from heads."""
    b, kv, s, d = x.shape
    return x if kv == heads else expand_copy(f, x, (b, heads, s, d))


def _softmax_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def _softmax_backward_in_half(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # _softmax_backward_data is given the input's dtype.
    return (f.new(grad.shape, "fp16"),)


def softmax(f: Tape, x: Tensor, dtype: str | None = None) -> Tensor:
    """``F.softmax``: saves its result; with ``dtype`` the input is converted first, but fp16 to fp32, which the kernel
    does itself (aten SoftMax.cpp, torch 2.13).

    Under autocast softmax is on the fp32 list, by its ``dtype`` (autocast_mode.h fp32_set_opt_dtype).
    """
    if f.autocast is not None and dtype is None:
        dtype = "fp32"
    if x.dtype == "fp16" and dtype == "fp32":
        recorded = f.needs(x)
        out = f.new(x.shape, dtype)
        return f.record(out, _softmax_backward_in_half, (x,), f.save(out)) if recorded else out
    converted = cast(f, x, dtype or x.dtype)
    recorded = f.needs(converted)
    out = f.like(converted)
    return f.record(out, _softmax_backward, (converted,), f.save(out)) if recorded else out


def eager_attention(
    f: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    p: float = 0.0,
    *,
    fp32_softmax: bool = True,
    softcap: bool = False,
    joined: bool = False,
) -> tuple[Tensor, Tensor]:
    """transformers' eager_attention_forward: q [B, h, S, D], k, v [B, kv, S, D] -> [B, S, h*D], attention weights.

    Source: models/llama/modeling_llama.py of transformers 5.24. ``matmul`` copies operands whose batch and head
    dimensions cannot be folded: with B > 1 every projection that is a transposed view of [B, S, h, D], not keys and
    values that were ``joined``, so that they are contiguous.
    """
    b, heads, s, d = q.shape
    folds = b == 1
    repeated = joined or k.shape[1] not in (1, heads)
    dtype = q.dtype
    keys = repeat_kv(f, k, heads)
    values = repeat_kv(f, v, heads)
    length = keys.shape[2]
    weights = matmul(f, q, keys, length, copy_a=not folds, copy_b=not folds and not repeated)
    weights = scale(f, weights)
    if softcap:
        # gemma2: weights / cap, tanh, * cap
        weights = scale(f, weights)
        weights = saving_output(f, weights)
        weights = scale(f, weights)
    if mask is not None:
        weights = add(f, weights, mask)
    if fp32_softmax:
        weights = cast(f, softmax(f, weights, "fp32"), dtype)
    else:
        weights = softmax(f, weights)
    weights = dropout(f, weights, p)
    out = matmul(f, weights, values, values.shape[-1], copy_b=not folds and not repeated)
    out = copy(f, out)
    return out.view(b, s, heads * d), weights


def _fused_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # _scaled_dot_product_flash_attention_backward / _efficient_: gradients of q, k, v; with grouped heads the kernel
    # writes expanded dk and dv and sums them (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp).
    scratch = f.new((node.meta,), "uint8") if node.meta else None
    grads = tuple(f.new(shape, dtype) for shape, dtype in node.shapes[:3])
    if len(node.edges) > 3:
        # The gradient of a mask that trains, for every row and head; it is summed where the mask was expanded.
        (b, heads, s, _), (shape, dtype) = node.shapes[0][0], node.shapes[3]
        grads += (f.new((b, heads, s, shape[-1]), dtype),)
    del scratch
    return grads


def _narrowed(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def fused_attention(
    f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, efficient: bool = False
) -> Tensor:
    """Flash or memory-efficient kernel: saves q, k, v, the output, one fp32 log-sum-exp per query and head, and the
    random state of its dropout (two numbers, whether it drops out or not)."""
    b, heads, s, _ = q.shape
    recorded = f.needs(q, k, v)
    if mask is not None and mask.dtype == "bool":
        # convert_boolean_attn_mask (attention.cpp, torch 2.13): where(mask, 0, -inf) in q's dtype, made in every layer.
        mask = f.new(mask.shape, q.dtype)
    if mask is not None and efficient and mask.shape[-1] % 16:
        # pad_bias (attention.cpp, torch 2.13): the kernel reads rows of the mask in multiples of 16.
        padded = f.new((*mask.shape[:-1], -(-mask.shape[-1] // 16) * 16), mask.dtype)
        mask = f.record(padded, _narrowed, (mask,), (), mask.shape) if f.needs(mask) else padded
    saved = f.save(q, k, v, mask) if recorded else ()
    out = f.output("attention", (b, s, heads, v.shape[-1]), q.dtype)
    # attention_forward.cu (torch 2.13) rounds the queries of its log-sum-exp up to 32 (kAlignLSE).
    lse = f.output("attention", (b, heads, -(-s // 32) * 32 if efficient else s), "fp32")
    seed, offset = f.output("attention", (), "int64"), f.output("attention", (), "int64")
    if not recorded:
        return out
    saved += f.save(out, lse, seed, offset)
    scratch = efficient_scratch(q, k) if efficient else backward_scratch(q, k)
    inputs = (q, k, v) if mask is None or mask.node is None else (q, k, v, mask)
    return f.record(out, _fused_backward, inputs, saved, scratch)


def efficient_scratch(q: Tensor, k: Tensor) -> int:
    """Bytes of scratch inside the memory-efficient backward kernel.

    attention_backward.cu (torch 2.13): delta [B, h, S] fp32 and, for 16-bit inputs, fp32 accumulators of the gradients
    of q, k and v.
    """
    b, heads, s, d = q.shape
    total = b * heads * s * 4
    return total if q.dtype == "fp32" else total + b * heads * (s + 2 * k.shape[2]) * d * 4


def backward_scratch(q: Tensor, k: Tensor) -> int:
    """Bytes of scratch inside the fused backward kernels.

    flash_attn 2 (mha_bwd in flash_api.cpp): softmax_d [B, h, S rounded to 128] fp32 and dq_accum [B, h, S, D rounded to
    32] fp32; grouped heads add expanded dk and dv in the inputs' dtype.
    """
    b, heads, s, d = q.shape
    rounded_s = -(-s // 128) * 128
    rounded_d = -(-d // 32) * 32
    total = b * heads * rounded_s * 4 * (1 + rounded_d)
    if k.shape[1] != heads:
        total += 2 * b * k.shape[2] * heads * d * 2
    return total


def _interleave(f: Tape, x: Tensor, heads: int) -> Tensor:
    """repeat_interleave of heads inside the math kernel: always a copy."""
    b, kv, s, d = x.shape
    return expand_copy(f, x.view(b, kv, s, d), (b, heads, s, d)) if kv > 1 else copy(f, x, (b, heads, s, d))


def math_attention(
    f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float = 0.0, *, causal: bool
) -> Tensor:
    """The math back end: q and k scaled by the root of the scale, S x S weights kept (attention.cpp, sdp math)."""
    b, heads, s, _ = q.shape
    if k.shape[1] != heads:
        k = _interleave(f, k, heads)
        v = _interleave(f, v, heads)
    if causal and mask is None:
        allowed = f.new((s, k.shape[2]), "bool")
        mask = f.new((s, k.shape[2]), q.dtype)
        del allowed
    q = scale(f, q)
    k = scale(f, k)
    weights = matmul(f, q, k, k.shape[2], copy_a=b > 1, copy_b=b > 1)
    if mask is not None:
        weights = add(f, weights, mask)
    weights = softmax(f, weights)
    weights = dropout(f, weights, p)
    out = matmul(f, weights, v, v.shape[-1], copy_b=b > 1)
    return copy(f, out)


def sdpa_backend(dtype: str, head_dim: int, *, mask: bool, grouped: bool, capability: tuple[int, int] | None) -> str:
    """Kernel that scaled_dot_product_attention picks on CUDA: flash, efficient or math.

    Rules of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (torch 2.13): flash needs half precision, no mask, a
    head_dim up to 256 and compute capability 8.0; memory-efficient takes fp32 and masks but not grouped heads; math
    takes the rest. Read from the source and confirmed on traces, not run on a GPU here.
    """
    ampere = capability is None or capability >= (8, 0)
    if dtype in ("bf16", "fp16") and not mask and head_dim <= 256 and ampere:
        return "flash"
    if grouped:
        return "math"
    if dtype == "bf16" and not ampere:
        return "math"
    return "efficient"


def sdpa(
    f: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = True,
    capability: tuple[int, int] | None = None,
    force: str | None = None,
    dense: bool = False,
    p: float = 0.0,
) -> Tensor:
    """transformers' sdpa_attention_forward (integrations/sdpa_attention.py, 5.24): [B, h, S, D] -> [B, S, h*D].

    Grouped heads go to the kernel as they are only without a mask and up to head_dim 256; otherwise K and V are
    repeated. ``force``: ``flash`` for flash_attention_2, which takes grouped heads and windows natively.
    """
    b, heads, s, d = q.shape
    if force is None and k.shape[1] != heads and not (mask is None and d == v.shape[-1] <= 256):
        # Python repeats what the operator, inside, casts: a single head stays a view until its cast makes it whole.
        k, v = repeat_kv(f, k, heads), repeat_kv(f, v, heads)
    if force == "flash" and f.autocast is None and q.dtype == "fp32":
        # The kernel has no fp32: transformers casts to the model's dtype (integrations/flash_attention.py).
        q, k, v = cast(f, q, "bf16"), cast(f, k, "bf16"), cast(f, v, "bf16")
    q, k, v = to_autocast(f, q), to_autocast(f, k), to_autocast(f, v)
    if mask is not None:
        mask = to_autocast(f, mask)
    grouped = k.shape[1] != heads
    kernel = force or sdpa_backend(q.dtype, d, mask=mask is not None, grouped=grouped, capability=capability)
    if kernel == "math":
        out = math_attention(f, q, k, v, mask, p, causal=causal)
    else:
        out = fused_attention(f, q, k, v, mask, efficient=kernel == "efficient")
        if dense and kernel == "flash" and b * s > 1:
            # flash lays its output out as q is; then transpose(1, 2).contiguous() is a copy (flash_api.cpp
            # empty_like(q)).
            out = copy(f, out)
    return out.view(b, s, prod(out.shape) // (b * s))
