"""PEFT's adapters that make a matrix, or scale what a layer gives: MiSS, HRA, RoAd, SHiRA, HiRA.

Sources: peft 0.21 tuners/{miss,hra,road,shira,hira}/{config,layer}.py. Those with two factors beside the
layer, as LoRA has them, are in peft_factors.py, FourierFT and C3A in peft_fourier.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.float8 import CONV1D
from memlint.estimate.ops.basic import add, cast, dropout, mul, saving_output, scale
from memlint.estimate.ops.linear import Weight, cast_weight, linear, matmul
from memlint.job import Lora

if TYPE_CHECKING:
    from memlint.estimate.build import Build


MOST_REFLECTIONS = 1024
"""So many are followed: in a model of width 1024 or more each layer keeps 4 GiB by then."""


def _whole(base: Any, f: Tape, dtype: str) -> Tensor:
    """The base layer's weight in ``dtype``, without a gradient (get_base_weight: dequantised where it is packed)."""
    from memlint.estimate.quantized import QuantizedWeight

    weight = base.weight
    if isinstance(weight, QuantizedWeight):
        return weight.whole(f, dtype)
    held: Tensor = weight.detach()
    return cast(f, held, dtype)


def _sum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # SumBackward expands, and the reshape before it copies what is expanded.
    return (f.new(node.shapes[0][0], grad.dtype),)


class Miss:
    """MiSS (once Bone): the input's slices of ``r`` features, summed up, times one block [r, out]."""

    __slots__ = ("base", "block", "p")

    def __init__(self, base: Any, block: Weight, p: float) -> None:
        self.base, self.block, self.p = base, block, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """miss/layer.py MissLinear.forward with the default init_weights: the summed input alone is kept."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = x.dtype
        rank, outputs = self.block.shape
        x = dropout(f, cast(f, x, self.block.dtype), self.p)
        summed = f.new((*x.shape[:-1], rank), x.dtype)
        summed = f.record(summed, _sum_backward, (x,)) if f.needs(x) else summed
        block = cast_weight(f, self.block)
        assert block is not None
        return cast(f, add(f, result, matmul(f, summed, block, outputs)), dtype)


class Reflected:
    """HRA: the weight times a chain of ``r`` Householder reflections, each a matrix as wide as the input."""

    __slots__ = ("base", "vectors")

    def __init__(self, base: Any, vectors: Weight) -> None:
        self.base, self.vectors = base, vectors

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """hra/layer.py HRALinear.forward."""
        if not f.adapters:
            plain: Tensor = self.base(f, x)
            return plain
        dtype = x.dtype
        width = self.vectors.shape[0]
        eye = f.new((width, width), "fp32")
        chain = self._chain(f)
        turned = matmul(f, cast(f, eye, chain.dtype), chain, width)
        del eye, chain
        whole = matmul(f, _whole(self.base, f, turned.dtype), turned, width)
        del turned
        return cast(f, linear(f, cast(f, x, whole.dtype), whole), dtype)

    def _chain(self, f: Tape) -> Tensor:
        """get_delta_weight: ``weight - 2 * weight @ u @ u.t()`` for each column u, which keeps each doubled matrix."""
        width, rank = self.vectors.shape
        norm = f.new((rank,), self.vectors.dtype)
        unit = mul(f, self.vectors, norm)  # a quotient, which saves both sides likewise
        del norm
        chain = f.new((width, width), unit.dtype)
        for _ in range(min(rank, MOST_REFLECTIONS)):
            column = unit.view(width, 1)
            doubled = scale(f, chain)
            first = matmul(f, doubled, column, 1)
            del doubled
            second = matmul(f, first, column.view(1, width), width)
            del first
            chain = add(f, chain, second)
            del second
        return chain


def _rotate_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # stack gives views; each half's goes into zeros of the whole, the negated one first.
    negative = f.new((*grad.shape[:-1], grad.shape[-1] // 2), grad.dtype)
    second = f.like(grad)
    del negative
    first = f.like(grad)
    total = f.like(grad)
    del first, second
    return (total,)


def _repeated(f: Tape, vector: Weight, size: int) -> Tensor:
    """``repeat_interleave(2)``, whose backward sums what was repeated."""
    return f.record(f.new((size,), vector.dtype), _sum_backward, (vector,))


class Turned2D:
    """RoAd: the output's halves of each group turned by trained angles and scaled."""

    __slots__ = ("base", "lengths", "theta")

    def __init__(self, base: Any, theta: Weight, lengths: Weight) -> None:
        self.base, self.theta, self.lengths = base, theta, lengths

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """road/layer.py _apply_road: ``x * first + rotate_half(x) * second``, both kept in the adapter's dtype."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = result.dtype
        result = cast(f, result, self.theta.dtype)
        angles, lengths = (_repeated(f, vector, result.shape[-1]) for vector in (self.theta, self.lengths))
        first, second = mul(f, lengths, saving_output(f, angles)), mul(f, lengths, saving_output(f, angles))
        del angles, lengths
        negative = f.new((*result.shape[:-1], result.shape[-1] // 2), result.dtype)
        rotated = f.new(result.shape, result.dtype)
        del negative
        rotated = f.record(rotated, _rotate_backward, (result,)) if f.needs(result) else rotated
        return cast(f, add(f, mul(f, result, first), mul(f, rotated, second)), dtype)


def _sparse_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], "fp32"),)


class Sparse:
    """SHiRA: a copy of the weight with trained values added at fixed places."""

    __slots__ = ("base", "values")

    def __init__(self, base: Any, values: Weight) -> None:
        self.base, self.values = base, values

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """shira/layer.py Linear.forward: the whole weight is kept for the input's gradient, the input for its own."""
        if not f.adapters:
            plain: Tensor = self.base(f, x)
            return plain
        given = _whole(self.base, f, x.dtype)
        whole = f.like(given)
        del given
        places = f.new((2, self.values.shape[0]), "int64")
        saved = f.save(places) if f.grad_enabled else ()
        whole = f.record(whole, _sparse_backward, (self.values,), saved) if f.grad_enabled else whole
        del places, saved
        return linear(f, x, whole, getattr(self.base, "bias", None))


