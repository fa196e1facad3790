"""Attention with a bias that may be trained: added to eager's scores, or a float mask of the memory-efficient
kernel.
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.attention import efficient_scratch, softmax
from memlint.estimate.ops.basic import add, copy, dropout, scale
from memlint.estimate.ops.linear import matmul, to_autocast

BUCKET_SCRATCH = 53
"""Bytes an element of [T, T] that _relative_position_bucket holds at once: six int64, one fp32, one bool."""


def eager_biased(
    f: Tape, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, p: float, *, joined: bool = False
) -> tuple[Tensor, Tensor]:
    """T5's eager_attention_forward: q [B, h, T, D], k and v [B, h, S, D] -> [B, T, h*D], attention weights."""
    b, heads, length, _ = q.shape
    loose = b > 1
    weights = scale(f, matmul(f, q, k, k.shape[2], copy_a=loose, copy_b=loose and not joined))
    weights = add(f, weights, bias)
    if mask is not None:
        weights = add(f, weights, mask)
    weights = softmax(f, weights)
    weights = dropout(f, weights, p)
    out = matmul(f, weights, v, v.shape[-1], copy_b=loose and not joined)
    out = copy(f, out)
    return out.view(b, length, heads * v.shape[-1]), weights


def _biased_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # _scaled_dot_product_efficient_attention_backward: gradients of q, k, v and, where it is trained, of the whole
    # bias in rows of a multiple of 16, which expand's backward then sums over the batch.
    scratch = f.new((node.meta,), "uint8")
    grads: list[Tensor | None] = [f.new(shape, dtype) for shape, dtype in node.shapes[:3]]
    q, k = node.shapes[0][0], node.shapes[1][0]
    grads.append(f.new((q[0], q[1], q[2], -(-k[2] // 16) * 16), grad.dtype) if node.edges[3] is not None else None)
    del scratch
    return tuple(grads)


def biased_attention(f: Tape, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The memory-efficient kernel with a float mask [1, h, T, S]: saves q, k, v, the mask, the output and
    log-sum-exp.
    """
    bias = to_autocast(f, bias)
    v = to_autocast(f, v)
    k = to_autocast(f, k)
    q = to_autocast(f, q)
    b, heads, length, _ = q.shape
    wide = -(-k.shape[2] // 16) * 16
    if wide != k.shape[2]:
        # pad_bias (attention.cpp, torch 2.13): the kernel reads rows of the bias in multiples of 16.
        padded = f.new((*bias.shape[:-1], wide), bias.dtype)
        bias = f.record(padded, _narrowed, (bias,), (), bias.shape) if f.needs(bias) else padded
    if f.needs(bias):
        bias = f.record(bias.view(b, *bias.shape[1:]), _anchored_backward, (bias,))
    recorded = f.needs(q, k, v, bias)
    saved = f.save(q, k, v, bias) if recorded else ()
    out = f.new((b, length, heads, v.shape[-1]), q.dtype)
    # attention_forward.cu rounds the queries of its log-sum-exp up to 32 (kAlignLSE).
    lse = f.new((b, heads, -(-length // 32) * 32), "fp32")
    seed, offset = f.new((), "int64"), f.new((), "int64")
    if recorded:
        saved += f.save(out, lse, seed, offset)
        f.record(out, _biased_backward, (q, k, v, bias), saved, efficient_scratch(q, k))
    return out.view(b, length, heads * v.shape[-1])


def _narrowed(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # slice's backward goes into zeros as wide as what was padded, of which the padding's keeps a part.
    zeros = f.like(grad)
    narrow = f.new(node.meta, grad.dtype)
    del zeros
    return (narrow,)


def _anchored_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def passed(f: Tape, x: Tensor, held: tuple[Tensor, ...]) -> tuple[Tensor, Node | None]:
    """x, whose history holds other tensors; and the node that does, the last one of a block's backward."""
    if not f.needs(x):
        return x, None
    node = f.record(x.detach(), _anchored_backward, (x,), held)
    return node, node.node  # type: ignore[return-value]


def anchored(f: Tape, x: Tensor, made: tuple[Shape, str], history: Node | None) -> tuple[Tensor, Tensor]:
    """x, with buckets [T, T] that live as long as its history does; and the bias made again, over the first one's
    history.
    """
    shape, dtype = made
    again = f.new(shape, dtype)
    again.node = history
    if history is None:
        # A frozen table: its lookup keeps nothing.
        return x, again
    buckets = f.new(shape[2:], "int64")
    out = x.detach()
    if f.needs(x):
        f.record(out, _anchored_backward, (x,), (buckets,))
    return out, again
