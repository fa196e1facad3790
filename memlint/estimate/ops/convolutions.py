"""What convolutional networks add to the other operations: norms over channels and batches, normed weights, pooling.

Source: PyTorch's derivatives.yaml and the kernels' allocations (aten/src/ATen/native, torch 2.13).
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import cast


def _norm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # native_group_norm_backward, cudnn_batch_norm_backward: gradients of input, weight and bias in one call.
    return tuple(
        [f.new(shape, dtype) if edge is not None else None for edge, (shape, dtype) in zip(node.edges, node.shapes)]
    )


def group_norm(f: Tape, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """``F.group_norm``: saves its input and two numbers a group; on autocast's fp32 list."""
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    recorded = f.needs(x, weight, bias)
    saved = f.save(x) if recorded else ()
    out = f.like(x)
    mean, deviation = f.new((x.shape[0], groups), x.dtype), f.new((x.shape[0], groups), x.dtype)
    if not recorded:
        return out
    saved += f.save(weight, mean, deviation)
    return f.record(out, _norm_backward, (x, weight, bias), saved)


def _weight_norm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # _weight_norm_interface_backward
    return f.new(*node.shapes[0]), f.new(*node.shapes[1])


def weight_norm(f: Tape, direction: Tensor, length: Tensor) -> Tensor:
    """``torch._weight_norm``: length * direction / |direction|; saves both and the norms."""
    recorded = f.needs(direction, length)
    saved = f.save(direction, length) if recorded else ()
    out = f.like(direction)
    norms = f.new(length.shape, "fp32")
    if not recorded:
        return out
    saved += f.save(norms)
    return f.record(out, _weight_norm_backward, (direction, length), saved)


def _mean_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # mean_backward: the gradient expanded and divided by the count.
    return (f.new(node.meta, grad.dtype),)


def mean_over(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """``x.mean(dims)`` with result ``shape``: saves sizes; its gradient is a new tensor of x's size."""
    recorded = f.needs(x)
    out = f.new(shape, x.dtype)
    return f.record(out, _mean_backward, (x,), (), x.shape) if recorded else out


def batch_norm(f: Tape, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.batch_norm`` in training: saves its input and two fp32 numbers a channel (cudnn_batch_norm)."""
    recorded = f.needs(x, weight, bias)
    saved = f.save(x) if recorded else ()
    out = f.like(x)
    mean, deviation = f.new(weight.shape, "fp32"), f.new(weight.shape, "fp32")
    if not recorded:
        return out
    saved += f.save(weight, mean, deviation)
    return f.record(out, _norm_backward, (x, weight, bias), saved)


def max_pool(f: Tape, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """``nn.MaxPool2d``: saves its input and an int64 place for each result (max_pool2d_with_indices)."""
    side = (x.shape[2] + 2 * padding - kernel) // stride + 1
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    shape = (*x.shape[:2], side, side)
    out, places = f.new(shape, x.dtype), f.new(shape, "int64")
    return f.record(out, _mean_backward, (x,), saved + f.save(places), x.shape) if recorded else out


def _vector_norm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # norm_backward of order 2: self * (grad / norm), masked where the norm is 0.
    share = f.like(grad)
    filled = f.like(share)
    out = f.new(node.meta, grad.dtype)
    del share, filled
    return (out,)


def vector_norm(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """``torch.linalg.vector_norm`` of order 2 with result ``shape``: saves its input and its result, which
    autocast asks for in fp32 (fp32_set_opt_dtype of autocast_mode.h).
    """
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    out = f.new(shape, x.dtype if f.autocast is None else "fp32")
    return f.record(out, _vector_norm_backward, (x,), saved + f.save(out), x.shape) if recorded else out
