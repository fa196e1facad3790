"""Image inputs: the convolution that makes patches, and the copies that put image features among embeddings."""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import DECOMPOSED, GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.linear import cast_weight, to_autocast
from memlint.estimate.ops.views import split


def _convolution_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # convolution_backward: gradients of input, weight and bias in one call.
    kinds = (TEMPORARIES, GRADIENTS, GRADIENTS)
    return tuple(
        [
            f.new(shape, dtype, kind) if edge is not None else None
            for edge, (shape, dtype), kind in zip(node.edges, node.shapes, kinds)
        ]
    )


def convolution(f: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """``nn.Conv2d`` or ``nn.Conv3d`` whose result has ``shape``: saves its input and weight (ConvolutionBackward0).

    cuDNN's workspace is not counted: it depends on the algorithm chosen on the device.
    """
    offset = cast_weight(f, bias)
    held = cast_weight(f, weight)
    assert held is not None
    given = to_autocast(f, x)
    recorded = f.needs(given, held, offset)
    saved = f.save(given, held) if recorded else ()
    out = f.new(shape, given.dtype)
    if not recorded:
        return out
    inputs = (given, held) if offset is None else (given, held, offset)
    return f.record(out, _convolution_backward, inputs, saved)


def _end(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # AccumulateGrad of a tensor that is no parameter: it and its gradient live as long as the graph.
    f.ends += [t for t in (*node.saved, grad) if t is not None]
    return ()


def requiring_grad(f: Tape, x: Tensor) -> Tensor:
    """``x.requires_grad_(True)``: what follows is recorded although nothing before it trains.

    ``gradient_checkpointing_enable`` hangs it on the input embeddings of every model inside, image towers too
    (enable_input_require_grads in modeling_utils.py, transformers 5.24). The graph holds that leaf.
    """
    if x.node is not None or not f.grad_enabled:
        return x
    return f.record(x.detach(), _end, (), f.save(x))


def _scatter_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # masked_scatter: self gets grad.masked_fill(mask, 0), source gets grad.masked_select(mask) (derivatives.yaml).
    into = f.like(grad) if node.edges[0] is not None else None
    return into, (f.new(node.shapes[1][0], grad.dtype) if node.edges[1] is not None else None)


def masked_scatter(f: Tape, x: Tensor, source: Tensor) -> Tensor:
    """``x.masked_scatter(mask, source)``: x [B, S, H], source [n, H]; saves the mask [B, S, 1].

    The kernel numbers the places with an int64 prefix sum over the whole of x and a contiguous mask
    (aten/src/ATen/native/cuda/IndexKernel.cpp, torch 2.13).
    """
    recorded = f.needs(x, source)
    mask = f.new((*x.shape[:-1], 1), "bool")
    saved = f.save(mask) if recorded else ()
    out = f.like(x)
    f.pool.touch(prod(x.shape) * 9, TEMPORARIES)
    return f.record(out, _scatter_backward, (x, source), saved) if recorded else out


def _copy_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def own_gradient(f: Tape, x: Tensor) -> Tensor:
    """A parameter whose gradient something else holds as well: AccumulateGrad clones it
    (torch/csrc/autograd/functions/accumulate_grad.h).
    """
    return f.record(Tensor(x.shape, x.dtype, x.storage), _copy_backward, (x,)) if f.needs(x) else x


def unbind(f: Tape, x: Tensor, shape: Shape, count: int) -> tuple[Tensor, ...]:
    """``x.reshape(N, count, ...).permute(1, 0, ...).unbind(0)``: views of ``shape``.

    Backward stacks the gradients, and copies the stack once more to see it in x's order.
    """
    whole = x
    if f.needs(x):
        whole = f.record(Tensor(x.shape, x.dtype, x.storage), _copy_backward, (x,))
    return split(f, whole, *([shape] * count))


def _index_put_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # index_put: self gets grad.index_put(indices, zeros), values get grad.index(indices).
    return f.like(grad), f.new(node.shapes[1][0], grad.dtype)


def put_rows(f: Tape, x: Tensor, rows: Tensor) -> Tensor:
    """``x[mask, :] = rows`` in place."""
    if not f.needs(x, rows):
        return x
    return f.record(Tensor(x.shape, x.dtype, x.storage), _index_put_backward, (x, rows))


def _rows_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    zeros = None if f.one_kernel_silu else f.new(node.meta, grad.dtype, DECOMPOSED)
    out = f.new(node.meta, grad.dtype)
    del zeros
    return (out,)


def masked_rows(f: Tape, x: Tensor, count: int) -> Tensor:
    """``x[mask, :]``: ``count`` rows of x [B, S, H], a copy; the mask is saved as the rows' numbers."""
    recorded = f.needs(x)
    places = f.new((count, 2), "int64")
    saved = f.save(places) if recorded else ()
    out = f.new((count, x.shape[-1]), x.dtype)
    return f.record(out, _rows_backward, (x,), saved, x.shape) if recorded else out


def _mean_rows_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def pooled(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """An average over groups of x that saves only x: ``AvgPool2d``; its backward is one new tensor of x's size."""
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    out = f.new(shape, x.dtype)
    return f.record(out, _mean_rows_backward, (x,), saved, x.shape) if recorded else out


def unfold(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """``F.unfold`` of one image into squares that do not overlap: saves sizes; its backward is one new tensor."""
    recorded = f.needs(x)
    out = f.new(shape, x.dtype)
    return f.record(out, _mean_rows_backward, (x,), (), x.shape) if recorded else out


def _sum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # sum_backward: the gradient expanded, a view.
    return (Tensor(node.meta, grad.dtype, grad.storage),)


def sum_middle(f: Tape, x: Tensor) -> Tensor:
    """``x.sum(1)`` of x [n, k, d]: saves nothing."""
    recorded = f.needs(x)
    out = f.new((x.shape[0], x.shape[2]), x.dtype)
    return f.record(out, _sum_backward, (x,), (), x.shape) if recorded else out


def stacked(f: Tape, x: Tensor) -> Tensor:
    """``torch.cat(list(x))`` or of ``torch.split``: a copy; backward joins the gradients of the parts once more."""
    recorded = f.needs(x)
    out = f.like(x)
    return f.record(out, _copy_backward, (x,)) if recorded else out
