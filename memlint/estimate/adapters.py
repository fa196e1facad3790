"""LoRA branches and quantised base weights, as PEFT and bitsandbytes run them.

Sources: peft 0.21 tuners/lora/layer.py; bitsandbytes 0.49 autograd/_functions.py (MatMul4Bit, MatMul8bitLt).
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, dropout, mul, scale
from memlint.estimate.ops.linear import Weight, linear, to_autocast
from memlint.estimate.versions import before
from memlint.job import Lora, Quantization, TrainingJob
from memlint.models.architecture import Architecture

if TYPE_CHECKING:
    from memlint.estimate.build import Build
    from memlint.estimate.gptq import UnpackedLinear

DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    "bart": ("q_proj", "v_proj"),
    "bert": ("query", "value"),
    "bloom": ("query_key_value",),
    "chatglm": ("query_key_value",),
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
    "mt5": ("q", "v"),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj",),
    "roberta": ("query", "value"),
    "t5": ("q", "v"),
    "xlm-roberta": ("query", "value"),
}
"""PEFT's TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING where it is not q_proj and v_proj (peft 0.21
utils/constants.py).
"""

_OUTPUT_LAYERS = ("lm_head", "embed_out", "score", "classifier", "output_projection")


def matches(targets: str | tuple[str, ...], name: str, architecture: Architecture | None) -> bool:
    """Whether PEFT would put an adapter on the linear module ``name``.

    ``all-linear`` takes every linear layer but the output layer (peft tuners_utils.py:
    _maybe_include_all_linear_layers); a string is a regular expression that must match the whole name; a tuple holds
    module names or endings.
    """
    leaf = name.rpartition(".")[2]
    if targets == "all-linear":
        return leaf not in _OUTPUT_LAYERS
    if targets == "default":
        kind = architecture.model_type if architecture is not None else ""
        return leaf in DEFAULT_TARGETS.get(kind, ("q_proj", "v_proj"))
    if isinstance(targets, str):
        try:
            return re.fullmatch(targets, name) is not None
        except re.error:
            return False
    return any(name == target or name.endswith(f".{target}") or leaf == target for target in targets)


class LoraLinear:
    """A frozen base layer plus ``lora_B(lora_A(dropout(x))) * scaling``."""

    __slots__ = ("a", "b", "base", "lora", "magnitude")

    def __init__(self, base: Any, a: Weight, b: Weight, magnitude: Weight | None, lora: Lora) -> None:
        self.base = base
        self.a = a
        self.b = b
        self.magnitude = magnitude
        self.lora = lora

    @classmethod
    def build(cls, build: Build, name: str, base: Any, inputs: int, outputs: int, lora: Lora) -> LoraLinear:
        """Make the adapter's weights A [r, in], B [out, r] and DoRA's magnitude [out]."""
        rank = lora.rank
        a = build.parameter(f"{name}.lora_A", rank, inputs, dtype=lora.dtype, adapter=True)
        b = build.parameter(f"{name}.lora_B", outputs, rank, dtype=lora.dtype, adapter=True)
        magnitude = (
            build.parameter(f"{name}.lora_magnitude_vector", outputs, dtype=lora.dtype, adapter=True)
            if lora.dora
            else None
        )
        return cls(base, a, b, magnitude, lora)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """lora.Linear.forward: base result, branch in the adapter's dtype, sum, back to the base's dtype."""
        result: Tensor = self.base(f, x)
        if not f.adapters:
            return result
        dtype = result.dtype
        x = cast(f, x, self.a.dtype)
        x = dropout(f, x, self.lora.dropout)
        if self.magnitude is not None:
            return self._dora(f, x, result, dtype)
        result = add(f, result, scale(f, linear(f, linear(f, x, self.a), self.b)))
        return cast(f, result, dtype)

    def _dora(self, f: Tape, x: Tensor, result: Tensor, dtype: str) -> Tensor:
        # peft tuners/lora/dora.py DoraLinearLayer.forward: weight norm of W + scaling * B A (detached), then
        # (mag_norm_scale - 1) * base_result + mag_norm_scale * lora_result * scaling.
        shape = (self.b.shape[0], self.a.shape[1])
        merged = f.new(shape, self.a.dtype)
        dense = f.new(shape, self.a.dtype)
        del merged, dense
        branch = linear(f, linear(f, x, self.a), self.b)
        del x
        assert self.magnitude is not None
        scaled_base = mul(f, self.magnitude, result)
        extra = add(f, scaled_base, scale(f, mul(f, self.magnitude, branch)))
        del scaled_base, branch
        result = add(f, result, extra)
        return cast(f, result, dtype)


class QuantizedWeight:
    """A weight [out, in] stored in 4 or 8 bits with its statistics; dequantised whole for each product."""

    __slots__ = ("compute", "keeps_input", "quantization", "shape", "unpacks")

    def __init__(
        self,
        outputs: int,
        inputs: int,
        quantization: Quantization,
        compute: str,
        *,
        unpacks: bool = False,
        keeps_input: bool = False,
    ) -> None:
        self.shape = (outputs, inputs)
        self.quantization = quantization
        self.compute = compute
        self.unpacks = unpacks
        """Whether torch ops unpack it and keep the result for the backward (auto_gptq)."""
        self.keeps_input = keeps_input
        """Whether the product keeps its input in ``ctx.tensors`` for as long as the graph lives (bitsandbytes)."""

    def storages(self) -> list[int]:
        """Bytes of each storage: payload, block statistics, second-level statistics.

        bitsandbytes functional.py quantize_4bit: two values a byte, one fp32 absmax per block; compress_statistics
        stores absmax in 8 bits with one fp32 per 256 and one fp32 offset. int8: one byte a value, one fp32 per row.
        NVFP4: two values a byte, one fp8 scale per 16 and one fp32 per tensor. GPTQ and AWQ: packed int32, fp16 scales
        and packed zeros per group of 128.
        """
        n = prod(self.shape)
        kind = self.quantization.type
        if kind in ("nf4", "fp4"):
            blocks = -(-n // self.quantization.block_size)
            payload = -(-n // 2)
            code = 16 * 4
            if self.quantization.double_quant:
                return [payload, blocks, -(-blocks // 256) * 4, 256 * 4, 4, code]
            return [payload, blocks * 4, code]
        if kind == "int8":
            return [n, self.shape[0] * 4]
        if kind == "fp8":
            return [n, 4]
        if kind == "nvfp4":
            return [-(-n // 2), -(-n // 16), 4]
        bits = self.quantization.bits
        groups = -(-self.shape[1] // 128)
        return [n * bits // 8, groups * self.shape[0] * 2, groups * self.shape[0] * bits // 8, self.shape[1] * 4]

    def module(self, bias: Weight | None) -> QuantizedLinear | UnpackedLinear:
        """The linear layer over this weight."""
        if self.unpacks:
            from memlint.estimate.gptq import UnpackedLinear

            return UnpackedLinear(self, bias)
        return QuantizedLinear(self, bias)


def keeps_input(job: TrainingJob) -> bool:
    """Whether bitsandbytes' products keep their inputs in ``ctx.tensors``, out of reach of checkpointing.

    autograd/_functions.py: MatMul4Bit up to 0.43.1 (``(A, B)``, then ``(None, B)``); MatMul8bitLt up to the newest
    (0.50.2: ``(CAt, subA, A)``).
    """
    quantization = job.training.quantization
    if quantization is None:
        return False
    if quantization.type == "int8":
        return True
    return quantization.type in ("nf4", "fp4") and before(job, "bitsandbytes", 0, 43, 2)


def _quantized_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # MatMul4Bit.backward: the weight is dequantised again, cast to the gradient's dtype, multiplied.
    weight: QuantizedWeight = node.meta
    dense = f.new(weight.shape, weight.compute)
    grad_x = f.new(node.shapes[0][0], grad.dtype)
    del dense
    return (grad_x,) if len(node.edges) == 1 else (grad_x, grad)


class QuantizedLinear:
    """bitsandbytes Linear4bit / Linear8bitLt (and GPTQ, AWQ kernels, which also dequantise for training)."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: QuantizedWeight, bias: Weight | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """Linear4bit.forward: x to the compute dtype, product with the dequantised weight, result in x's dtype."""
        weight = self.weight
        if weight.quantization.type == "int8":
            return self._int8(f, x)
        dtype = x.dtype
        x = to_autocast(f, x)
        x = cast(f, x, weight.compute)
        dense = f.new(weight.shape, weight.compute)
        out = f.new((*x.shape[:-1], weight.shape[0]), x.dtype)
        del dense
        return cast(f, self._recorded(f, out, x), dtype)

    def _int8(self, f: Tape, x: Tensor) -> Tensor:
        # Linear8bitLt.forward casts nothing. MatMul8bitLt.forward: the input is cast to fp16, quantised by row to int8
        # beside its statistics; the int8 product is int32 and dequantised into fp16, cast to the input's dtype. The
        # backward dequantises the weight.
        rows = prod(x.shape[:-1])
        half = cast(f, x, "fp16") if x.dtype != "fp16" else x
        codes = f.new(x.shape, "int8")
        statistics = f.new((rows,), "fp32")
        product = f.new((*x.shape[:-1], self.weight.shape[0]), "int32")
        out = f.new((*x.shape[:-1], self.weight.shape[0]), "fp16")
        del product, codes, statistics, half
        return self._recorded(f, cast(f, out, x.dtype), x)

    def _recorded(self, f: Tape, out: Tensor, x: Tensor) -> Tensor:
        if not f.needs(x, self.bias):
            return out
        if self.weight.keeps_input:
            f.linger(x)
        inputs = (x,) if self.bias is None else (x, self.bias)
        return f.record(out, _quantized_backward, inputs, (), self.weight)
