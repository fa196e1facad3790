"""The linear layers of litgpt's finetuning methods: LoRA over a fused qkv, adapter v2, bitsandbytes.

Sources: litgpt 0.4.0 lora.py, adapter_v2.py; lightning 2.2 fabric/plugins/precision/bitsandbytes.py; bitsandbytes 0.42
autograd/_functions.py (MatMul4Bit).
"""

from __future__ import annotations

from math import prod
from typing import Any

from memlint.estimate.adapters import QuantizedWeight
from memlint.estimate.build import Build
from memlint.estimate.engine.pool import GRADIENTS
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.families.litgpt_config import Config
from memlint.estimate.ops.basic import add, cat, copy, dropout, mul, scale
from memlint.estimate.ops.linear import Weight, cast_weight, linear, to_autocast
from memlint.estimate.ops.views import split
from memlint.estimate.records import Record

WORDS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "projection", "output_proj": "projection"}
"""Target names of other frameworks -> litgpt's ``lora_*`` switches."""
EVERYTHING = frozenset(("query", "key", "value", "projection", "mlp"))


def targets_of(targets: str | tuple[str, ...]) -> frozenset[str]:
    """litgpt's switches (query, key, value, projection, mlp, head) for a job's LoRA targets."""
    if isinstance(targets, str):
        return EVERYTHING if targets == "all-linear" else frozenset(("query", "value"))
    return frozenset(WORDS.get(t, t) for t in targets)


class Maker:
    """Makes the linears of one model as its finetuning method does."""

    def __init__(self, b: Build, c: Config) -> None:
        training = b.training
        self.build, self.config = b, c
        self.method = training.method
        lora = training.lora if self.method in ("lora", "qlora") else None
        self.lora = lora
        self.dtype = training.precision.weights
        self.targets = targets_of(lora.targets) if lora is not None else frozenset()
        self.kept: list[Tensor] | None = [] if training.quantization is not None and c.keeps_inputs else None
        """Inputs that ``ctx.tensors`` of a 4-bit product holds until the loss, and with it the graph, is let go."""

    def base(self, name: str, inputs: int, outputs: int, bias: bool) -> Any:
        """``torch.nn.Linear``, which lightning's plugin replaces by bitsandbytes' Linear4bit, lm_head included."""
        b = self.build
        quantization = b.training.quantization
        if quantization is None:
            return Plain(
                b.parameter(f"{name}.weight", outputs, inputs), b.parameter(f"{name}.bias", outputs) if bias else None
            )
        weight = QuantizedWeight(outputs, inputs, quantization, b.training.precision.weights)
        b.records.append(
            Record(f"{name}.weight", (outputs, inputs), quantization.type, False, "", b.count, tuple(weight.storages()))
        )
        return FourBit(weight, b.parameter(f"{name}.bias", outputs) if bias else None, self.kept)

    def linear(self, name: str, inputs: int, outputs: int, bias: bool, target: str) -> Any:
        """LoRALinear, AdapterV2Linear or the plain layer."""
        base = self.base(f"{name}.linear" if self.method != "full" else name, inputs, outputs, bias)
        b, dtype = self.build, self.dtype
        if self.method == "adapter_v2":
            offset = b.parameter(f"{name}.adapter_bias", outputs, dtype=dtype, adapter=True)
            factor = b.parameter(f"{name}.adapter_scale", outputs, dtype=dtype, adapter=True)
            return AdapterLinear(base, offset, factor)
        if self.lora is None or target not in self.targets:
            return base
        a = b.parameter(f"{name}.lora_A", self.lora.rank, inputs, dtype=dtype, adapter=True)
        weight = b.parameter(f"{name}.lora_B", outputs, self.lora.rank, dtype=dtype, adapter=True)
        return LoraLinear(base, a, weight, self.lora.dropout)

    def qkv(self, name: str, outputs: int) -> Any:
        """The fused projection: LoRAQKVLinear when any of q, k, v is adapted."""
        c, b, lora = self.config, self.build, self.lora
        bias = c.attention_bias
        widths = {
            "query": c.n_head * c.head_size,
            "key": c.n_query_groups * c.head_size,
            "value": c.n_query_groups * c.head_size,
        }
        parts = [width for word, width in widths.items() if word in self.targets]
        if lora is None or not parts:
            return self.linear(name, c.n_embd, outputs, bias, "qkv")
        base = self.base(f"{name}.linear", c.n_embd, outputs, bias)
        a = b.parameter(f"{name}.lora_A", lora.rank * len(parts), c.n_embd, dtype=self.dtype, adapter=True)
        weight = b.parameter(f"{name}.lora_B", sum(parts), lora.rank, dtype=self.dtype, adapter=True)
        if len(parts) < 3:
            b.buffer(8 * sum(parts))  # _lora_ind, int64
        return LoraQkv(base, a, weight, parts, outputs, lora.dropout, c)


