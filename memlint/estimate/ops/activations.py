"""Activation functions by the names that HF configs use: fused kernels, and those composed of elementwise operations.

Source: transformers 5.24 activations.py (ACT2FN).
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import activation, add, cast, mul, saving_output, scale, shift, square

SAVING_OUTPUT = ("relu", "tanh", "sigmoid")
"""One kernel that saves its result."""


def activate(f: Tape, x: Tensor, name: str) -> Tensor:
    """Apply the activation that a config calls ``name``; unknown names count as one fused kernel."""
    if name in SAVING_OUTPUT:
        return saving_output(f, x)
    if name == "gelu_new":
        return gelu_new(f, x)
    if name == "gelu_fast":
        return gelu_fast(f, x)
    if name == "quick_gelu":
        return quick_gelu(f, x)
    if name == "relu2":
        # ReLUSquaredActivation.forward holds its input throughout. torch.square is pow: on autocast's fp32 list.
        rectified = saving_output(f, x)
        return square(f, cast(f, rectified, "fp32") if f.autocast is not None else rectified)
    return activation(f, x, "silu" if name in ("silu", "swish") else "gelu")


def _clamp_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def clamped(f: Tape, x: Tensor, *, computed: bool = False) -> Tensor:
    """``if x.dtype == torch.float16: x = torch.clamp(x, ...)``, as T5's blocks and BART's pre-norm encoders do after a
    residual sum: saves its input, and bounds that are ``computed`` (tensors of one element).
    """
    if x.dtype != "fp16":
        return x
    if not f.needs(x):
        return f.like(x)
    saved = f.save(x, *[f.new((), x.dtype) for _ in range(2 * computed)])
    return f.record(f.like(x), _clamp_backward, (x,), saved)


def _cube_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # pow_backward (FunctionsManual.cpp): grad * (exponent * self.pow(exponent - 1)), temporaries alive until its end.
    power = f.like(grad)
    scaled = f.like(grad)
    out = f.like(grad)
    del power, scaled
    return (out,)


def cube(f: Tape, x: Tensor) -> Tensor:
    """``torch.pow(x, 3.0)``: saves its input; on autocast's fp32 list (autocast_mode.h)."""
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    if not f.needs(x):
        return f.like(x)
    saved = f.save(x)
    return f.record(f.like(x), _cube_backward, (x,), saved)


def gelu_new(f: Tape, x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(c * (x + 0.044715 * pow(x, 3))))``: NewGELUActivation, eight kernels."""
    return mul(f, scale(f, x), shift(f, saving_output(f, scale(f, add(f, x, scale(f, cube(f, x)))))))


def gelu_fast(f: Tape, x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x)))``: FastGELUActivation."""
    half = scale(f, x)
    return mul(f, half, shift(f, saving_output(f, mul(f, scale(f, x), shift(f, mul(f, scale(f, x), x))))))


def erf_gelu(f: Tape, x: Tensor) -> Tensor:
    """``x * 0.5 * (1.0 + erf(x / sqrt(2)))``: the gelu of ESM and its like; erf saves its input."""
    return mul(f, scale(f, x), shift(f, _erf(f, scale(f, x))))


def _erf_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # 2.0 / sqrt(M_PI) * exp(-(self.pow(2))) * grad: one C++ expression, whose temporaries live until its end.
    temporaries = [f.like(grad) for _ in range(4)]
    out = f.like(grad)
    del temporaries
    return (out,)


def _erf(f: Tape, x: Tensor) -> Tensor:
    if not f.needs(x):
        return f.like(x)
    saved = f.save(x)
    return f.record(f.like(x), _erf_backward, (x,), saved)


def quick_gelu(f: Tape, x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 * x)``: QuickGELUActivation."""
    return mul(f, x, saving_output(f, scale(f, x)))
