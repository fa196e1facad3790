"""PEFT's adapters in the frequency domain: FourierFT and C3A.

Sources: peft 0.21 tuners/{fourierft,c3a}/{config,layer,utils}.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast, scale
from memlint.estimate.ops.linear import Weight
from memlint.estimate.ops.views import add_in_place
from memlint.job import Lora

if TYPE_CHECKING:
    from memlint.estimate.build import Build

FREQUENCIES = 1000
"""n_frequency: fourierft/config.py."""
C3A_BLOCK = 256
"""block_size: c3a/config.py."""
COMPLEX = "fp64"
"""As many bytes as a complex64."""


def _spectrum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # scaling, ``real`` and the transform, each a tensor of the matrix's size and a node of its own, which lets go of
    # the gradient that came; then grad[indices] of a view of the last one's real parts.
    scaled = f.like(grad)
    grad.storage = None
    complex_grad = f.new(grad.shape, COMPLEX)
    del scaled
    transformed = f.like(complex_grad)
    del complex_grad
    out = f.new(node.shapes[0][0], grad.dtype)
    del transformed
    return (out,)


class Spectrum:
    """fourierft/layer.py get_delta_weight: the inverse transform of a matrix of zeros but for what trains."""

    __slots__ = ("entries", "shape")

    def __init__(self, entries: Weight, shape: tuple[int, int]) -> None:
        self.entries, self.shape = entries, shape

    def __call__(self, f: Tape) -> Tensor:
        """The delta weight [out, in]; the places of the entries are moved to the device in each forward, and kept."""
        places = f.new((2, self.entries.shape[0]), "int64")
        dense = f.new(self.shape, "fp32")
        given = f.new(self.shape, COMPLEX)
        transformed = f.like(given)
        del given
        out = f.new(self.shape, "fp32")
        del dense, transformed
        return cast(f, f.record(out, _spectrum_backward, (self.entries,), f.save(places)), self.entries.dtype)


def _convolution_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # utils.py BlockCircularConvolution.backward: the gradient's spectrum, and that of the input or of the kernel.
    x, kernel = node.shapes[0][0], node.shapes[1][0]
    spectrum = f.new(grad.shape, COMPLEX)
    product = f.new(x, COMPLEX)
    transformed = f.like(product)
    del product
    grad_x = f.new(x, grad.dtype)
    del transformed
    own = f.new(x, COMPLEX)
    products = f.new(kernel, COMPLEX)
    transformed = f.like(products)
    del products
    grad_kernel = f.new(kernel, grad.dtype)
    del spectrum, own, transformed
    return grad_x, grad_kernel


class Circular:
    """C3A: beside the layer, a product with block-circulant matrices through Fourier transforms."""

    __slots__ = ("base", "kernel")

    def __init__(self, base: Any, kernel: Weight) -> None:
        self.base, self.kernel = base, kernel

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """c3a/layer.py C3ALinear.forward: the input is kept in fp32."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = x.dtype
        x = cast(f, x, "fp32")
        saved = f.save(x, self.kernel) if f.grad_enabled else ()
        given = f.new(x.shape, COMPLEX)
        spectrum = f.like(given)
        del given
        product = f.new(result.shape, COMPLEX)
        del spectrum
        transformed = f.like(product)
        del product
        real = f.new(result.shape, "fp32")
        del transformed
        out = f.record(real, _convolution_backward, (x, self.kernel), saved) if f.grad_enabled else real
        del real
        branch = cast(f, scale(f, out), result.dtype)
        del out
        return cast(f, add_in_place(f, result, branch), dtype)


def fourierft(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """FourierFT over a linear layer: ``n_frequency`` entries of a spectrum."""
    from memlint.estimate.peft_kinds import DenseUpdate

    entries = build.parameter(
        f"{name}.fourierft_spectrum", min(FREQUENCIES, inputs * outputs), dtype=lora.dtype, adapter=True
    )
    return DenseUpdate(base, Spectrum(entries, (outputs, inputs)))


def c3a(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """C3A over a linear layer: a kernel for each pair of blocks, in fp32."""
    block = lora.block_size or C3A_BLOCK
    while inputs % block or outputs % block:
        block -= 1  # PEFT refuses such a width
    shape = outputs // block, inputs // block, block
    return Circular(base, build.parameter(f"{name}.c3a_kernel", *shape, dtype="fp32", adapter=True))
