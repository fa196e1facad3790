"""Elementwise and shape operations with the saved tensors and temporaries of PyTorch's derivatives.yaml (torch
2.13).
"""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import DECOMPOSED
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor, View, cast_backward

_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int64": 2, "fp8": 3, "fp16": 4, "bf16": 4, "fp32": 5, "fp64": 6}


def promoted(a: Tensor, b: Tensor) -> str:
    """Result dtype of a binary op (torch.result_type)."""
    if a.dtype == b.dtype:
        return a.dtype
    if {a.dtype, b.dtype} == {"bf16", "fp16"}:
        return "fp32"
    return a.dtype if _RANK[a.dtype] >= _RANK[b.dtype] else b.dtype


def broadcast(a: Shape, b: Shape) -> Shape:
    """Shape of a binary op's result; operands have broadcastable shapes."""
    if a == b:
        return a
    if len(a) < len(b):
        a, b = b, a
    b = (1,) * (len(a) - len(b)) + b
    return tuple([x if x >= y else y for x, y in zip(a, b)])


def _add_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grad, grad


def add(f: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``a + b``: saves nothing; both gradients are the incoming one (shared)."""
    recorded = f.grad_enabled and (a.node is not None or b.node is not None)
    shape = a.shape if a.shape == b.shape else broadcast(a.shape, b.shape)
    out = f.new(shape, a.dtype if a.dtype == b.dtype else promoted(a, b))
    return f.record(out, _add_backward, (a, b)) if recorded else out


def _mul_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = node.saved
    shape = grad.shape
    first = f.new(shape, promoted(grad, b)) if b is not None else None
    second = f.new(shape, promoted(grad, a)) if a is not None else None
    return first, second


def mul(f: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``a * b``: each operand is saved when the other needs a gradient."""
    shape = a.shape if a.shape == b.shape else broadcast(a.shape, b.shape)
    dtype = a.dtype if a.dtype == b.dtype else promoted(a, b)
    if not f.grad_enabled or (a.node is None and b.node is None):
        return f.new(shape, dtype)
    saved = f.save(a if b.node is not None else None, b if a.node is not None else None)
    return f.record(f.new(shape, dtype), _mul_backward, (a, b), saved)


def _one_like_grad(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(grad.shape, grad.dtype),)


def scale(f: Tape, a: Tensor) -> Tensor:
    """``a * number`` or ``-a``: saves nothing; the gradient is a new tensor."""
    recorded = f.grad_enabled and a.node is not None
    out = f.new(a.shape, a.dtype)
    return f.record(out, _one_like_grad, (a,)) if recorded else out


def _shift_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def shift(f: Tape, a: Tensor) -> Tensor:
    """``a + number``: saves nothing; the gradient passes through."""
    recorded = f.grad_enabled and a.node is not None
    out = f.new(a.shape, a.dtype)
    return f.record(out, _shift_backward, (a,)) if recorded else out


def cast(f: Tape, a: Tensor, dtype: str) -> Tensor:
    """``a.to(dtype)``: the tensor itself when it already has that dtype, else a copy (ToCopyBackward0)."""
    if a.dtype == dtype:
        return a
    recorded = f.grad_enabled and a.node is not None
    out = f.new(a.shape, dtype)
    return f.record(out, cast_backward, (a,), (), a.dtype) if recorded else out


def copy(f: Tape, a: Tensor, shape: Shape | None = None) -> Tensor:
    """``clone`` or ``contiguous`` of a strided view: a new tensor, the gradient passes through."""
    recorded = f.grad_enabled and a.node is not None
    out = f.new(shape or a.shape, a.dtype)
    return f.record(out, _shift_backward, (a,)) if recorded else out


def _pow2_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # pow_backward: grad * (exponent * self.pow(exponent - 1)): one C++ expression, whose temporaries live until its
    # end.
    power = f.like(grad)
    scaled = f.like(grad)
    out = f.like(grad)
    del power, scaled
    return (out,)


def square(f: Tape, a: Tensor) -> Tensor:
    """``a.pow(2)``: saves its input."""
    if a.node is None or not f.grad_enabled:
        return f.new(a.shape, a.dtype)
    saved = f.save(a)
    return f.record(f.new(a.shape, a.dtype), _pow2_backward, (a,), saved)


def _mean_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # mean_backward: sum_backward expands (a view), then divides by the count (a full-sized tensor).
    return (f.new(node.meta, grad.dtype),)


def mean_last(f: Tape, a: Tensor) -> Tensor:
    """``a.mean(-1, keepdim=True)``: saves nothing but sizes."""
    recorded = f.grad_enabled and a.node is not None
    out = f.new((*a.shape[:-1], 1), a.dtype)
    return f.record(out, _mean_backward, (a,), (), a.shape) if recorded else out


def _rsqrt_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # -0.5 * grad * result.pow(3)
    scaled = f.like(grad)
    cube = f.like(grad)
    out = f.like(grad)
    del scaled, cube
    return (out,)


def rsqrt(f: Tape, a: Tensor) -> Tensor:
    """``a.rsqrt()``: saves its result."""
    recorded = f.grad_enabled and a.node is not None
    out = f.new(a.shape, a.dtype)
    return f.record(out, _rsqrt_backward, (a,), f.save(out)) if recorded else out


def _saved_input_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(grad.shape, grad.dtype),)


