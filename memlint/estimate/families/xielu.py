"""xIELU, Apertus' activation with two learned scalars, composed of elementwise operations."""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.kernels import XIELU
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, mul, promoted, scale, shift
from memlint.estimate.ops.gather import subtract


def _minimum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # where(self == other, grad / 2, grad).masked_fill_(self > other, 0) (derivatives.yaml, minimum).
    half, same = f.like(grad), f.new(grad.shape, "bool")
    out = f.like(grad)
    del half, same
    above = f.new(grad.shape, "bool")
    del above
    return (out,)


def _minimum(f: Tape, x: Tensor) -> Tensor:
    """``torch.min(x, buffer)``: saves x."""
    if not f.needs(x):
        return f.like(x)
    saved = f.save(x)
    return f.record(f.like(x), _minimum_backward, (x,), saved)


def _where_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    return f.like(grad), f.like(grad)


def _where(f: Tape, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``torch.where(condition, a, b)``: saves the condition; of two dtypes the wider one comes of it."""
    recorded = f.needs(a, b)
    saved = f.save(condition) if recorded else ()
    out = f.new(a.shape, promoted(a, b))
    return f.record(out, _where_backward, (a, b), saved) if recorded else out


def _expm1_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # grad * (result + 1): one C++ expression.
    raised = f.like(grad)
    out = f.like(grad)
    del raised
    return (out,)


def _expm1(f: Tape, x: Tensor) -> Tensor:
    """``torch.expm1(x)``: saves its result."""
    recorded = f.needs(x)
    out = f.like(x)
    return f.record(out, _expm1_backward, (x,), f.save(out)) if recorded else out


def _softplus(f: Tape, scalar: Tensor) -> Tensor:
    """On autocast's fp32 list, so that the products with it are in fp32."""
    return activate(f, scalar if f.autocast is None else cast(f, scalar, "fp32"), "softplus")


def _kernel_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def _kernel(f: Tape, x: Tensor) -> Tensor:
    """The CUDA extension, whose source is on no package index: one Function can do with its input and one result."""
    recorded = f.needs(x)
    out = f.like(x)
    return f.record(out, _kernel_backward, (x,), f.save(x)) if recorded else out


class Xielu:
    """XIELUActivation (transformers 5.24 activations.py): two learned scalars."""

    def __init__(self, b: Build, name: str) -> None:
        b.asks = True
        self.alpha_p = b.parameter(f"{name}.alpha_p", 1)
        self.alpha_n = b.parameter(f"{name}.alpha_n", 1)
        b.buffer(4)
        b.buffer(4)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x -> the same shape."""
        if env.kernel(XIELU):
            return _kernel(f, x)
        alpha_p = _softplus(f, self.alpha_p)
        alpha_n = shift(f, _softplus(f, self.alpha_n))
        condition = f.new(x.shape, "bool")
        above = add(f, mul(f, mul(f, alpha_p, x), x), scale(f, x))
        least = _minimum(f, x)
        if f.autocast is not None:
            # expm1 is on autocast's fp32 list.
            least = cast(f, least, "fp32")
        grown = _expm1(f, least)
        del least
        below = subtract(f, grown, x)
        del grown
        below = mul(f, below, alpha_n)
        below = add(f, below, scale(f, x))
        return _where(f, condition, above, below)
