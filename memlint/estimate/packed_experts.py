"""Three-dimensional expert parameters in 4 or 8 bits, which bitsandbytes' linear modules do not cover.

Source: axolotl 0.19 monkeypatch/moe_quant.py (``quantize_moe_experts``) over bitsandbytes 0.50 nn/parametrize.py: a
parametrization dequantises the whole parameter, without a graph, at its first use in the module's forward, and a cache
holds the result until that forward returns.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Tensor
from memlint.estimate.engine.tape import Tape
from memlint.estimate.ops.linear import Weight

if TYPE_CHECKING:
    from memlint.estimate.build import Build


class PackedExperts:
    """A parameter of the given shape behind a parametrization."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def open(self, f: Tape) -> Tensor:
        """The dequantised parameter; the caller holds it as long as the cache does."""
        return f.new(self.shape, self.dtype)


def expert_parameter(b: Build, name: str, *shape: int) -> Weight | PackedExperts:
    """Make a parameter of all experts, packed where the job says so."""
    quantization = b.training.quantization
    if quantization is None or quantization.experts == "loaded" or b.frozen or b.reference:
        return b.parameter(name, *shape)
    b.packed(name, prod(shape[:-1]), shape[-1])
    return PackedExperts(shape, b.training.precision.weights)


def opened(f: Tape, weight: Weight | PackedExperts) -> Tensor:
    """The weight as its forward sees it."""
    return weight.open(f) if isinstance(weight, PackedExperts) else weight
