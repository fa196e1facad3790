"""Linear layers over states that lie as a map does, channels first: each product copies them.

Source: torch 2.13 aten/src/ATen/native/Linear.cpp: only a contiguous input is folded into one addmm; matmul's reshape
copies any other, in every product anew, and the bias is added by itself.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.adapters import LoraLinear
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import copy, dropout
from memlint.estimate.ops.linear import linear, to_autocast


def strided(module: Any) -> Any:
    """The layer that ``module`` is to states [B, N, C] that lie as [B, C, N]."""
    if type(module) is LoraLinear and module.inner is None:
        return StridedLora(StridedLinear(module.base), module.a, module.b, module.magnitude, module.lora)
    return StridedLinear(module)


def _whole(f: Tape, x: Tensor) -> Tensor:
    """The copy of a batch; of a single row ``reshape`` makes a view."""
    return copy(f, x) if x.shape[0] > 1 else x


class StridedLinear:
    """A layer without an adapter, or with one of whose parts nothing is known here."""

    __slots__ = ("bias", "module", "weight")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.weight, self.bias = getattr(module, "weight", None), getattr(module, "bias", None)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, in] -> [B, N, out]."""
        half = to_autocast(f, x)
        given = _whole(f, half)
        out: Tensor = self.module(f, given)
        del given
        product = f.like(out)
        del product, half
        return out


class StridedLora(LoraLinear):
    """The base's copy goes with its product, for a frozen weight saves nothing; lora_A saves its own."""

    __slots__ = ()

    def product(self, f: Tape, x: Tensor, weight: Tensor) -> Tensor:
        """See :meth:`LoraLinear.product`."""
        half = to_autocast(f, x)  # the call holds it beside its copy
        out = linear(f, _whole(f, half), weight)
        del half
        return out

    def _branch(self, f: Tape, x: Tensor) -> Tensor:
        x = dropout(f, x, self.lora.dropout)
        x = self.product(f, x, self.a)  # lets the dropped input go
        return linear(f, x, self.b)