def _until_the_graph_goes(f: Tape, leaf: Leaf, grad: Tensor) -> None:
    # Without reentry it is the graph of the first run that owns the parameter.
    if f.unpacked:
        f.ends.append(grad)
    else:
        f.linger(grad)


class Multiplied:
    """HiRA: beside the layer, the input times the weight scaled element by element with a low-rank product.

    ``turned``: over transformers' Conv1D, whose weight ``transpose`` (peft utils/other.py) makes a new ``nn.Parameter``
    of. That asks for a gradient: the product is kept for it, and it stays until the graph goes.
    """

    __slots__ = ("a", "b", "base", "p", "turned")

    def __init__(self, base: Any, a: Weight, b: Weight, p: float, turned: bool) -> None:
        self.base, self.a, self.b, self.p, self.turned = base, a, b, p, turned

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """hira/layer.py Linear.forward."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = result.dtype
        (rank, inputs), outputs = self.a.shape, self.b.shape[0]
        product = matmul(f, self.a.view(inputs, rank), self.b.view(rank, outputs), outputs)
        x = dropout(f, cast(f, x, self.a.dtype), self.p)
        whole = _whole(self.base, f, getattr(self.base.weight, "dtype", dtype))
        if self.turned:
            leaf = Leaf((outputs, inputs), whole.dtype)
            leaf.sink = _until_the_graph_goes
            whole = Tensor(leaf.shape, whole.dtype, None, leaf)
        own = mul(f, whole, product.view(outputs, inputs))
        del whole
        branch = linear(f, x, own)
        del own
        # The product and the branch are there until the call returns, the base's result only until the sum.
        result = add(f, result, branch)
        return cast(f, result, dtype)


def miss(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """MiSS over a linear layer: one block [r, out]."""
    return Miss(base, _made(build, f"{name}.miss_block", lora, min(lora.rank, inputs), outputs), lora.dropout)


def hra(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """HRA over a linear layer: ``r`` vectors as wide as its input."""
    return Reflected(base, _made(build, f"{name}.hra_u", lora, inputs, lora.rank))


def road(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """RoAd over a linear layer: its default, road_1, trains an angle and a length for every two outputs."""
    theta, alpha = (_made(build, f"{name}.road_{part}", lora, outputs // 2) for part in ("theta", "alpha"))
    return Turned2D(base, theta, alpha)


def shira(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """SHiRA over a linear layer: as many values as LoRA of that rank trains, and their places as int32."""
    count = min(lora.rank * (inputs + outputs), inputs * outputs)
    build.buffer(2 * count * 4)
    return Sparse(base, _made(build, f"{name}.shira_weight", lora, count))


def hira(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    """HiRA over a linear layer: LoRA's two factors."""
    a = _made(build, f"{name}.hira_A", lora, lora.rank, inputs)
    b = _made(build, f"{name}.hira_B", lora, outputs, lora.rank)
    return Multiplied(base, a, b, lora.dropout, _is_conv1d(build))


def _made(build: Build, name: str, lora: Lora, *shape: int) -> Weight:
    return build.parameter(name, *shape, dtype=lora.dtype, adapter=True)


def _is_conv1d(build: Build) -> bool:
    architecture = build.job.architecture
    return architecture is not None and architecture.model_type in CONV1D
