"""PEFT's adapters with two factors beside the layer, as LoRA has them, made another way: RandLoRA, VB-LoRA, DeLoRA.

Sources: peft 0.21 tuners/{randlora,vblora,delora}/{config,layer,model}.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, dropout, mul, scale
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.ops.views import add_in_place
from memlint.job import Lora

if TYPE_CHECKING:
    from memlint.estimate.build import Build

VECTORS = 256
"""num_vectors, and vector_length as well: vblora/config.py."""
CHOSEN = 2
"""topk: vblora/config.py."""


def _bases_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # UniqueBaseGrad.backward: each einsum multiplies the gradient out first.
    product = f.like(grad)
    inner = f.new(node.shapes[0][0], grad.dtype)
    del product
    product = f.like(grad)
    outer = f.new(node.shapes[1][0], grad.dtype)
    del product
    return inner, outer


class RandomBases:
    """RandLoRA: two frozen factors that all layers share, the smaller one scaled from both sides by what trains."""

    __slots__ = ("base", "inner", "outer", "p", "shape")

    def __init__(self, base: Any, inner: Weight, outer: Weight, shape: tuple[int, int], p: float) -> None:
        self.base, self.inner, self.outer, self.shape, self.p = base, inner, outer, shape, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """randlora/layer.py Linear.forward: the trained factor stands at the layer's narrower side."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype, kind = x.dtype, self.inner.dtype
        rank, bases = self.inner.shape
        narrow, wide = min(self.shape), max(self.shape)
        frozen: Tensor = Weight("randlora_B", (wide, bases * rank), kind, False, None)  # a view of what is shared
        scaled = f.new((rank, 1, narrow), kind)
        made = f.new((rank, bases, narrow), kind)
        del scaled
        made = f.record(made, _bases_backward, (self.inner, self.outer)).view(rank * bases, narrow)
        x = dropout(f, cast(f, x, kind), self.p)
        if narrow == self.shape[1]:
            branch = linear(f, linear(f, x, made), frozen)
        else:
            branch = linear(f, linear(f, x, frozen.view(bases * rank, wide)), made.view(narrow, rank * bases))
        del made
        branch = scale(f, branch)
        result = add(f, result, branch)
        del branch
        return cast(f, result, dtype)


class FromBank:
    """VB-LoRA: LoRA's two factors, put together from vectors of a bank that all layers share."""

    __slots__ = ("a", "b", "bank", "base", "p")

    def __init__(self, base: Any, a: Weight, b: Weight, bank: Weight, p: float) -> None:
        self.base, self.a, self.b, self.bank, self.p = base, a, b, bank, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """vblora/layer.py Linear.forward."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = x.dtype
        rank, tiles, _ = self.a.shape
        first = self._factor(f, self.a, (rank, tiles * VECTORS))
        second = self._factor(f, self.b, (self.b.shape[0] * VECTORS, rank))
        x = dropout(f, cast(f, x, self.bank.dtype), self.p)
        return cast(f, add(f, result, linear(f, linear(f, x, first), second)), dtype)

    def _factor(self, f: Tape, logits: Weight, shape: tuple[int, int]) -> Tensor:
        """_get_low_rank_matrix: the softmax of the chosen logits times their vectors, summed."""
        chosen = (*logits.shape[:-1], CHOSEN)
        weights, places = f.new(chosen, logits.dtype), f.new(chosen, "int64")
        vectors = f.new((*chosen, VECTORS), logits.dtype)
        products = f.like(vectors)
        out = f.new(shape, logits.dtype)
        del products
        return f.record(out, _factor_backward, (logits, self.bank), f.save(weights, places, vectors))


def _factor_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    vectors = node.saved[2]
    assert vectors is not None
    spread = f.like(vectors)
    bank = f.new(node.shapes[1][0], grad.dtype)
    del spread
    return f.new(node.shapes[0][0], grad.dtype), bank


class Bounded:
    """DeLoRA: LoRA's branch over the input times a frozen vector, its middle scaled by norms and a trained bound."""

    __slots__ = ("a", "b", "base", "bound", "p")

    def __init__(self, base: Any, a: Weight, b: Weight, bound: Weight, p: float) -> None:
        self.base, self.a, self.b, self.bound, self.p = base, a, b, bound, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """delora/layer.py DeloraLinear.forward; the vector (delora_w_norm) is in the adapter's dtype."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = x.dtype
        added = f.like(result)
        norms = f.new((self.a.shape[1],), self.a.dtype)
        low = linear(f, mul(f, dropout(f, x, self.p), norms), self.a)
        scaling = mul(f, self.bound, f.new((self.a.shape[0],), self.a.dtype))
        high = linear(f, mul(f, low, scaling), self.b)
        del low, norms, scaling
        added = add_in_place(f, added, high)
        del high
        return cast(f, add(f, result, added), dtype)


def randlora(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """RandLoRA over a linear layer: ceil(narrower side / r) bases."""
    shape = outputs, inputs
    narrow = min(inputs, outputs)
    bases = -(-narrow // lora.rank)
    inner = build.parameter(f"{name}.randlora_lambda", lora.rank, bases, dtype=lora.dtype, adapter=True)
    outer = build.parameter(f"{name}.randlora_gamma", bases, narrow, dtype=lora.dtype, adapter=True)
    # randlora/model.py _find_dim: the most outputs and the most inputs of any layer, whether or not one has both.
    build.widest = outputs, inputs = max(build.widest[0], outputs), max(build.widest[1], inputs)
    most = -(-min(outputs, inputs) // lora.rank)
    build.shared_buffer("randlora_A", lora.rank * min(outputs, inputs), "fp32")
    build.shared_buffer("randlora_B", max(outputs, inputs) * most * lora.rank, "fp32")
    return RandomBases(base, inner, outer, shape, lora.dropout)


def vblora(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """VB-LoRA over a linear layer: logits for each tile of both factors; the bank trains once (:func:`vector_bank`)."""
    a = build.parameter(
        f"{name}.vblora_logits_A", lora.rank, -(-inputs // VECTORS), VECTORS, dtype=lora.dtype, adapter=True
    )
    b = build.parameter(
        f"{name}.vblora_logits_B", -(-outputs // VECTORS), lora.rank, VECTORS, dtype=lora.dtype, adapter=True
    )
    bank = Weight("vblora_vector_bank", (VECTORS, VECTORS), lora.dtype, False, None)
    return FromBank(base, a, b, bank, lora.dropout)


def vector_bank(build: Build) -> None:
    """The parameter from which VB-LoRA makes every layer's factors; 256 KiB, so its gradients are not followed."""
    lora = build.lora
    build.parameter("vblora_vector_bank", VECTORS, VECTORS, dtype=lora.dtype if lora else "fp32", adapter=True)


def delora(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """DeLoRA over a linear layer: LoRA's two factors and one bound, with the norms of the weight's columns."""
    a = build.parameter(f"{name}.delora_A", lora.rank, inputs, dtype=lora.dtype, adapter=True)
    b = build.parameter(f"{name}.delora_B", outputs, lora.rank, dtype=lora.dtype, adapter=True)
    bound = build.parameter(f"{name}.delora_lambda", 1, dtype=lora.dtype, adapter=True)
    build.buffer(inputs * 4)
    return Bounded(base, a, b, bound, lora.dropout)
