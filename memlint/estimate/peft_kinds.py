"""PEFT's adapters other than LoRA that stand beside a linear layer: IA3, VeRA, LoHa, LoKr, AdaLoRA.

Sources: peft 0.21 tuners/{ia3,vera,loha,lokr,adalora,ln_tuning}/{config,layer,model}.py and utils/constants.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, dropout, mul, promoted, scale, shift
from memlint.estimate.ops.gather import divide
from memlint.estimate.ops.linear import Weight, cast_weight, linear, matmul
from memlint.estimate.ops.views import add_in_place
from memlint.estimate.peft_factors import delora, randlora, vblora
from memlint.estimate.peft_fourier import c3a, fourierft
from memlint.estimate.peft_rotations import boft, oft
from memlint.estimate.peft_updates import hira, hra, miss, road, shira
from memlint.job import Lora

if TYPE_CHECKING:
    from memlint.estimate.build import Build

_IA3_FEEDFORWARD: dict[str, tuple[str, ...]] = {
    "t5": ("wo",),
    "mt5": (),
    "gpt2": ("mlp.c_proj",),
    "gpt_bigcode": ("mlp.c_proj",),
    "gpt_neo": ("c_proj",),
    "bloom": ("mlp.dense_4h_to_h",),
    "gpt_neox": ("dense_4h_to_h",),
    "falcon": ("dense_4h_to_h",),
    "gptj": ("fc_out",),
    "mixtral": ("w2",),
    **dict.fromkeys(("opt", "bart", "phi"), ("fc2",)),
    **dict.fromkeys(("bert", "roberta", "deberta", "deberta-v2"), ("output.dense",)),
}
"""Endings of modules whose input rather than output is scaled (..._IA3_FEEDFORWARD_MODULES_MAPPING); ``down_proj`` of
the types left out, where those without an entry must name theirs."""


class Scaled:
    """IA3: the output (or, in feed-forward layers, the input) times a trained vector."""

    __slots__ = ("base", "feedforward", "vector")

    def __init__(self, base: Any, vector: Weight, feedforward: bool) -> None:
        self.base, self.vector, self.feedforward = base, vector, feedforward

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """ia3/layer.py Linear.forward: ``ia3_scaling = 1 * vector``, then a product in the vector's dtype, and back."""
        if not f.adapters:
            plain: Tensor = self.base(f, x)
            return plain
        scaling = scale(f, self.vector)
        if self.feedforward:
            dtype = x.dtype
            x = cast(f, x, self.vector.dtype)
            inner = cast(f, mul(f, x, scaling), dtype)
            result: Tensor = self.base(f, inner)
            return result
        out: Tensor = self.base(f, x)
        return cast(f, mul(f, out, scaling), out.dtype)


