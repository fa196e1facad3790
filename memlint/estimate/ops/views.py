"""Views of one tensor whose gradients meet again: split and chunk, select, and the gradients they make."""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import DECOMPOSED
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import broadcast, slice_of


class _Parts:
    """What a split waits for: the gradients of its parts that have arrived, and the shape of the whole."""

    __slots__ = ("grads", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.grads: list[Tensor] = []


def _part_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None]:
    # The first gradient of a part also wakes the split itself; all of them stay in its input buffer until then.
    parts: _Parts = node.meta
    parts.grads.append(grad)
    return (grad,) if len(parts.grads) == 1 else (None,)


def _split_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # split_backward (FunctionsManual.cpp): a cat of the gradients, zeros for those that are undefined.
    parts: _Parts = node.meta
    missing = prod(parts.shape) - sum(prod(g.shape) for g in parts.grads)
    zeros = f.new((missing,), grad.dtype) if missing > 0 else None
    out = f.new(parts.shape, grad.dtype)
    del zeros
    parts.grads = []
    return (out,)


def split(f: Tape, x: Tensor, *shapes: Shape) -> tuple[Tensor, ...]:
    """``split`` or ``chunk``: views of x under the given shapes; backward concatenates their gradients once."""
    views = tuple(Tensor(shape, x.dtype, x.storage) for shape in shapes)
    if not f.needs(x):
        return views
    parts = _Parts(x.shape)
    whole = f.record(Tensor(x.shape, x.dtype, x.storage), _split_backward, (x,), (), parts)
    for view in views:
        f.record(view, _part_backward, (whole,), (), parts)
        assert isinstance(view.node, Node)
        view.node.shapes = ((view.shape, view.dtype),)
    return views


def select(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """``x[..., i, :]``: a view; its gradient is a zero tensor of x's size (select_backward)."""
    return slice_of(f, x, shape)


def _index_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # index_backward: zeros of the full size, index_put_ with accumulation in place.
    return (f.new(node.meta, grad.dtype),)


def index(f: Tape, x: Tensor, shape: Shape, ids: Tensor | None = None) -> Tensor:
    """``x[..., [i], :]`` (indexing with a list or with ids): a copy; its gradient is a zero tensor of x's size."""
    recorded = f.needs(x)
    saved = f.save(ids) if recorded else ()
    out = f.new(shape, x.dtype)
    return f.record(out, _index_backward, (x,), saved, x.shape) if recorded else out


def _scale_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def scale_in_place(f: Tape, x: Tensor) -> Tensor:
    """``x *= number``: the same storage; the gradient is a new tensor."""
    out = x.detach()
    return f.record(out, _scale_backward, (x,)) if f.needs(x) else out


def _sum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grad, grad


def add_in_place(f: Tape, x: Tensor, other: Tensor) -> Tensor:
    """``x += other``: x's storage; both gradients are the incoming one."""
    out = x.detach()
    return f.record(out, _sum_backward, (x, other)) if f.needs(x, other) else out


def where(f: Tape, x: Tensor, condition: Tensor | None = None) -> Tensor:
    """``torch.where(condition, x, number)``: saves the condition (None: a buffer); the gradient is a new tensor."""
    recorded = f.needs(x)
    saved = f.save(condition) if recorded else ()
    out = f.like(x) if condition is None else f.new(broadcast(x.shape, condition.shape), x.dtype)
    return f.record(out, _scale_backward, (x,), saved) if recorded else out


def fill_in_place(f: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask] = number``: x's storage; saves the mask; the gradient is a new tensor."""
    out = x.detach()
    return f.record(out, _scale_backward, (x,), f.save(mask)) if f.needs(x) else out


def _put_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    # index_put: self gets grad.index_put(indices, zeros), values get grad.index(indices), summed to their shape.
    return f.like(grad), f.new(node.shapes[1][0], grad.dtype) if node.edges[1] is not None else None


def put_in_place(f: Tape, x: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """``x[mask] = values``: x's storage; saves the mask."""
    out = x.detach()
    return f.record(out, _put_backward, (x, values), f.save(mask)) if f.needs(x, values) else out


def _gather_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # gather_backward: zeros of the source's size, scatter_add_ in place. On tensor subclasses, and so in a trace on
    # fake tensors, it is scatter_add, which makes a second one (areAnyTensorSubclassLike in FunctionsManual.cpp).
    zeros = None if f.one_kernel_silu else f.new(node.meta, grad.dtype, DECOMPOSED)
    out = f.new(node.meta, grad.dtype)
    del zeros
    return (out,)


def gather(f: Tape, x: Tensor, index: Tensor, shape: Shape) -> Tensor:
    """``torch.gather``: saves its source and the index; the gradient is a zero tensor of the source's size, filled."""
    recorded = f.needs(x)
    saved = f.save(x, index) if recorded else ()
    out = f.new(shape, x.dtype)
    return f.record(out, _gather_backward, (x,), saved, x.shape) if recorded else out


def seen_strided(f: Tape, x: Tensor) -> Tensor:
    """``x.view(...)`` whose gradient arrives strided, so that view's backward, a reshape, copies it."""
    out = x.detach()
    return f.record(out, _scale_backward, (x,)) if f.needs(x) else out
