"""T5's attention, feed-forward and norm.

Source: transformers 5.24 models/t5/modeling_t5.py (models/mt5 is the same).
"""

from __future__ import annotations

from typing import Any, Callable, Hashable

from memlint.estimate.adapters import QuantizedLora
from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.engine.whole import Part, describe, whole
from memlint.estimate.env import Env
from memlint.estimate.families.bias import biased_attention, eager_biased
from memlint.estimate.families.pieces import heads_of
from memlint.estimate.families.products import Product
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, copy, dropout, mean_last, mul, rsqrt, shift, square
from memlint.estimate.ops.views import where
from memlint.estimate.quantized import BITSANDBYTES, QuantizedLinear
from memlint.models.architecture import Architecture


def counted(module: Any) -> Any:
    """A linear layer, counted as a whole where it does much: measuring a plain one takes longer than running it."""
    return Product(module) if isinstance(module, QuantizedLora) else module


def _answers_in_kind(module: Any) -> bool:
    module = module.module if isinstance(module, Product) else module
    base = getattr(module, "base", module)
    return isinstance(base, QuantizedLinear) and base.weight.quantization.type in BITSANDBYTES


class Norm:
    """T5LayerNorm: the variance in fp32, the product in the promoted dtype, cast to the weight's when that is half."""

    __slots__ = ("part", "weight")

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight = b.parameter(f"{name}.weight", width)
        self.part = Part("t5 norm", self) if b.adapter and b.training.quantization is not None else None

    def describe(self, weights: list[Any]) -> Hashable:
        """See :class:`memlint.estimate.engine.whole.Layer`."""
        return describe(self.weight, weights)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., H] -> the same shape."""
        return self.normed(f, x) if self.part is None else whole(f, self.part, self.normed, x)

    def normed(self, f: Tape, x: Tensor) -> Tensor:
        """T5LayerNorm.forward."""
        weight = self.weight
        variance = mean_last(f, square(f, cast(f, x, "fp32")))
        x = mul(f, x, rsqrt(f, shift(f, variance)))
        if weight.dtype in ("fp16", "bf16"):
            x = cast(f, x, weight.dtype)
        return mul(f, weight, x)


class Attention:
    """T5Attention; the position bias comes from outside."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads, self.width = int(a.get("num_heads") or a.get("num_attention_heads")), int(a.get("d_kv"))
        inner = self.heads * self.width
        self.q, self.k, self.v = (counted(b.linear(f"{name}.{n}", h, inner)) for n in "qkv")
        self.o = counted(b.linear(f"{name}.o", inner, h))
        self.dropout = float(a.get("dropout_rate", 0.0))
        self.keeps_dtype = b.training.quantization is not None and _answers_in_kind(self.q)
        """Whether queries are in the dtype of what they are made from, autocast or not."""

    def __call__(
        self,
        f: Tape,
        env: Env,
        x: Tensor,
        source: Tensor,
        bias: Tensor | Callable[[Tensor], Tensor],
        mask: Tensor | None,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, H] over source [B, S, H] -> [B, T, H], attention weights; ``bias`` may still have to be made."""
        q = heads_of(self.q(f, x), self.heads, self.width)
        k = heads_of(self.k(f, source), self.heads, self.width)
        v = heads_of(self.v(f, source), self.heads, self.width)
        weights: Tensor | None = None
        joined = False
        if env.prefix is not None and env.prefix.active and causal:
            (k, v), joined = env.prefix.join(f, k, v), True
        elif env.prefix is not None and env.prefix.held and source is not x:
            (k, v), joined = env.prefix.across(f, k, v), True
        if not isinstance(bias, Tensor):
            bias = bias(q)
        if env.attention == "eager":
            out, weights = eager_biased(f, q, k, v, bias, mask, self.dropout, joined=joined)
        else:
            whole = masked_bias(f, bias, mask, causal=causal, looked_up=source is x)
            out = biased_attention(f, q, k, v, whole)
        out = self.o(f, out)
        return out, weights


def masked_bias(f: Tape, bias: Tensor, mask: Tensor | None, *, causal: bool, looked_up: bool) -> Tensor:
    """create_position_bias_mask of integrations/sdpa_attention.py: made anew in every layer.

    A bias looked up in a table is a permuted view of [T, S, h], so ``contiguous()`` copies it; zeros are passed on.
    """
    if mask is not None:
        bias = where(f, bias, mask) if mask.dtype == "bool" else add(f, bias, mask)
    elif causal:
        bias = where(f, bias, f.new((1, 1, bias.shape[2], bias.shape[3]), "bool"))
    return copy(f, bias) if looked_up else bias


class FeedForward:
    """T5LayerFF with T5DenseActDense or its gated form."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, width = a.hidden_size, int(a.get("d_ff"))
        kind = str(a.get("feed_forward_proj", "relu"))
        self.gated = bool(a.get("is_gated_act", kind.startswith("gated")))
        act = str(a.get("dense_act_fn") or kind.split("-")[-1])
        self.act = "gelu_new" if kind == "gated-gelu" else act
        root = f"{name}.DenseReluDense"
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        self.ups = [counted(b.linear(f"{root}.{n}", h, width)) for n in names]
        self.down = b.linear(f"{root}.wo", width, h)
        self.norm = Norm(b, f"{name}.layer_norm", h)
        self.dropout = float(a.get("dropout_rate", 0.0))

    def dense(self, f: Tape, x: Tensor) -> Tensor:
        """The two or three projections; the last one's input is cast to its weight's dtype (fp32 under autocast)."""
        if self.gated:
            gate = activate(f, self.ups[0](f, x), self.act)
            linear = self.ups[1](f, x)
            x = mul(f, gate, linear)
        else:
            gate = linear = None  # type: ignore[assignment]
            x = self.ups[0](f, x)
            x = activate(f, x, self.act)
        x = dropout(f, x, self.dropout)
        base = getattr(self.down, "base", self.down)  # an adapted layer shows its base's weight
        if isinstance(base, Linear) and base.weight.dtype != x.dtype:
            x = cast(f, x, base.weight.dtype)
        x = self.down(f, x)
        del gate, linear
        return x

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        forwarded = self.norm(f, x)
        forwarded = self.dense(f, forwarded)
        return add(f, x, dropout(f, forwarded, self.dropout))
