"""PEFT's adapters other than LoRA, at least in their trainable size: IA3, OFT, BOFT, VeRA, LoHa, LoKr, AdaLoRA,
prompts.

Sources: peft 0.21 tuners/{ia3,oft,boft,vera,loha,lokr,adalora,prefix_tuning,prompt_tuning}/{config,layer,model}.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import add, cast, mul, scale
from memlint.estimate.ops.linear import Weight, linear
from memlint.job import Lora
from memlint.models.architecture import Architecture

if TYPE_CHECKING:
    from memlint.estimate.build import Build

IA3_TARGETS = ("k_proj", "v_proj", "down_proj", "key", "value", "dense_h_to_4h", "query_key_value", "fc2", "wi_1", "wo")
IA3_FEEDFORWARD = ("down_proj", "fc2", "dense_4h_to_h", "wo", "c_proj")
"""Modules whose input rather than output is scaled (peft utils/constants.py ...FEEDFORWARD_MODULES_MAPPING)."""
VERA_RANK = 256
OFT_BLOCK = 32
VIRTUAL_TOKENS = 20
"""num_virtual_tokens where a config gives none (peft has no default; its examples use 20)."""


class Scaled:
    """IA3: the output (or, in feed-forward layers, the input) times a trained vector."""

    __slots__ = ("base", "feedforward", "vector")

    def __init__(self, base: Any, vector: Weight, feedforward: bool) -> None:
        self.base, self.vector, self.feedforward = base, vector, feedforward

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """ia3/layer.py Linear.forward."""
        if self.feedforward:
            result: Tensor = self.base(f, mul(f, x, cast(f, self.vector, x.dtype)))
            return result
        out = self.base(f, x)
        return mul(f, out, cast(f, self.vector, out.dtype))


class Rotated:
    """OFT and BOFT: the input turned by block-diagonal orthogonal matrices made from trained skew-symmetric ones."""

    __slots__ = ("base", "block", "generator")

    def __init__(self, base: Any, generator: Weight, block: int) -> None:
        self.base, self.generator, self.block = base, generator, block

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """oft/layer.py: x in the adapter's dtype, rotated, back; the rotated input is kept for the generator's
        gradient.
        """
        dtype = x.dtype
        turned = mul(f, cast(f, x, self.generator.dtype), Weight("r", (1,), self.generator.dtype, True, None))
        result: Tensor = self.base(f, cast(f, turned, dtype))
        return result


class SharedLowRank:
    """VeRA: frozen shared matrices between two trained vectors."""

    __slots__ = ("a", "b", "base", "inner", "outer")

    def __init__(self, base: Any, a: Weight, b: Weight, inner: Weight, outer: Weight) -> None:
        self.base, self.a, self.b, self.inner, self.outer = base, a, b, inner, outer

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """vera/layer.py: base + outer * B(inner * A(x))."""
        result: Tensor = self.base(f, x)
        dtype = result.dtype
        low = mul(f, linear(f, cast(f, x, self.a.dtype), self.a), self.inner)
        return cast(f, add(f, result, mul(f, linear(f, low, self.b), self.outer)), dtype)


class DenseUpdate:
    """LoHa, LoKr: an update of the weight's whole size is made from small factors in every forward, then multiplied."""

    __slots__ = ("base", "factors", "shape")

    def __init__(self, base: Any, factors: list[Weight], shape: tuple[int, int]) -> None:
        self.base, self.factors, self.shape = base, factors, shape

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """lycoris_utils.py: result + F.linear(x, delta_weight)."""
        result: Tensor = self.base(f, x)
        dtype = result.dtype
        first = f.new(self.shape, self.factors[0].dtype)
        delta = mul(f, first, Weight("d", self.shape, self.factors[0].dtype, True, None))
        del first
        return cast(f, add(f, result, scale(f, linear(f, cast(f, x, delta.dtype), delta))), dtype)


def _ia3(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    feedforward = name.rpartition(".")[2] in IA3_FEEDFORWARD
    vector = build.parameter(f"{name}.ia3_l", inputs if feedforward else outputs, dtype=lora.dtype, adapter=True)
    return Scaled(base, vector, feedforward)


def _oft(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    block = OFT_BLOCK
    blocks = max(1, inputs // block)
    elements = block * (block - 1) // 2
    return Rotated(base, build.parameter(f"{name}.oft_R", blocks, elements, dtype=lora.dtype, adapter=True), block)


def _boft(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    block = 4
    blocks = max(1, inputs // block)
    generator = build.parameter(f"{name}.boft_R", 1, blocks, block, block, dtype=lora.dtype, adapter=True)
    build.parameter(f"{name}.boft_s", outputs, 1, dtype=lora.dtype, adapter=True)
    return Rotated(base, generator, block)


def _vera(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    rank = VERA_RANK
    inner = build.parameter(f"{name}.vera_lambda_d", rank, dtype=lora.dtype, adapter=True)
    outer = build.parameter(f"{name}.vera_lambda_b", outputs, dtype=lora.dtype, adapter=True)
    a = Weight("vera_A", (rank, inputs), lora.dtype, False, None)
    b = Weight("vera_B", (outputs, rank), lora.dtype, False, None)
    return SharedLowRank(base, a, b, inner, outer)


def _loha(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    factors = [
        build.parameter(f"{name}.hada_w{n}_{side}", *shape, dtype=lora.dtype, adapter=True)
        for n in (1, 2)
        for side, shape in (("a", (outputs, lora.rank)), ("b", (lora.rank, inputs)))
    ]
    return DenseUpdate(base, factors, (outputs, inputs))


def _lokr(build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> Any:
    (small_out, large_out), (small_in, large_in) = _split(outputs), _split(inputs)
    factors = [
        build.parameter(f"{name}.lokr_w1", small_out, small_in, dtype=lora.dtype, adapter=True),
        build.parameter(f"{name}.lokr_w2_a", large_out, lora.rank, dtype=lora.dtype, adapter=True),
        build.parameter(f"{name}.lokr_w2_b", lora.rank, large_in, dtype=lora.dtype, adapter=True),
    ]
    return DenseUpdate(base, factors, (outputs, inputs))


def _split(size: int) -> tuple[int, int]:
    """lokr/layer.py factorization: the divisor pair closest to a square."""
    small = int(size**0.5)
    while size % small:
        small -= 1
    return small, size // small


KINDS: dict[str, tuple[Callable[..., Any], tuple[str, ...] | str]] = {
    "ia3": (_ia3, IA3_TARGETS),
    "oft": (_oft, "default"),
    "boft": (_boft, "default"),
    "vera": (_vera, "default"),
    "loha": (_loha, "default"),
    "lokr": (_lokr, "default"),
}
"""Method -> how it wraps a linear layer, and its targets where the config gives none."""


def prompt_parameters(build: Build, a: Architecture) -> int:
    """Make the trained prompts of prefix and prompt tuning; return how many tokens they add to the sequence."""
    method = build.training.method
    tokens = VIRTUAL_TOKENS
    if method in ("prompt", "prompt-tuning", "p-tuning"):
        build.parameter("prompt_encoder.embedding.weight", tokens, a.hidden_size, dtype="fp32", adapter=True)
        return tokens
    if method in ("prefix", "prefix-tuning"):
        heads = a.get("num_attention_heads", 1)
        width = a.get("num_key_value_heads", heads) * (a.get("head_dim") or a.hidden_size // heads)
        build.parameter(
            "prompt_encoder.embedding.weight", tokens, 2 * a.num_hidden_layers * width, dtype="fp32", adapter=True
        )
    return 0