def _silu_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    if f.one_kernel_silu:
        return (f.new(grad.shape, grad.dtype),)
    # A trace on fake tensors has no silu_backward kernel and runs torch/_decomp/decompositions.py (2.13) instead:
    # grad * sigmoid * (1 + self * (1 - sigmoid)), five temporaries. The reference figures are made so; the estimate
    # follows them and takes CUDA's single kernel (aten/src/ATen/native/cuda/ActivationSiluKernel.cu) for its lower
    # bound.
    temporaries = [f.new(grad.shape, grad.dtype, DECOMPOSED) for _ in range(5)]
    out = f.like(grad)
    del temporaries
    return (out,)


def activation(f: Tape, a: Tensor, kind: str = "gelu") -> Tensor:
    """A fused activation kernel that saves its input (silu, gelu)."""
    if a.node is None or not f.grad_enabled:
        return f.new(a.shape, a.dtype)
    saved = f.save(a)
    return f.record(f.new(a.shape, a.dtype), _silu_backward if kind == "silu" else _saved_input_backward, (a,), saved)


def saving_output(f: Tape, a: Tensor) -> Tensor:
    """An op that saves its result (relu, tanh, sigmoid, exp)."""
    recorded = f.grad_enabled and a.node is not None
    out = f.new(a.shape, a.dtype)
    return f.record(out, _saved_input_backward, (a,), f.save(out)) if recorded else out


def _dropout_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # native_dropout_backward: one kernel, a new tensor.
    return (f.new(grad.shape, grad.dtype),)


def dropout(f: Tape, a: Tensor, p: float) -> Tensor:
    """``F.dropout`` in training: native_dropout saves a bool mask of one byte an element; p = 0 is the identity.

    At p == 0 ATen's ``dropout`` returns its input (``is_fused_kernel_acceptable`` needs 0 < p < 1 and
    ``_dropout_impl`` returns the input itself when p is 0 or not training).
    """
    if not p or f.evaluating:
        return a
    recorded = f.grad_enabled and a.node is not None
    out = f.new(a.shape, a.dtype)
    mask = f.new(a.shape, "bool")
    return f.record(out, _dropout_backward, (a,), f.save(mask)) if recorded else out


def _slice_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # slice_backward: zeros of the full size, the gradient copied into its part.
    return (f.new(node.meta, grad.dtype),)


def slice_of(f: Tape, a: Tensor, shape: Shape) -> Tensor:
    """A slice: a view in forward; in backward a full-sized zero tensor (slice_backward)."""
    out = Tensor(shape, a.dtype, a.storage)
    return f.record(out, _slice_backward, (a,), (), a.shape) if a.node is not None and f.grad_enabled else out


def _cat_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    return tuple([View(shape, grad.dtype, grad.storage) for shape, _ in node.shapes])


def cat(f: Tape, *parts: Tensor, shape: Shape | None = None) -> Tensor:
    """``torch.cat``: a new tensor; its backward narrows the gradient into views."""
    recorded = f.needs(*parts)
    if shape is None:
        shape = (*parts[0].shape[:-1], sum(p.shape[-1] for p in parts))
    out = f.new(shape, parts[0].dtype)
    return f.record(out, _cat_backward, parts) if recorded else out


def _repeat_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def expand_copy(f: Tape, a: Tensor, shape: Shape) -> Tensor:
    """``expand`` and ``reshape`` of key-value heads (repeat_kv): a real copy, summed into the small shape in backward.

    A single head expands into a view: its dimension of size one merges with the repeated one.
    """
    if prod(shape) == prod(a.shape):
        return a
    recorded = f.grad_enabled and a.node is not None
    out = Tensor(shape, a.dtype, a.storage) if a.shape[1] == 1 else f.new(shape, a.dtype)
    return f.record(out, _repeat_backward, (a,), (), a.shape) if recorded else out
