"""A linear layer whose three products run in float8, as torchao runs it without torch.compile.

Source: torchao 0.18 float8/float8_linear.py (matmul_with_hp_or_float8_args), float8_utils.py (tensor_to_scale,
to_fp8_saturated, pad_tensor_for_matmul), float8_training_tensor.py (_ToFloat8ConstrFunc), float8_ops.py
(preprocess_addmm, addmm_float8_unwrapped). The operands are cast anew for each product, by operations that each lay
down a whole tensor: beside its 8 bits a value takes up to 9 bytes while it is cast.
tests/measure/trace/test_trace_float8.py holds this to torchao's own code.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memlint.estimate.engine.pool import GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.float8 import ALIGNED
from memlint.estimate.ops.basic import add, cast
from memlint.estimate.ops.linear import Weight, to_autocast

if TYPE_CHECKING:
    from memlint.estimate.float8 import Float8

Operand = tuple[Tensor, Tensor]
"""A tensor in 8 bits and its scale."""


def _to_float8(f: Tape, x: Tensor, scales: int = 1) -> Operand:
    """hp_tensor_to_float8_dynamic: the largest absolute value, then ``(x.to(fp32) * scale).clamp().to(float8)``.

    scales: how many there are: one, or one for each row or column.
    """
    absolute = f.like(x)
    largest = f.new((scales,), x.dtype)
    del absolute
    # amax_to_scale: in fp64, clamped, the quotient, then in fp32.
    exact = f.new((scales,), "fp64")
    clamped = f.new((scales,), "fp64")
    quotient = f.new((scales,), "fp64")
    del clamped
    factor = f.new((scales,), "fp32")
    del exact, quotient, largest
    wide = x.detach() if x.dtype == "fp32" else f.like(x, "fp32")
    scaled = f.like(x, "fp32")
    del wide
    bounded = f.like(x, "fp32")
    codes = f.like(x, "fp8")
    del scaled, bounded
    return codes, factor


class Float8Linear:
    """torchao's Float8Linear in the place of an nn.Linear."""

    __slots__ = ("bias", "float8", "weight")

    def __init__(self, weight: Weight, bias: Weight | None, float8: Float8) -> None:
        self.weight = weight
        self.bias = bias
        self.float8 = float8

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """Float8Linear.forward: x [..., in] -> [..., out]; saves x and the weight, trained or not.

        Under autocast the input is cast for it, the weight is not: it goes from fp32 to 8 bits.
        """
        weight, bias = self.weight, self.bias
        given = to_autocast(f, x) if f.autocast is not None else x
        tokens = prod(given.shape[:-1])
        outputs, inputs = weight.shape
        recorded = f.needs(given, weight)
        left, right = self._cast(f, given, tokens), self._cast(f, weight, outputs)
        out = self._product(f, inputs, (tokens, outputs), given.dtype, f.component, turned=0)
        del left, right
        out = out.view(*given.shape[:-1], outputs)
        if recorded:
            # A Python function's saves are packed when its forward has returned, which ends a recomputation too.
            out = f.record(out, _backward, (given, weight), f.save(given, weight), self)
        return out if bias is None else add(f, out, cast(f, bias, out.dtype))

    def _cast(self, f: Tape, x: Tensor, lines: int) -> Operand:
        return _to_float8(f, x, 1 if self.float8.recipe == "tensorwise" else lines)

    def _product(
        self, f: Tape, inner: int, outer: tuple[int, int], dtype: str, component: int, *, turned: int
    ) -> Tensor:
        """float8_mm: [m, inner] x [inner, n] -> [m, n]; ``turned``: so many operands have the wrong strides."""
        rows, columns = outer
        padded = -(-inner // ALIGNED) * ALIGNED
        left = right = scales = None
        if self.float8.pads:
            # constant_pad_nd clones where there is nothing to pad (aten/src/ATen/native/PadNd.cpp), strides kept.
            left, right = f.new((rows, padded), "fp8"), f.new((padded, columns), "fp8")
        if turned == 2:
            left = f.new((rows, padded), "fp8")
        if turned:
            right = f.new((padded, columns), "fp8")
        by_row = self.float8.recipe != "tensorwise"
        inverse = f.new((rows if by_row else 1,), "fp32"), f.new((columns if by_row else 1,), "fp32")
        if by_row and turned:
            # Without fast accumulation, so in backward, the result is scaled by itself: by all products of two scales.
            scales = f.new((rows, columns), "fp32")
            inverse = f.new((), "fp32"), f.new((), "fp32")
        # The scaled product has no fp32 or fp16 output by rows.
        made = "bf16" if by_row else dtype
        out = f.new((rows, columns), made, component)
        if made != dtype:
            out = f.like(out, dtype)
        del left, right, inverse, scales
        return out


def _backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # Both gradients are made whether or not they are asked for, and every copy keeps its name until the end.
    module: Float8Linear = node.meta
    x, weight = node.saved
    assert x is not None and weight is not None
    shape, _ = node.shapes[0]
    outputs, inputs = weight.shape
    tokens = prod(shape[:-1])
    recipe = module.float8.recipe
    first, stored = module._cast(f, grad, tokens), _to_float8(f, weight, inputs if recipe == "rowwise" else 1)
    grad_x = module._product(f, outputs, (tokens, inputs), grad.dtype, TEMPORARIES, turned=1)
    if recipe == "rowwise_with_gw_hp":
        # The weight's gradient is a product of what is there, in its own precision.
        grad_weight = f.new((outputs, inputs), grad.dtype, GRADIENTS)
        return grad_x.view(*shape), grad_weight
    second, given = module._cast(f, grad, outputs), module._cast(f, x, inputs)
    grad_weight = module._product(f, tokens, (outputs, inputs), grad.dtype, GRADIENTS, turned=2)
    del first, stored, second, given
    return grad_x.view(*shape), grad_weight
