"""Choosing rows and values by index: gather of rows, top-k, and the small in-place division of router weights.

The gradient of a choice is zeros of the full shape into which the chosen gradients are put. On real tensors that
happens in place; a trace on fake tensors makes the zeros and the result two tensors (``areAnyTensorSubclassLike`` in
torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native/ReduceOpsUtils, 2.13). The reference figures are made
so; the zeros count as DECOMPOSED, like silu's temporaries, and are left out of the lower bound.
"""

from __future__ import annotations

from memlint.estimate.engine.pool import DECOMPOSED
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import broadcast, promoted


def _put_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    zeros = None if f.one_kernel_silu else f.new(node.meta, grad.dtype, DECOMPOSED)
    out = f.new(node.meta, grad.dtype)
    del zeros
    return (out,)


def index_rows(f: Tape, x: Tensor, index: Tensor) -> Tensor:
    """``x[index]`` along the first dimension: a copy of the chosen rows; saves the index (index.Tensor)."""
    recorded = f.needs(x)
    saved = f.save(index) if recorded else ()
    out = f.new((*index.shape, *x.shape[1:]), x.dtype)
    return f.record(out, _put_backward, (x,), saved, x.shape) if recorded else out


def take(f: Tape, x: Tensor, index: Tensor) -> Tensor:
    """``x.gather(-1, index)``: one value for each index; saves the index (gather)."""
    recorded = f.needs(x)
    saved = f.save(index) if recorded else ()
    out = f.new(index.shape, x.dtype)
    return f.record(out, _put_backward, (x,), saved, x.shape) if recorded else out


def topk(f: Tape, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``torch.topk(x, k, dim=-1)``: values and int64 indices, which it saves."""
    recorded = f.needs(x)
    shape = (*x.shape[:-1], k)
    values, indices = f.new(shape, x.dtype), f.new(shape, "int64")
    if recorded:
        f.record(values, _put_backward, (x,), f.save(indices), x.shape)
    return values, indices


def _expand_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # sum_backward: the gradient expanded, a view.
    return (Tensor(node.meta, grad.dtype, grad.storage),)


def sum_last(f: Tape, x: Tensor) -> Tensor:
    """``x.sum(-1, keepdim=True)``: saves nothing; the gradient is a view."""
    recorded = f.needs(x)
    out = f.new((*x.shape[:-1], 1), x.dtype)
    return f.record(out, _expand_backward, (x,), (), x.shape) if recorded else out


def _divide_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # div_tensor_other_backward, which DivBackward0 runs first: -grad * ((self / other) / other), one C++ expression,
    # whose three temporaries live until its end; then div_tensor_self_backward: grad / other.
    first, second = node.edges
    other = None
    if second is not None:
        negative = f.like(grad)
        once = f.like(grad)
        twice = f.like(grad)
        other = f.like(grad)
        del negative, once, twice
    return f.like(grad) if first is not None else None, other


def divide_in_place(f: Tape, x: Tensor, divisor: Tensor) -> Tensor:
    """``x /= divisor``: the same storage; the old value is cloned and saved for the divisor's gradient."""
    if not f.needs(x, divisor):
        return x
    saved = f.save(f.like(x), divisor)
    return f.record(Tensor(x.shape, x.dtype, x.storage), _divide_backward, (x, divisor), saved)


def divide(f: Tape, x: Tensor, divisor: Tensor) -> Tensor:
    """``x / divisor`` of two tensors: saves both."""
    recorded = f.needs(x, divisor)
    saved = f.save(x, divisor) if recorded else ()
    out = f.new(x.shape, promoted(x, divisor))
    return f.record(out, _divide_backward, (x, divisor), saved) if recorded else out


def normalised(f: Tape, x: Tensor) -> Tensor:
    """``x /= x.sum(-1, keepdim=True)``."""
    return divide_in_place(f, x, sum_last(f, x))


def _grouped_sum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # The expanded gradient of sum(dim=1) has to be copied to be seen as [T * k, H] (view_backward: reshape).
    shape: Shape = node.meta
    return (f.new(shape, grad.dtype),)


def sum_groups(f: Tape, x: Tensor, groups: int) -> Tensor:
    """``x.view(T, k, H).sum(dim=1)`` of x [T * k, H]."""
    recorded = f.needs(x)
    out = f.new((x.shape[0] // groups, *x.shape[1:]), x.dtype)
    return f.record(out, _grouped_sum_backward, (x,), (), x.shape) if recorded else out


def _one_like_grad(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def masked_fill(f: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """``x.masked_fill(mask, value)``: saves the mask."""
    recorded = f.needs(x)
    saved = f.save(mask) if recorded else ()
    out = f.like(x)
    return f.record(out, _one_like_grad, (x,), saved) if recorded else out


def _subtract_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return (
        grad if node.edges[0] is not None else None,
        f.like(grad) if node.edges[1] is not None else None,
    )


def subtract(f: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``a - b``: saves nothing; the second gradient is the negated first."""
    recorded = f.needs(a, b)
    out = f.new(broadcast(a.shape, b.shape), promoted(a, b))
    return f.record(out, _subtract_backward, (a, b)) if recorded else out


def _clamp_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # clamp_backward: a mask for each bound, where(mask, grad, 0).
    masks = [f.new(grad.shape, "bool") for _ in range(node.meta)]
    out = f.like(grad)
    del masks
    return (out,)


def clamp(f: Tape, x: Tensor, bounds: int = 2) -> Tensor:
    """``x.clamp(min, max)``: saves its input."""
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    out = f.like(x)
    return f.record(out, _clamp_backward, (x,), saved, bounds) if recorded else out


def _pass_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def expand(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """``x.expand(shape)``: a view; its gradient is summed to x's shape (validate_outputs)."""
    out = Tensor(shape, x.dtype, x.storage)
    return f.record(out, _pass_backward, (x,)) if f.needs(x) else out