class Plain:
    """``torch.nn.Linear``."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Weight, bias: Weight | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(f, x, self.weight, self.bias)


def _four_bit_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    dense = _dequantised(f, node.meta, grad.dtype)
    out = f.new(node.shapes[0][0], grad.dtype)
    del dense
    return (out,)


def _dequantised(f: Tape, shape: tuple[int, int], dtype: str) -> Tensor:
    # The plugin quantises from torch.half, so dequantize_4bit gives fp16, which is then cast to the input's dtype.
    half = f.new(shape, "fp16")
    dense = f.new(shape, dtype)
    del half
    return dense


class FourBit:
    """bitsandbytes' Linear4bit under lightning: the whole weight is dequantised for each product."""

    __slots__ = ("bias", "kept", "weight")

    def __init__(self, weight: QuantizedWeight, bias: Weight | None, kept: list[Tensor] | None) -> None:
        self.weight, self.bias, self.kept = weight, bias, kept

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        recorded = f.needs(x)
        dense = _dequantised(f, self.weight.shape, x.dtype)
        out = f.new((*x.shape[:-1], self.weight.shape[0]), x.dtype)
        del dense
        if not recorded:
            return out
        if self.kept is not None:
            f.save(x)
            self.kept.append(x.detach())
        return f.record(out, _four_bit_backward, (x,), (), self.weight.shape)


class LoraLinear:
    """LoRALinear.forward: ``pretrained + (dropout(x) @ A.T @ B.T) * scaling``."""

    __slots__ = ("a", "b", "base", "dropout")

    def __init__(self, base: Any, a: Weight, b: Weight, p: float) -> None:
        self.base, self.a, self.b, self.dropout = base, a, b, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        pretrained = self.base(f, x)
        lora = scale(f, linear(f, linear(f, dropout(f, x, self.dropout), self.a), self.b))
        return add(f, pretrained, lora)


class AdapterLinear:
    """AdapterV2Linear.forward: ``scale * (linear(x) + bias)``."""

    __slots__ = ("base", "factor", "offset")

    def __init__(self, base: Any, offset: Weight, factor: Weight) -> None:
        self.base, self.offset, self.factor = base, offset, factor

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return mul(f, self.factor, add(f, self.base(f, x), self.offset))


def _conv_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # convolution_backward: gradients of the input and of the weight in one call.
    first = f.new(node.shapes[0][0], grad.dtype) if node.edges[0] is not None else None
    second = f.new(node.shapes[1][0], grad.dtype, GRADIENTS) if node.edges[1] is not None else None
    return first, second


def conv1d(f: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """``F.conv1d`` with kernels of length one: x [B, r, T], weight [C, r, 1] -> [B, C, T]; saves both."""
    x = to_autocast(f, x)
    held = cast_weight(f, weight) if isinstance(weight, Weight) else weight
    assert held is not None
    recorded = f.needs(x, held)
    saved = f.save(x, held) if recorded else ()
    out = f.new((x.shape[0], held.shape[0], x.shape[2]), x.dtype)
    return f.record(out, _conv_backward, (x, held), saved) if recorded else out


def _index_copy_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


class LoraQkv:
    """LoRAQKVLinear: one A for all adapted parts, a grouped convolution as B, zeros where a part is not adapted."""

    __slots__ = ("a", "b", "base", "config", "dropout", "outputs", "parts")

    def __init__(self, base: Any, a: Weight, b: Weight, parts: list[int], outputs: int, p: float, c: Config) -> None:
        self.base, self.a, self.b = base, a, b
        self.parts, self.outputs, self.dropout, self.config = parts, outputs, p, c

    def conv(self, f: Tape, x: Tensor) -> Tensor:
        """LoRAQKVLinear.conv1d: x [B, parts * r, T] -> [B, C, T]; parts of unequal width are convolved apart."""
        c = self.config
        if c.n_head == c.n_query_groups:
            return conv1d(f, x, self.b)
        rows, ranks, length = x.shape
        rank = ranks // len(self.parts)
        inputs = split(f, x, *[(rows, rank, length)] * len(self.parts))
        weights = split(f, self.b, *[(part, rank) for part in self.parts])
        pieces = [conv1d(f, i, w) for i, w in zip(inputs, weights)]
        return cat(f, *pieces, shape=(rows, sum(self.parts), length))

    def zero_pad(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, C] spread over the fused width with index_copy; zeros elsewhere."""
        if len(self.parts) == 3:
            return x
        shape = (*x.shape[:-1], self.outputs)
        if self.config.old_zero_pad:
            zeros = f.new(shape, x.dtype)
            x = copy(f, x)
        # derivatives.yaml: the source's gradient is grad.index_select(dim, index).expand_as(source), so it is saved.
        saved = f.save(x) if f.needs(x) else ()
        out = f.new(shape, x.dtype)
        if self.config.old_zero_pad:
            del zeros
        return f.record(out, _index_copy_backward, (x,), saved, x.shape) if f.needs(x) else out

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, (heads + 2 groups) * head_size]."""
        pretrained = self.base(f, x)
        after_a = linear(f, dropout(f, x, self.dropout), self.a)
        rows, length, ranks = after_a.shape
        after_b = self.conv(f, after_a.view(rows, ranks, length))
        after_b = after_b.view(rows, length, prod(after_b.shape) // (rows * length))
        lora = scale(f, self.zero_pad(f, after_b))
        return add(f, pretrained, lora)
