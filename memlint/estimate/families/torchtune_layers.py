"""torchtune's linear layers, rotary embedding and attention call.

Sources: torchtune 0.4.0 modules/peft/lora.py, modules/position_embeddings.py, modules/attention_utils.py; torchao 0.5
dtypes/nf4tensor.py; torch 2.5 _inductor/kernel/flex_attention.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

from memlint.estimate.adapters import QuantizedWeight
from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, dropout, scale
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.records import Record

WORDS = {"o_proj": "output_proj", **dict.fromkeys(("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"), "mlp")}
"""Target names of other frameworks -> torchtune's modules; ``mlp`` is apply_lora_to_mlp."""


class Maker:
    """Makes the linears of one model as its builder does: plain, LoRA, or LoRA over NF4."""

    def __init__(self, b: Build) -> None:
        training = b.training
        self.build = b
        lora = training.lora if training.method in ("lora", "qlora") else None
        self.lora = lora
        targets = lora.targets if lora is not None else ()
        if isinstance(targets, str):
            every = ("q_proj", "k_proj", "v_proj", "output_proj", "mlp")
            targets = every if targets == "all-linear" else ("q_proj", "v_proj")
        self.targets = frozenset(WORDS.get(t, t) for t in targets)

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = False) -> Any:
        """nn.Linear, LoRALinear or FrozenNF4Linear."""
        b, lora = self.build, self.lora
        leaf = name.rpartition(".")[2]
        quantization = b.training.quantization
        base: Any
        if quantization is None:
            offset = b.parameter(f"{name}.bias", outputs) if bias else None
            base = Linear(b.parameter(f"{name}.weight", outputs, inputs), offset)
        else:
            weight = QuantizedWeight(outputs, inputs, quantization, b.training.precision.weights)
            record = Record(f"{name}.weight", (outputs, inputs), "nf4", False, "", b.count, tuple(weight.storages()))
            b.records.append(record)
            base = Nf4Linear(weight, b.training.compile)
        word = "mlp" if leaf in ("w1", "w2", "w3") else leaf
        if lora is None or word not in self.targets:
            return base
        dtype = b.training.precision.weights
        first = b.parameter(f"{name}.lora_a.weight", lora.rank, inputs, dtype=dtype, adapter=True)
        second = b.parameter(f"{name}.lora_b.weight", outputs, lora.rank, dtype=dtype, adapter=True)
        return LoraLinear(base, first, second, lora.dropout)


class LoraLinear:
    """``out + alpha / rank * lora_b(lora_a(dropout(x)))``."""

    __slots__ = ("a", "b", "base", "dropout")

    def __init__(self, base: Any, a: Weight, b: Weight, p: float) -> None:
        self.base, self.a, self.b, self.dropout = base, a, b, p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        out = self.base(f, x)
        lora_out = linear(f, dropout(f, x, self.dropout), self.a)
        lora_out = scale(f, linear(f, lora_out, self.b))
        return add(f, out, lora_out)


def _nf4_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    dense = node.meta.dequantised(f, grad.dtype)
    out = f.new(node.shapes[0][0], grad.dtype)
    del dense
    return (out,)


class Nf4Linear:
    """torchao's LinearNF4: saves the 4-bit weight alone and unpacks it in both directions."""

    __slots__ = ("compiled", "weight")

    def __init__(self, weight: QuantizedWeight, compiled: bool) -> None:
        self.weight, self.compiled = weight, compiled

    def dequantised(self, f: Tape, dtype: str) -> Tensor:
        """The whole weight; eagerly, get_original_weight first spreads both halves of each byte to int64 indices."""
        n = prod(self.weight.shape)
        if self.compiled:
            return f.new(self.weight.shape, dtype)
        first, second = f.new((n // 2,), "int64"), f.new((n // 2,), "int64")
        low, high = f.new((n // 2,), dtype), f.new((n // 2,), dtype)
        both = f.new((n,), dtype)
        del first, second, low, high, both
        return f.new(self.weight.shape, dtype)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        recorded = f.needs(x)
        dense = self.dequantised(f, x.dtype)
        out = f.new((*x.shape[:-1], self.weight.shape[0]), x.dtype)
        del dense
        return f.record(out, _nf4_backward, (x,), (), self) if recorded else out


def _rope_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # type_as, stack, and four products back: the fp32 gradient, its halves' products and sums.
    wide = f.like(grad, "fp32")
    half = (prod(grad.shape) // 2,)
    products = [f.new(half, "fp32") for _ in range(4)]
    first = f.like(grad, "fp32")
    second = f.like(grad, "fp32")
    del wide, products
    out = f.like(grad)
    del first, second
    return (out,)


def rope(f: Tape, x: Tensor, packed: bool) -> Tensor:
    """RotaryPositionalEmbeddings.forward: rotated in fp32, cast back; packed rows gather their own cos and sin."""
    b, _, s, d = x.shape
    recorded = f.needs(x)
    table = f.new((b, s, d), "fp32") if packed else None
    saved = f.save(table) if recorded and table is not None else ()
    wide = f.like(x, "fp32")
    half = (prod(x.shape) // 2,)
    products = [f.new(half, "fp32") for _ in range(2)]
    first = f.new(half, "fp32")
    del products
    products = [f.new(half, "fp32") for _ in range(2)]
    second = f.new(half, "fp32")
    del products
    stacked = f.like(x, "fp32")
    del first, second
    out = f.like(x)
    del wide, stacked
    return f.record(out, _rope_backward, (x,), saved) if recorded else out


def _flex_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    # flex_attention_backward: delta [B, h, S] fp32, then dq, dk, dv.
    b, heads, s, _ = node.shapes[0][0]
    delta = f.new((b, heads, s), "fp32")
    grads = tuple([f.new(shape, dtype) for shape, dtype in node.shapes])
    del delta
    return grads


def flex_attention(f: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The compiled flex kernel (or flash without packing): saves q, k, v, the output and one fp32 value a row."""
    b, heads, s, d = q.shape
    recorded = f.needs(q, k, v)
    saved = f.save(q, k, v) if recorded else ()
    out = f.new((b, s, heads, d), q.dtype)
    lse = f.new((b, heads, s), "fp32")
    if not recorded:
        return out
    saved += f.save(out, lse)
    return f.record(out, _flex_backward, (q, k, v), saved)