class SharedLowRank:
    """VeRA: frozen matrices that all layers share between two trained vectors."""

    __slots__ = ("a", "b", "base", "inner", "outer", "p")

    def __init__(self, base: Any, a: Weight, b: Weight, inner: Weight, outer: Weight, p: float) -> None:
        self.base, self.a, self.b, self.inner, self.outer, self.p = base, a, b, inner, outer, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """vera/layer.py Linear.forward: base + outer * B(inner * A(x)), B and A slices of the shared buffers."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype, given = result.dtype, x.dtype
        x = cast(f, x, self.inner.dtype)
        low = mul(f, self.inner, linear(f, dropout(f, x, self.p), self.a))
        result = add(f, result, mul(f, self.outer, linear(f, low, self.b)))
        return cast(f, cast(f, result, dtype), given)


class DenseUpdate:
    """LoHa and LoKr: an update of the weight's whole size, made from small factors in every forward."""

    __slots__ = ("base", "make")

    def __init__(self, base: Any, make: Callable[[Tape], Tensor]) -> None:
        self.base, self.make = base, make

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """loha/layer.py and lokr/layer.py: base + F.linear(x, delta_weight)."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        delta = self.make(f)
        given = cast(f, x, delta.dtype)
        branch = linear(f, given, delta)
        del delta, given
        result = add(f, result, branch)
        del branch
        return cast(f, result, x.dtype)


class Hadamard:
    """loha/layer.py HadaWeight: ((w1a @ w1b) * (w2a @ w2b)) * scale as one autograd function."""

    __slots__ = ("factors", "shape")

    def __init__(self, factors: tuple[Weight, ...], shape: tuple[int, int]) -> None:
        self.factors, self.shape = factors, shape

    def __call__(self, f: Tape) -> Tensor:
        """The delta weight [out, in]; in half precision under autocast, which no ``custom_fwd`` turns off."""
        recorded, f.grad_enabled = f.grad_enabled, False
        first, second = (self._product(f, *pair) for pair in (self.factors[:2], self.factors[2:]))
        product = f.like(first)
        del first, second
        out = f.like(product)
        del product
        f.grad_enabled = recorded
        return f.record(out, _hadamard_backward, self.factors) if recorded else out

    def _product(self, f: Tape, left: Weight, right: Weight) -> Tensor:
        given = cast_weight(f, right)
        held = cast_weight(f, left)
        assert given is not None and held is not None
        return f.new(self.shape, given.dtype)


def _hadamard_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    # Autocast is off here: the factors' products are in their own dtype. The first ``temp`` goes when the second is
    # there.
    dtype = node.shapes[0][1]
    scaled = f.like(grad)
    grads: list[Tensor] = []
    masked: Tensor | None = None
    for first in (0, 2):
        product = f.like(grad, dtype)
        following = f.like(product, promoted(grad, product))
        del product
        masked = following
        del following
        grads += [f.new(node.shapes[first + side][0], masked.dtype) for side in (0, 1)]
    del scaled, masked
    return tuple(grads)


class Kronecker:
    """lokr/layer.py make_kron: kron(w1, w2) * scale, w2 itself a product of two factors where the rank is small."""

    __slots__ = ("first", "second", "shape")

    def __init__(self, first: Weight, second: tuple[Weight, ...], shape: tuple[int, int]) -> None:
        self.first, self.second, self.shape = first, second, shape

    def __call__(self, f: Tape) -> Tensor:
        """The delta weight [out, in]; aten's kron is one product of two broadcast views."""
        left, second = self.first, self.second
        right: Tensor = second[0] if len(second) == 1 else _low_rank(f, *second)
        (a, c), (b, d) = left.shape, right.shape
        whole = mul(f, left.view(a, 1, c, 1), right.view(1, b, 1, d))
        del right
        return scale(f, whole).view(*self.shape)


def _low_rank(f: Tape, left: Weight, right: Weight) -> Tensor:
    given = cast_weight(f, right)
    held = cast_weight(f, left)
    assert given is not None and held is not None
    return matmul(f, held, given, right.shape[1])


