"""PEFT's OFT and BOFT: the input of a linear layer, or its weight, turned by trained orthogonal matrices.

Sources: peft 0.21 and 0.15 tuners/oft/layer.py, and tuners/boft/layer.py of 0.21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast, copy, mul
from memlint.estimate.ops.linear import Weight, linear, matmul
from memlint.estimate.ops.views import add_in_place
from memlint.estimate.peft_updates import _whole
from memlint.estimate.versions import before
from memlint.job import Lora

if TYPE_CHECKING:
    from memlint.estimate.build import Build

OFT_BLOCK = 32
"""oft_block_size: oft/config.py."""
OFT_BLOCKS = 8
"""r before 0.16, where oft_block_size is 0."""
BOFT_BLOCK = 4
"""boft_block_size: boft/config.py."""
INDEX_BYTES = 8
"""Indices of the upper triangle are int64 buffers of every OFT module (OFTRotationModule.__init__)."""


def _put_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # index_put_ into zeros: the values get grad.index(indices).
    return (f.new(node.shapes[0][0], grad.dtype),)


def _difference_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # matrix - matrix.T: the gradient, its negative, and their sum where both meet.
    negative = f.like(grad)
    total = f.like(grad)
    del negative
    return (total,)


class Rotated:
    """OFT: blocks of the input's features turned by Cayley-Neumann matrices of trained skew-symmetric ones."""

    __slots__ = ("base", "block", "vectors")

    def __init__(self, base: Any, vectors: Weight, block: int) -> None:
        self.base, self.vectors, self.block = base, vectors, block

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """oft/layer.py Linear.forward: the input in the adapter's dtype, turned, and back to its own."""
        if not f.adapters:
            plain: Tensor = self.base(f, x)
            return plain
        dtype = x.dtype
        x = self._turn(f, cast(f, x, self.vectors.dtype))
        result: Tensor = self.base(f, cast(f, x, dtype))
        return cast(f, result, dtype)

    def _turn(self, f: Tape, x: Tensor) -> Tensor:
        """OFTRotationModule.forward: einsum("...rk,rkc->...rc") as a product batched over the blocks; its result is
        strided, so the reshape to [..., features] copies it."""
        rotation = self._rotation(f)
        blocks, block = rotation.shape[0], self.block
        rows = 1
        for size in x.shape[:-1]:
            rows *= size
        turned = matmul(f, x.view(blocks, rows, block), rotation, block)
        whole = copy(f, turned, x.shape)
        return cast(f, whole, x.dtype)  # under autocast the product is in half precision

    def _rotation(self, f: Tape) -> Tensor:
        """_cayley_batch with num_cayley_neumann_terms 5: I + 2Q + 2Q^2 + 2Q^3 + Q^4, [blocks, block, block]."""
        blocks, block = self.vectors.shape[0], self.block
        shape = (blocks, block, block)
        matrix = f.record(f.new(shape, self.vectors.dtype), _put_backward, (self.vectors,))
        skew = f.record(f.like(matrix), _difference_backward, (matrix,))
        del matrix
        eye = f.new((block, block), skew.dtype)
        total = f.like(skew)
        del eye
        total = add_in_place(f, total, skew)
        power = matmul(f, skew, skew, block)
        total = add_in_place(f, total, power)
        for _ in range(2):
            power = matmul(f, power, skew, block)
            total = add_in_place(f, total, power)
        return total


