"""LoRA branches as PEFT runs them, over plain and quantised base layers.

Source: peft 0.21 tuners/lora/layer.py, and tuners/lora/{bnb,awq,aqlm,hqq}.py where the base is quantised.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import add, cast, copy, dropout, mul, promoted, scale, shift
from memlint.estimate.ops.linear import Weight, cast_weight, linear
from memlint.estimate.ops.low_rank import branch
from memlint.estimate.quantized import BITSANDBYTES, FOUR_BIT, QuantizedLinear
from memlint.estimate.quantized import QuantizedWeight as QuantizedWeight
from memlint.estimate.quantized import keeps_input as keeps_input
from memlint.job import Lora
from memlint.models.architecture import Architecture
from memlint.models.traits import CHATGLM, PACKED

if TYPE_CHECKING:
    from memlint.estimate.build import Build
    from memlint.estimate.ops.float8_linear import Float8Linear

DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    "baichuan": ("W_pack",),  # not in PEFT's table, which ends such a run
    "bart": ("q_proj", "v_proj"),
    "bert": ("query", "value"),
    "bloom": ("query_key_value",),
    "chatglm": ("query_key_value",),
    "codegen": ("qkv_proj",),
    "cohere": ("q_proj", "v_proj"),
    "deberta": ("in_proj",),
    "deberta-v2": ("query_proj", "value_proj"),
    "electra": ("query", "value"),
    "falcon": ("query_key_value",),
    "gpt2": ("c_attn",),
    "gpt_bigcode": ("c_attn",),
    "gpt_neo": ("q_proj", "v_proj"),
    "gpt_neox": ("query_key_value",),
    "gptj": ("q_proj", "v_proj"),
    "layoutlm": ("query", "value"),
    "mpt": ("Wqkv",),
    "mt5": ("q", "v"),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj",),
    "roberta": ("query", "value"),
    "t5": ("q", "v"),
    "xlm-roberta": ("query", "value"),
}
"""PEFT's TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING where it is not q_proj and v_proj (peft 0.21
utils/constants.py).
"""

OWN_CODE = {CHATGLM: "chatglm", PACKED: "baichuan"}
"""What a model's own code does -> its entry of the table above, where it is computed as another type."""

OUTPUT_LAYERS = ("lm_head", "embed_out", "score", "classifier", "output_projection", "output_layer")


def matches(targets: str | tuple[str, ...], name: str, architecture: Architecture | None) -> bool:
    """Whether PEFT would put an adapter on the linear module ``name``.

    ``all-linear`` takes every linear layer but the output layer (peft tuners_utils.py:
    _maybe_include_all_linear_layers); a string is a regular expression that must match the whole name; a tuple holds
    module names or endings.
    """
    leaf = name.rpartition(".")[2]
    if targets == "all-linear":
        return leaf not in OUTPUT_LAYERS
    if targets == "default":
        kind = architecture.model_type if architecture is not None else ""
        if architecture is not None and architecture.traits:
            kind = next((own for trait, own in OWN_CODE.items() if trait in architecture.traits), kind)
        return leaf in DEFAULT_TARGETS.get(kind, ("q_proj", "v_proj"))
    if architecture is not None and architecture.modules:
        own = architecture.modules.get(leaf, leaf)
        if not isinstance(targets, str):
            # What its code calls the parts around them is not known.
            return any(target.rpartition(".")[2] in (own, leaf) for target in targets)
        name = name[: len(name) - len(leaf)] + own
    if isinstance(targets, str):
        try:
            return re.fullmatch(targets, name) is not None
        except re.error:
            return False
    return any(name == target or name.endswith(f".{target}") or leaf == target for target in targets)


def names_tables(lora: Lora) -> bool:
    """Whether an adapter's targets may be embeddings: not PEFT's own choices, which are linear layers."""
    return lora.targets not in ("all-linear", "default") and not lora.dora


def factor_dtype(build: Build, weight: Any, lora: Lora) -> str:
    """dtype of an adapter's factors.

    Where PEFT does not make them fp32 they are in their base weight's dtype (peft tuners_utils.py:
    _move_adapter_to_device_of_base_layer), which is fp32 for what a class keeps in fp32.
    """
    training = build.training
    kept = training.precision.weights != "fp32" and training.quantization is None
    return "fp32" if kept and getattr(weight, "dtype", None) == "fp32" else lora.dtype