class SingularValues:
    """AdaLoRA: ``result += (x @ (A * E).T @ B.T) * scaling / ranknum``."""

    __slots__ = ("a", "b", "base", "e", "p", "rank")

    def __init__(self, base: Any, a: Weight, e: Weight, b: Weight, rank: Weight, p: float) -> None:
        self.base, self.a, self.e, self.b, self.rank, self.p = base, a, e, b, rank, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """adalora/layer.py SVDLinear.forward."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        x = cast(f, x, self.a.dtype)
        down = mul(f, self.a, self.e)
        low = linear(f, dropout(f, x, self.p), down)
        del down
        scaled = scale(f, linear(f, low, self.b))
        del low
        # ``ranknum`` is a parameter that asks for a gradient, so the quotient saves what it divides.
        branch = divide(f, scaled, shift(f, self.rank))
        del scaled
        return add_in_place(f, result, branch)


def _ia3(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    a = build.job.architecture
    feedforward = name.endswith(_IA3_FEEDFORWARD.get(a.model_type if a is not None else "", ("down_proj",)))
    vector = build.parameter(f"{name}.ia3_l", inputs if feedforward else outputs, dtype=lora.dtype, adapter=True)
    return Scaled(base, vector, feedforward)


def _vera(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    rank, dtype = lora.rank, lora.dtype
    inner = build.parameter(f"{name}.vera_lambda_d", rank, dtype=dtype, adapter=True)
    outer = build.parameter(f"{name}.vera_lambda_b", outputs, dtype=dtype, adapter=True)
    # vera/model.py _init_vera_A_vera_B: one pair, as wide as the largest target.
    build.shared_buffer("vera_A", rank * inputs, dtype)
    build.shared_buffer("vera_B", outputs * rank, dtype)
    a = Weight("vera_A", (rank, inputs), dtype, False, None)
    b = Weight("vera_B", (outputs, rank), dtype, False, None)
    return SharedLowRank(base, a, b, inner, outer, lora.dropout)


def _loha(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    factors = tuple(
        build.parameter(f"{name}.hada_w{n}_{side}", *shape, dtype=lora.dtype, adapter=True)
        for n in (1, 2)
        for side, shape in (("a", (outputs, lora.rank)), ("b", (lora.rank, inputs)))
    )
    return DenseUpdate(base, Hadamard(factors, (outputs, inputs)))


def _lokr(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    (small_out, large_out), (small_in, large_in) = _split(outputs), _split(inputs)
    first = build.parameter(f"{name}.lokr_w1", small_out, small_in, dtype=lora.dtype, adapter=True)
    # LoKrLayer.update_layer: the second factor is whole unless the rank is below half its longer side.
    sides = (
        (("a", (large_out, lora.rank)), ("b", (lora.rank, large_in)))
        if lora.rank < max(large_out, large_in) / 2
        else (("", (large_out, large_in)),)
    )
    second = tuple(
        build.parameter(f"{name}.lokr_w2_{side}", *shape, dtype=lora.dtype, adapter=True) for side, shape in sides
    )
    return DenseUpdate(base, Kronecker(first, second, (outputs, inputs)))


def _split(size: int) -> tuple[int, int]:
    """lokr/layer.py factorization with decompose_factor -1: the divisor pair closest to a square, smaller first."""
    small = int(size**0.5)
    while size % small:
        small -= 1
    return small, size // small


def _adalora(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    rank, dtype = lora.rank, lora.dtype
    a = build.parameter(f"{name}.lora_A", rank, inputs, dtype=dtype, adapter=True)
    e = build.parameter(f"{name}.lora_E", rank, 1, dtype=dtype, adapter=True)
    b = build.parameter(f"{name}.lora_B", outputs, rank, dtype=dtype, adapter=True)
    ranknum = build.parameter(f"{name}.ranknum", 1, dtype=dtype, adapter=True)
    build.orthogonal += [weight.node for weight in (a, b) if weight.node is not None]
    return SingularValues(base, a, e, b, ranknum, lora.dropout)


def _unchanged(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    return base


Kind = Callable[["Build", str, Any, int, int, Lora], Any]
KINDS: dict[str, tuple[Kind, Lora]] = {
    "ia3": (_ia3, Lora(targets="default")),
    "oft": (oft, Lora(targets="default")),
    "boft": (boft, Lora(targets="default")),
    "vera": (_vera, Lora(targets="default", rank=256)),
    "loha": (_loha, Lora(targets="default", rank=8)),
    "lokr": (_lokr, Lora(targets="default", rank=8)),
    "adalora": (_adalora, Lora(targets="default", rank=12)),
    "miss": (miss, Lora(targets="default", rank=64)),
    "bone": (miss, Lora(targets="default", rank=64)),
    "hra": (hra, Lora(targets="default", rank=8)),
    "road": (road, Lora(targets="default")),
    "fourierft": (fourierft, Lora(targets="default")),
    "c3a": (c3a, Lora(targets="default")),
    "shira": (shira, Lora(targets="default", rank=32)),
    "hira": (hira, Lora(targets="default", rank=32)),
    "randlora": (randlora, Lora(targets="default", rank=32)),
    "vblora": (vblora, Lora(targets="default", rank=4)),
    "delora": (delora, Lora(targets="default", rank=8)),
    "ln-tuning": (_unchanged, Lora(targets=())),
}
"""Method -> how it wraps a linear layer, and peft's defaults where the job says nothing of the adapter (adalora: the
rank is ``init_r``, with which a run begins)."""


OTHER_ADAPTERS = (0.89, 1.16)
"""Range of what 36 of PEFT's methods reserve, as a share of LoRA's: 18.74 GiB (TinyLoRA) to 24.35 (IA3 on every layer)
where LoRA of rank 64 takes 21.00 (huggingface/peft method_comparison/MetaMathQA at 5d602fdbf, Llama-3.2-3B)."""


def unmodelled(method: str) -> str:
    """What is said of a method that has no model of its own."""
    return f"there is no memory model of the method `{method}`: computed as LoRA on its targets, with a wider interval"
