"""Linear layers, adapted or not, that are counted as a whole (engine/whole.py), and parts made of several.

Only for layers in which something that saves follows: a norm, an activation, attention.
"""

from __future__ import annotations

from typing import Any, Hashable

from memlint.estimate.adapters import LoraLinear, QuantizedLora
from memlint.estimate.build import Linear
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.engine.whole import Part, describe, whole
from memlint.estimate.quantized import QuantizedLinear, QuantizedWeight


class Product:
    """A linear layer as :meth:`Build.linear` made it."""

    __slots__ = ("module", "part")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.part = Part("product", self)

    def describe(self, weights: list[Any]) -> Hashable:
        """See :class:`Layer`."""
        return _describe(self.module, weights)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return whole(f, self.part, self.module, x)


def _describe(module: Any, weights: list[Any]) -> Hashable:
    kind = type(module)
    if kind is Linear:
        return kind, describe(module.weight, weights), describe(module.bias, weights)
    if kind is QuantizedLinear:
        w: QuantizedWeight = module.weight
        bias = describe(module.bias, weights)
        return kind, w.shape, w.compute, w.loaded, w.keeps, w.two_steps, id(w.quantization), bias
    if kind in (LoraLinear, QuantizedLora):
        base = _describe(module.base, weights)
        a, b = describe(module.a, weights), describe(module.b, weights)
        own = kind, base, a, b, describe(module.magnitude, weights), module.lora.dropout
        return None if base is None else own
    return None