class LoraLinear:
    """A frozen base layer plus ``lora_B(lora_A(dropout(x))) * scaling``."""

    __slots__ = ("a", "b", "base", "inner", "lora", "magnitude")

    def __init__(self, base: Any, a: Weight, b: Weight, magnitude: Weight | None, lora: Lora) -> None:
        self.base = base
        self.inner: tuple[Float8Linear | None, Float8Linear | None] | None = None
        """lora_A and lora_B where one computes in float8."""
        self.a = a
        self.b = b
        self.magnitude = magnitude
        self.lora = lora

    @classmethod
    def build(cls, build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> LoraLinear:
        """Make the adapter's weights A [r, in], B [out, r] and DoRA's magnitude [out]."""
        rank, dtype = lora.rank, factor_dtype(build, getattr(base, "weight", None), lora)
        a = build.parameter(f"{name}.lora_A", rank, inputs, dtype=dtype, adapter=True)
        b = build.parameter(f"{name}.lora_B", outputs, rank, dtype=dtype, adapter=True)
        magnitude = (
            build.parameter(f"{name}.lora_magnitude_vector", outputs, dtype=dtype, adapter=True) if lora.dora else None
        )
        if isinstance(base, QuantizedLinear) and base.weight.quantization.type in _KEEPING_DTYPES:
            cls = QuantizedLora
        made = cls(base, a, b, magnitude, lora)
        if build.float8 is not None and not build.reference:
            inner = build.float8.adapted(f"{name}.lora_A", a), build.float8.adapted(f"{name}.lora_B", b)
            made.inner = None if inner == (None, None) else inner
        return made

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """lora.Linear.forward: base result, branch in the adapter's dtype, sum, back to the base's dtype."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = result.dtype
        x = cast(f, x, self.a.dtype)
        if self.magnitude is not None:
            return cast(f, self._dora(f, x, result, self.magnitude), dtype)
        # x, in the adapter's dtype, is there beside its dropped copy until the call returns.
        result = add(f, result, scale(f, self._branch(f, x)))
        return cast(f, result, dtype)

    def _branch(self, f: Tape, x: Tensor) -> Tensor:
        if self.inner is None:
            return branch(f, x, self.a, self.b, self.lora.dropout)
        first, second = self.inner
        x = dropout(f, x, self.lora.dropout)
        x = linear(f, x, self.a) if first is None else first(f, x)
        return linear(f, x, self.b) if second is None else second(f, x)

    def product(self, f: Tape, x: Tensor, weight: Tensor) -> Tensor:
        """``F.linear`` of the input."""
        return linear(f, x, weight)

    def _dora(self, f: Tape, x: Tensor, result: Tensor, magnitude: Weight) -> Tensor:
        """DoraLinearVariant.forward (variants.py) over DoraLinearLayer.forward (dora.py): result + DoRA's part of it.

        (magnitude / norm - 1) * base + magnitude / norm * branch * scaling, where the norm is that of W + scaling * B A
        and has no gradient. With dropout the base is the dropped input's product with the whole weight, which it saves.
        """
        base = result
        if self.lora.dropout:
            x = dropout(f, x, self.lora.dropout)
        merged = self._merged(f, x.dtype)
        weight = self._whole_weight(f, x.dtype)
        scaled = f.like(merged[0])
        total = f.like(scaled, promoted(weight, scaled))
        del scaled
        norm = f.new(magnitude.shape, total.dtype)
        del total
        ratio = mul(f, magnitude, norm)  # a quotient, which saves the divisor likewise
        branch = linear(f, self.product(f, x, self.a), self.b)
        bias = getattr(self.base, "bias", None)
        if self.lora.dropout:
            base = self.product(f, x, weight)
        elif bias is not None:
            base = add(f, base, bias)
        own = mul(f, shift(f, ratio), base)
        extra = add(f, own, scale(f, mul(f, ratio, branch)))
        del own, base, branch, ratio, norm, weight, merged
        return add(f, result, extra)

    def _merged(self, f: Tape, dtype: str) -> tuple[Tensor, ...]:
        """B A as lora_B(lora_A(eye)) in ``dtype``, and what its graph holds, which goes with it."""
        a, b = cast_weight(f, self.a), cast_weight(f, self.b)
        assert a is not None and b is not None
        eye = f.new((a.shape[1], a.shape[1]), self.a.dtype)
        seen = eye.detach() if a.dtype == eye.dtype else f.like(eye, a.dtype)
        first = f.new((a.shape[1], a.shape[0]), a.dtype)
        product = f.new((a.shape[1], b.shape[0]), a.dtype)
        del eye
        if f.hollow or not f.grad_enabled:  # nothing is saved
            del seen, first
            return (product if dtype == product.dtype else f.like(product, dtype),)
        return (product if dtype == product.dtype else f.like(product, dtype), seen, first)

    def _whole_weight(self, f: Tape, dtype: str) -> Tensor:
        """dequantize_module_weight(base).to(dtype); utils/integrations.py."""
        weight = self.base.weight
        if isinstance(weight, QuantizedWeight):
            return weight.whole(f, dtype)
        held: Tensor = weight.detach()
        return cast(f, held, dtype)


_KEEPING_DTYPES = (*BITSANDBYTES, "awq", "aqlm", "hqq")
"""Bases whose PEFT layers cast nothing under autocast (``requires_conversion``); GPTQ's casts as a plain one does."""


class QuantizedLora(LoraLinear):
    """A branch beside a quantised base: input and output keep their dtype under autocast."""

    __slots__ = ()

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """lora/bnb.py Linear4bit.forward and Linear8bitLt.forward; the former clones the base's result first."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        if self.base.weight.quantization.type in FOUR_BIT:
            result = copy(f, result)
        dtype = result.dtype
        if f.autocast is None:
            x = cast(f, x, self.a.dtype)
        if self.magnitude is not None:
            # Under autocast it stays in fp32, which the magnitude is in, and so does what the model computes from it.
            result = self._dora(f, x, result, self.magnitude)
            return result if f.autocast is not None else cast(f, result, dtype)
        output = scale(f, branch(f, x, self.a, self.b, self.lora.dropout))
        if f.autocast is None:
            output = cast(f, output, dtype)
        return add(f, result, output)
