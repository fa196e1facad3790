"""GPTQ's matrices as auto_gptq computes with them in training: unpacked by torch ops, and kept for the backward.

Source: auto_gptq 0.7.1 nn_modules/qlinear/qlinear_cuda_old.py, forward, the branch for at least 128 rows (its own
kernels serve shorter inputs). GPT-QModel, which transformers uses since 4.49, unpacks in a Triton kernel and again in
the backward (gptqmodel 7.7 nn_modules/triton_utils/dequant.py, QuantLinearFunction): that is :class:`QuantizedLinear`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Tensor
from memlint.estimate.engine.tape import Tape
from memlint.estimate.ops.basic import add, cast
from memlint.estimate.ops.linear import linear

if TYPE_CHECKING:
    from memlint.estimate.adapters import QuantizedWeight
    from memlint.estimate.ops.linear import Weight


class UnpackedLinear:
    """auto_gptq's QuantLinear with ``use_triton=False`` and no exllama kernel (those have no backward)."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: QuantizedWeight, bias: Weight | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out] in x's dtype; ``torch.matmul`` saves the unpacked fp16 weight for x's gradient."""
        shape, small = self.weight.shape, "int16" if self.weight.quantization.bits == 8 else "int8"
        shifted = f.new(shape, "int32")  # bitwise_right_shift of the packed int32, one a value
        codes = f.new(shape, small)
        del shifted
        masked = f.new(shape, small)  # bitwise_and
        del codes
        centred = f.new(shape, small)  # weight - zeros
        dense = f.new(shape, "fp16")  # scales * (...)
        del masked, centred
        dtype = x.dtype
        if f.autocast not in (None, "fp16"):
            dense = cast(f, dense, str(f.autocast))  # matmul is on autocast's list
        out = cast(f, linear(f, x, dense), dtype)
        del dense
        return out if self.bias is None else add(f, out, self.bias)