class RotatedWeight:
    """OFT before peft 0.16: the weight, not the input, turned by one matrix as wide as the input, and scaled.

    peft 0.15 tuners/oft/layer.py Linear.forward and _cayley_batch. Over half weights that works under autocast alone;
    without it, from peft's pull request 2433 on (0.15.2.dev0), weight and input are cast to the fp32 of the rotation.
    """

    __slots__ = ("base", "blocks", "scales", "width")

    def __init__(self, base: Any, blocks: Weight, scales: Weight, width: int) -> None:
        self.base, self.blocks, self.scales, self.width = base, blocks, scales, width

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """F.linear(x, ((block_diag(cayley(R)) @ I) @ W.T).T * scale)."""
        if not f.adapters:
            plain: Tensor = self.base(f, x)
            return plain
        given, square = x.dtype, (self.width, self.width)
        dtype = given if f.autocast is not None else "fp32"
        eye = f.new(square, dtype)
        ones = f.new(self.scales.shape, dtype)
        turned = self._cayley(f)
        whole = f.record(f.new(square, turned.dtype), _blocks_backward, (turned,))
        rotation = cast(f, matmul(f, whole, eye, self.width), dtype)
        scaling = mul(f, self.scales, ones)
        del turned, whole, eye, ones
        rotated = matmul(f, rotation, _whole(self.base, f, dtype), self.scales.shape[0])
        del rotation
        scaled = cast(f, mul(f, rotated.view(self.scales.shape[0], self.width), scaling), dtype)
        del rotated, scaling
        return cast(f, linear(f, cast(f, x, dtype), scaled, getattr(self.base, "bias", None)), given)

    def _cayley(self, f: Tape) -> Tensor:
        """linalg.solve of I + S and I - S, S half of R - R.T: it keeps I + S, the factors with their pivots, and its
        result, in fp32 as the identity is.
        """
        count, block, _ = self.blocks.shape
        out = f.new(self.blocks.shape, "fp32")
        pivots = f.new((count, block // 2), "int64")
        saved = f.save(f.like(out), f.like(out), pivots, out)
        return f.record(out, _cayley_backward, (self.blocks,), saved)


def _divisor(width: int, wanted: int) -> int:
    """OFTLayer.adjust_oft_parameters: the divisor of ``width`` that is nearest to ``wanted``, of two the lower."""
    if wanted >= width:
        return width
    distance = 0
    while width % (wanted - distance) and width % (wanted + distance):
        distance += 1
    return wanted + distance if width % (wanted - distance) else wanted - distance


def oft(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """OFT over a linear layer: a vector of block * (block - 1) / 2 elements for each block of its input; before peft
    0.16 whole blocks, and a scale for each output.
    """
    if before(build.job, "peft", 0, 16):
        count = inputs // _divisor(inputs, lora.block_size) if lora.block_size else _divisor(inputs, OFT_BLOCKS)
        block = inputs // count
        blocks = build.parameter(f"{name}.oft_r", count, block, block, dtype=lora.dtype, adapter=True)
        scales = build.parameter(f"{name}.oft_s", outputs, 1, dtype=lora.dtype, adapter=True)
        return RotatedWeight(base, blocks, scales, inputs)
    block = _divisor(inputs, lora.block_size or OFT_BLOCK)
    elements = block * (block - 1) // 2
    vectors = build.parameter(f"{name}.oft_R", inputs // block, elements, dtype=lora.dtype, adapter=True)
    for _ in ("rows", "cols"):
        build.buffer(elements * INDEX_BYTES)
    return Rotated(base, vectors, block)


class Butterfly:
    """BOFT with one butterfly factor, its default: the input turned by a matrix as wide as it is, the output scaled."""

    __slots__ = ("base", "blocks", "scales", "width")

    def __init__(self, base: Any, blocks: Weight, scales: Weight, width: int) -> None:
        self.base, self.blocks, self.scales, self.width = base, blocks, scales, width

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """boft/layer.py Linear.forward: base(x @ rotation) * scale."""
        if not f.adapters:
            plain: Tensor = self.base(f, x)
            return plain
        dtype = x.dtype
        rotation = self._rotation(f, dtype)
        ones = f.new(self.scales.shape, dtype)
        scaling = mul(f, self.scales, ones)
        turned = matmul(f, x, rotation, self.width)
        result: Tensor = self.base(f, turned)
        return cast(f, mul(f, result, scaling.view(self.scales.shape[0])), dtype)

    def _rotation(self, f: Tape, dtype: str) -> Tensor:
        """P (block_diag(cayley(R)) P^T) I, each [inputs, inputs] in the input's dtype."""
        square = (self.width, self.width)
        eye = f.new(square, dtype)
        turned = self._cayley(f)
        whole = f.record(f.new(square, turned.dtype), _blocks_backward, (turned,))
        permutation = f.new(square, dtype)
        diagonal = cast(f, whole, dtype)
        del whole, turned
        inner = matmul(f, diagonal, permutation, self.width)
        outer = matmul(f, permutation, inner, self.width)
        return matmul(f, outer, eye, self.width)

    def _cayley(self, f: Tape) -> Tensor:
        """cayley_batch: linalg.solve keeps its operands' difference, the factors with their pivots, and its result."""
        blocks = self.blocks
        _, count, block, _ = blocks.shape
        out = f.like(blocks)
        pivots = f.new((count, block // 2), "int64")
        saved = f.save(f.like(blocks), f.like(blocks), pivots, out)
        return f.record(out, _cayley_backward, (blocks,), saved)


def _cayley_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def _blocks_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)


def boft(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """BOFT over a linear layer, one butterfly factor (its default): blocks, scales, and a permutation buffer."""
    block = lora.block_size or BOFT_BLOCK
    while inputs % block:
        block -= 1  # PEFT refuses such a width
    blocks = build.parameter(f"{name}.boft_R", 1, inputs // block, block, block, dtype=lora.dtype, adapter=True)
    scales = build.parameter(f"{name}.boft_s", outputs, 1, dtype=lora.dtype, adapter=True)
    return Butterfly(base, blocks, scales, inputs)
