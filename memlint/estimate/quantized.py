"""Quantised base weights, as bitsandbytes and the GPTQ and AWQ kernels train over them.

Sources: bitsandbytes 0.50.2 nn/modules.py (Linear4bit, Linear8bitLt), autograd/_functions.py (MatMul4Bit,
MatMul8bitLt), functional.py (quantize_4bit, dequantize_4bit), backends/cuda/ops.py and backends/default/ops.py (what
its operators allocate); 0.49.2 and 0.44.1 where they differ.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Backward
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast
from memlint.estimate.ops.linear import Weight, to_autocast
from memlint.estimate.versions import before
from memlint.job import Quantization, TrainingJob

if TYPE_CHECKING:
    from memlint.estimate.gptq import UnpackedLinear


FOUR_BIT = ("nf4", "fp4")
BITSANDBYTES = (*FOUR_BIT, "int8")


class QuantizedWeight:
    """A weight [out, in] stored in 4 or 8 bits with its statistics; dequantised whole for each product."""

    __slots__ = ("compute", "keeps", "loaded", "quantization", "shape", "two_steps", "unpacks")

    def __init__(
        self,
        outputs: int,
        inputs: int,
        quantization: Quantization,
        compute: str,
        *,
        loaded: str | None = None,
        unpacks: bool = False,
        keeps: tuple[str, ...] = (),
        two_steps: bool = False,
    ) -> None:
        self.shape = (outputs, inputs)
        self.quantization = quantization
        self.compute = compute
        self.loaded = loaded or compute
        """dtype that the weight had before it was quantised, and gets first when it is dequantised."""
        self.unpacks = unpacks
        """Whether torch ops unpack it and keep the result for the backward (auto_gptq)."""
        self.keeps = keeps
        """What the product keeps in ``ctx.tensors`` for as long as the graph lives (:func:`kept_by_products`)."""
        self.two_steps = two_steps
        """Whether the forward dequantises as the backward does, into ``loaded`` first: bitsandbytes up to 0.49."""

    @staticmethod
    def spares(job: TrainingJob, name: str, bias: bool, subclass: bool) -> bool:
        """Whether a layer stays as it is although nobody named it to be skipped.

        transformers 5.24 quantizers/base.py get_keys_to_not_convert: the layer of the model's last parameter, which is
        a classifier's ``score``; with a bias, whose name is last, no layer is called so. And
        integrations/bitsandbytes.py replace_with_bnb_linear: from 5.5 on nn.Linear itself and none of its subclasses.
        get_modules_to_not_convert leaves out ``_keep_in_fp32_modules`` as well, which T5 has.
        """
        quantization = job.training.quantization
        if quantization is None:
            return False
        if subclass and quantization.type in BITSANDBYTES and not before(job, "transformers", 5, 5):
            return True
        if quantization.type in BITSANDBYTES and name.endswith(".DenseReluDense.wo"):
            return True
        return name == "score" and not bias and quantization.skip == Quantization().skip

    @classmethod
    def of(cls, job: TrainingJob, outputs: int, inputs: int) -> QuantizedWeight:
        """A weight in the format that the job states, under the library versions that it states."""
        quantization, precision = job.training.quantization, job.training.precision
        assert quantization is not None
        return cls(
            outputs,
            inputs,
            quantization,
            precision.autocast or precision.weights,
            loaded=precision.weights if quantization.type in BITSANDBYTES else None,
            unpacks=quantization.type == "gptq" and before(job, "transformers", 4, 49),
            keeps=kept_by_products(job),
            two_steps=before(job, "bitsandbytes", 0, 50),
        )

    @property
    def bias_dtype(self) -> str | None:
        """dtype that the layer's first forward gives its bias for good: Linear4bit's that it computes in."""
        return self.compute if self.quantization.type in FOUR_BIT else None

    def storages(self) -> list[int]:
        """Bytes of each storage: payload, block statistics, second-level statistics.

        bitsandbytes functional.py quantize_4bit: two values a byte, one fp32 absmax per block; compress_statistics
        stores absmax in 8 bits with one fp32 per 256 and one fp32 offset. int8: one byte a value, one fp32 per row.
        NVFP4: two values a byte, one fp8 scale per 16 and one fp32 per tensor. GPTQ and AWQ (gptqmodel 7.7
        nn_modules/qlinear): packed int32, fp16 scales and packed zeros per group, GPTQ an int32 group for each input;
        AQLM and HQQ are taken to need as much as GPTQ of as many bits.
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
        bits, group = self.quantization.bits, self.quantization.group_size
        groups = -(-self.shape[1] // group) if group > 0 else 1
        packed = [n * bits // 8, groups * self.shape[0] * 2, groups * self.shape[0] * bits // 8]
        return packed if kind == "awq" else [*packed, self.shape[1] * 4]

    def whole(self, f: Tape, dtype: str) -> Tensor:
        """The weight as peft dequantises it for DoRA: 4 bits as the backward does, 8 bits in fp32 first."""
        if self.quantization.type != "int8":
            return _dequantized(f, self, dtype)
        product = f.new(self.shape, "fp32")
        dense = f.like(product)  # int8_vectorwise_dequant: A * stats * (1 / 127)
        del product
        return cast(f, dense, dtype)

    def module(self, bias: Weight | None) -> QuantizedLinear | UnpackedLinear:
        """The linear layer over this weight."""
        if self.unpacks:
            from memlint.estimate.gptq import UnpackedLinear

            return UnpackedLinear(self, bias)
        return QuantizedLinear(self, bias)


def kept_by_products(job: TrainingJob) -> tuple[str, ...]:
    """What bitsandbytes' products keep in ``ctx.tensors``, out of reach of checkpointing: input, codes.

    autograd/_functions.py: MatMul4Bit up to 0.43.1 its input (``(A, B)``, then ``(None, B)``); MatMul8bitLt up to the
    newest (0.50.2: ``(CAt, subA, A)``), in which ``CAt``, the input in 8 bits by column, was made for frozen weights
    too up to 0.44.1.
    """
    quantization = job.training.quantization
    if quantization is None:
        return ()
    if quantization.type == "int8":
        return ("input", "codes") if before(job, "bitsandbytes", 0, 45) else ("input",)
    return ("input",) if quantization.type in FOUR_BIT and before(job, "bitsandbytes", 0, 43, 2) else ()


def keeps_input(job: TrainingJob) -> bool:
    """Whether the products of a job's quantised layers keep their inputs (:func:`kept_by_products`)."""
    return bool(kept_by_products(job))


def _dequantized(f: Tape, weight: QuantizedWeight, dtype: str) -> Tensor:
    """dequantize_4bit(...).to(dtype): nested statistics become fp32 first; into ``loaded``, then cast."""
    statistics = _statistics(f, weight)
    dense = f.new(weight.shape, weight.loaded)
    del statistics
    return cast(f, dense, dtype)


def _statistics(f: Tape, weight: QuantizedWeight) -> Tensor | None:
    quantization = weight.quantization
    if quantization.type not in FOUR_BIT or not quantization.double_quant:
        return None
    return f.new((-(-prod(weight.shape) // quantization.block_size),), "fp32")


def _quantized_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # MatMul4Bit.backward: the weight is dequantised again, cast to the gradient's dtype, multiplied.
    dense = _dequantized(f, node.meta, grad.dtype)
    grad_x = f.new(node.shapes[0][0], grad.dtype)
    del dense
    return (grad_x,) if len(node.edges) == 1 else (grad_x, grad)


def _int8_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # MatMul8bitLt.backward: CB.to(dtype_A, copy=True).mul_(SCB / 127), then the product in that dtype.
    weight: QuantizedWeight = node.meta
    shape, dtype = node.shapes[0]
    dense = f.new(weight.shape, dtype)
    scales = f.new((weight.shape[0],), "fp32")
    del scales
    given = cast(f, grad, dtype)
    grad_x = f.new(shape, dtype)
    del dense, given
    return (grad_x,) if len(node.edges) == 1 else (grad_x, grad)


class QuantizedLinear:
    """bitsandbytes Linear4bit / Linear8bitLt (and GPTQ, AWQ kernels, which also dequantise for training)."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: QuantizedWeight, bias: Weight | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in x's dtype."""
        kind = self.weight.quantization.type
        if kind == "int8":
            return self._int8(f, x)
        return self._four_bit(f, x) if kind in FOUR_BIT else self._other(f, x)

    def _four_bit(self, f: Tape, x: Tensor) -> Tensor:
        # Linear4bit.forward: x.to(compute_dtype), product, result.to(input's dtype). gemm_4bit of 0.50.2 dequantises
        # into x's dtype; the offset of nested statistics is added out of place (_dequant_linear_fallback). Up to 1536
        # rows its fused kernel may need no dense weight; the backward always makes one.
        weight, dtype = self.weight, x.dtype
        x = cast(f, x, weight.compute)
        if weight.two_steps:
            dense = _dequantized(f, weight, x.dtype)
            out = f.new((*x.shape[:-1], weight.shape[0]), x.dtype)
            del dense
        else:
            nested = _statistics(f, weight)
            statistics = None if nested is None else f.like(nested)
            dense = f.new(weight.shape, x.dtype)
            out = f.new((*x.shape[:-1], weight.shape[0]), x.dtype)
            del dense, nested, statistics
        return cast(f, self._recorded(f, out, x, _quantized_backward), dtype)

    def _int8(self, f: Tape, x: Tensor) -> Tensor:
        # Linear8bitLt.forward casts nothing. MatMul8bitLt.forward: the input is cast to fp16 and quantised by row to
        # int8; with a threshold (llm_int8_threshold, 6.0 by default) its absolute values and a mask look for columns
        # with outliers, which data decide: none here. The int8 product is int32, dequantised into fp16, cast.
        rows, shape = prod(x.shape[:-1]), (*x.shape[:-1], self.weight.shape[0])
        half = cast(f, x, "fp16")
        statistics = f.new((rows,), "fp32")
        codes = f.new(x.shape, "int8")
        absolute = f.new(x.shape, "fp16")
        mask = f.new(x.shape, "bool")
        del absolute, mask, half
        product = f.new(shape, "int32")
        dense = f.new(shape, "fp16")
        out = dense if x.dtype == "fp16" else f.new(shape, x.dtype)
        del product, dense, statistics
        out = self._recorded(f, out, x, _int8_backward)
        if "codes" in self.weight.keeps and f.needs(out):
            f.linger(codes)
        return out

    def _other(self, f: Tape, x: Tensor) -> Tensor:
        weight, dtype = self.weight, x.dtype
        x = cast(f, to_autocast(f, x), weight.compute)
        dense = f.new(weight.shape, weight.compute)
        out = f.new((*x.shape[:-1], weight.shape[0]), x.dtype)
        del dense
        return cast(f, self._recorded(f, out, x, _quantized_backward), dtype)

    def _recorded(self, f: Tape, out: Tensor, x: Tensor, backward: Backward) -> Tensor:
        if not f.needs(x, self.bias):
            return out
        if "input" in self.weight.keeps:
            f.linger(x)
        inputs = (x,) if self.bias is None else (x, self.bias)
        return f.record(out, backward, inputs, (), self.weight)
