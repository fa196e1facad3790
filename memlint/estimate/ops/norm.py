"""Normalisation: composed RMSNorm as transformers writes it, and PyTorch's fused layer_norm and rms_norm kernels."""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, mean_last, mul, rsqrt, shift, square


def rms_norm(f: Tape, x: Tensor, weight: Tensor | None, *, style: str = "llama") -> Tensor:
    """transformers' RMSNorm (models/llama/modeling_llama.py, 5.24): fp32 inside, weight applied outside.

    ``style``: ``llama`` multiplies ``weight * x.to(dtype)``; ``olmo2`` multiplies in fp32 and casts the product
    (``helium`` casts the weight too);
    ``gemma`` computes ``x * (1 + weight.float())`` in fp32 and casts back.
    """
    dtype = x.dtype
    if style == "gemma":
        return _gemma_norm(f, x, weight)
    if style == "cohere":
        return _cohere_norm(f, x, weight)
    h = cast(f, x, "fp32")
    del x
    variance = mean_last(f, square(f, h))
    h = mul(f, h, rsqrt(f, shift(f, variance)))
    if style in ("olmo2", "helium"):
        assert weight is not None
        return cast(f, mul(f, cast(f, weight, "fp32") if style == "helium" else weight, h), dtype)
    h = cast(f, h, dtype)
    return h if weight is None else mul(f, weight, h)


def _gemma_norm(f: Tape, x: Tensor, weight: Tensor | None) -> Tensor:
    # models/gemma2/modeling_gemma2.py: output = self._norm(x.float()); output = output * (1.0 + self.weight.float());
    # return output.type_as(x)
    h = cast(f, x, "fp32")
    output = mul(f, h, rsqrt(f, shift(f, mean_last(f, square(f, h)))))
    del h
    if weight is not None:
        output = mul(f, output, shift(f, cast(f, weight, "fp32")))
    return cast(f, output, x.dtype)


def _cohere_norm(f: Tape, x: Tensor, weight: Tensor | None) -> Tensor:
    # models/cohere/modeling_cohere.py CohereLayerNorm: the mean is subtracted twice, weight.to(fp32) * h, cast back.
    h = cast(f, x, "fp32")
    mean = mean_last(f, h)
    variance = mean_last(f, square(f, add(f, h, mean)))
    h = mul(f, add(f, h, mean), rsqrt(f, shift(f, variance)))
    if weight is not None:
        h = mul(f, cast(f, weight, "fp32"), h)
    return cast(f, h, x.dtype)


def _layer_norm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # native_layer_norm_backward: gradients of input, weight and bias in one call.
    return tuple(
        [f.new(shape, dtype) if edge is not None else None for edge, (shape, dtype) in zip(node.edges, node.shapes)]
    )


def layer_norm(f: Tape, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``F.layer_norm``: saves the input, mean and reciprocal deviation (fp32 per row on CUDA).

    Under autocast it is on the fp32 list: a half input is cast to fp32 first and the result is fp32.
    """
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    recorded = f.needs(x, weight, bias)
    saved = f.save(x) if recorded else ()
    out = f.like(x)
    rows = x.shape[:-1]
    mean, deviation = f.new(rows, "fp32"), f.new(rows, "fp32")
    if not recorded:
        return out
    saved += f.save(weight, mean, deviation, bias)
    inputs = tuple(t for t in (x, weight, bias) if t is not None)
    return f.record(out, _layer_norm_backward, inputs, saved)


def _fused_rms_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(
        [f.new(shape, dtype) if edge is not None else None for edge, (shape, dtype) in zip(node.edges, node.shapes)]
    )


def fused_rms_norm(f: Tape, x: Tensor, weight: Tensor | None) -> Tensor:
    """One kernel that saves its input and one fp32 value a row (Liger-Kernel ops/rms_norm.py, F.rms_norm's fused
    form).
    """
    recorded = f.needs(x, weight)
    saved = f.save(x, weight) if recorded else ()
    out = f.like(x)
    deviation = f.new(x.shape[:-1], "fp32")
    if not recorded:
        return out
    saved += f.save(deviation)
    return f.record(out, _fused_rms_backward, (x,) if weight is None else (x, weight), saved)
