"""litgpt's norm, rotary embedding and attention, with the adapter method's gated prefix.

Source: litgpt 0.4.0 (and lit-gpt of October 2023 where it differs) model.py, adapter.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.litgpt_config import Config
from memlint.estimate.families.litgpt_layers import Maker
from memlint.estimate.ops.attention import fused_attention, sdpa, softmax
from memlint.estimate.ops.basic import (
    add,
    cast,
    cat,
    copy,
    expand_copy,
    mean_last,
    mul,
    rsqrt,
    saving_output,
    scale,
    shift,
    slice_of,
)
from memlint.estimate.ops.linear import Weight, matmul
from memlint.estimate.ops.norm import layer_norm
from memlint.estimate.ops.views import split

PROMPT = 10
"""adapter_prompt_length (litgpt/adapter.py)."""


class Norm:
    """RMSNorm as litgpt writes it, or torch.nn.LayerNorm."""

    def __init__(self, b: Build, c: Config, name: str) -> None:
        train = b.training.method == "adapter_v2" or None
        self.config = c
        self.weight = b.parameter(f"{name}.weight", c.n_embd, adapter=bool(train), trainable=train)
        self.bias = None if c.rms_norm else b.parameter(f"{name}.bias", c.n_embd, adapter=bool(train), trainable=train)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., H] -> the same shape."""
        if self.bias is not None:
            return layer_norm(f, x, self.weight, self.bias)
        dtype = x.dtype
        x = cast(f, x, "fp32")
        norm_x = mean_last(f, mul(f, x, x))
        x_normed = mul(f, x, rsqrt(f, shift(f, norm_x)))
        weight: Tensor = self.weight
        if not self.config.norm_in_fp32:
            x_normed = cast(f, x_normed, dtype)
            return mul(f, x_normed, shift(f, weight) if self.config.unit_offset else weight)
        if self.config.unit_offset:
            weight = shift(f, weight)
        return cast(f, mul(f, x_normed, cast(f, weight, "fp32")), dtype)


def apply_rope(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """model.py apply_rope: the tables are fp32, so a half x is rotated in fp32 and cast back."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    rotated = cat(f, scale(f, second), first)
    roped = add(f, mul(f, x, cos), mul(f, rotated, sin))
    return cast(f, roped, x.dtype)


class Attention:
    """CausalSelfAttention; with the adapter method also the gated prefix of the layers from the third on."""

    def __init__(self, b: Build, c: Config, maker: Maker, name: str, kind: str, env: Env) -> None:
        self.config, self.env = c, env
        self.attn = maker.qkv(f"{name}.attn", (c.n_head + 2 * c.n_query_groups) * c.head_size)
        self.proj = maker.linear(f"{name}.proj", c.n_head * c.head_size, c.n_embd, c.bias, "projection")
        self.sliding = kind == "sliding"
        self.prefix: Weight | None = None
        if kind == "adapter":
            self.prefix = b.parameter(f"{name}.adapter_wte.weight", PROMPT, c.n_embd, dtype=maker.dtype, adapter=True)
            self.gate = b.parameter(f"{name}.gating_factor", 1, 1, c.n_head, 1, dtype=maker.dtype, adapter=True)

    def heads(self, f: Tape, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, heads, T, hs] from the interleaved projection; k and v are expanded to all heads."""
        c = self.config
        rows, length, _ = qkv.shape
        per_group = c.n_head // c.n_query_groups
        whole = (rows, c.n_head, length, c.head_size)
        small = (rows, c.n_query_groups, length, c.head_size)
        q, k, v = split(f, qkv, whole, small, small)
        if per_group > 1:
            # reshape of the split copies q unless there is one group; k and v of one group stay expanded views.
            if c.n_query_groups > 1:
                q = copy(f, q)
            k, v = expand_copy(f, k, whole), expand_copy(f, v, whole)
        return q, k, v

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        c = self.config
        rows, length, _ = x.shape
        qkv = self.attn(f, x)
        q, k, v = self.heads(f, qkv)
        cos, sin = self.env.state["rope"]
        n, size = c.rope_n_elem, c.head_size
        q_roped = apply_rope(f, _leading(f, q, n), cos, sin)
        k_roped = apply_rope(f, _leading(f, k, n), cos, sin)
        rest = (*q.shape[:-1], size - n)
        q = cat(f, q_roped, slice_of(f, q, rest), shape=q.shape)
        k = cat(f, k_roped, slice_of(f, k, rest), shape=k.shape)
        y = self.attend(f, q, k, v)
        y = y.view(rows, length, c.n_head * size)
        out: Tensor = self.proj(f, y)
        del qkv, q_roped, k_roped
        return out

    def attend(self, f: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """scaled_dot_product_attention, transposed and reshaped: a contiguous [B, T, heads, hs]."""
        c = self.config
        if c.attention_softcap:
            return self.softcapped(f, q, k, v)
        if self.prefix is None:
            return sdpa(f, q, k, v, capability=self.env.capability, dense=True)
        y = fused_attention(f, q, k, v)
        aqkv = self.attn(f, Tensor((1, PROMPT, c.n_embd), self.prefix.dtype, None, self.prefix.node))
        _, ak, av = self.heads(f, aqkv)
        length = q.shape[2]
        amask = f.new((length, PROMPT), "bool")
        # The bias that the memory-efficient kernel reads is padded to 16 columns (pad_bias, attention.cpp).
        ay = fused_attention(f, q, ak, av, Tensor((length, 16), amask.dtype, amask.storage))
        return copy(f, add(f, y, mul(f, self.gate, ay)))

    def softcapped(self, f: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Gemma 2: scores in full, tanh, a mask made in every layer, softmax in fp32."""
        length = q.shape[2]
        mask: Tensor | None = None
        if self.sliding:
            mask = self.mask(f, length, q.dtype)
            bias = self.mask(f, length, q.dtype)
            del bias
        scores = scale(f, matmul(f, q, k, length))
        scores = scale(f, saving_output(f, scale(f, scores)))
        if mask is None:
            mask = self.mask(f, length, q.dtype)
        scores = add(f, scores, mask)
        scores = cast(f, softmax(f, scores, "fp32"), q.dtype)
        y = matmul(f, scores, v, self.config.head_size)
        return copy(f, y)

    def mask(self, f: Tape, length: int, dtype: str) -> Tensor:
        """``ones(T, T).triu(1)`` filled where it is true."""
        ones = f.new((length, length), dtype)
        mask = f.new((length, length), dtype)
        del ones
        truth = f.new((length, length), "bool")
        del truth
        return mask


def _leading(f: Tape, x: Tensor, n: int) -> Tensor:
    return x if n == x.shape[-1] else slice_of(f, x, (*x.shape[:-1], n))
