"""Layers of qwen3_next and its kin: gated delta net and gated attention.

Source: transformers 5.24 models/qwen3_next/modeling_qwen3_next.py (Qwen3NextGatedDeltaNet, Qwen3NextAttention); axolotl
0.19 monkeypatch/models/{qwen3_next,qwen3_5}/modeling.py for packed rows. The delta rule and the convolution run in the
kernels of flash-linear-attention and causal-conv1d where a job has them (estimate/kernels.py), else in PyTorch.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.llama import Attention
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotate_both
from memlint.estimate.families.shapes import Shape, flag
from memlint.estimate.kernels import CONV, FLA, HUB
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import (
    activation,
    add,
    cast,
    cat,
    copy,
    expand_copy,
    mul,
    saving_output,
    scale,
    slice_of,
)
from memlint.estimate.ops.delta_rule import delta_rule
from memlint.estimate.ops.fla import chunk_gated_delta_rule, gated_norm, short_convolution
from memlint.estimate.ops.linear import Weight
from memlint.estimate.ops.mamba_kernels import causal_conv
from memlint.estimate.ops.norm import rms_norm
from memlint.estimate.ops.ssm import causal_convolution
from memlint.estimate.ops.views import split
from memlint.estimate.versions import before
from memlint.models.architecture import Architecture


class DeltaNet:
    """Qwen3NextGatedDeltaNet."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        b.asks = True
        h = a.hidden_size
        self.v_heads, self.k_heads = int(a.get("linear_num_value_heads")), int(a.get("linear_num_key_heads"))
        self.k_dim, self.v_dim = int(a.get("linear_key_head_dim")), int(a.get("linear_value_head_dim"))
        self.act = str(a.get("hidden_act") or "silu")
        keys, values = self.k_dim * self.k_heads, self.v_dim * self.v_heads
        self.dt_bias = b.parameter(f"{name}.dt_bias", self.v_heads)
        self.a_log = b.parameter(f"{name}.A_log", self.v_heads)
        self.conv = b.parameter(f"{name}.conv1d.weight", 2 * keys + values, 1, int(a.get("linear_conv_kernel_dim", 4)))
        self.separate = a.model_type != "qwen3_next"
        if self.separate:
            self.norm, self.out = self.output(b, name, values, h)
            self.qkv = b.linear(f"{name}.in_proj_qkv", h, 2 * keys + values)
            self.z = b.linear(f"{name}.in_proj_z", h, values)
            self.b = b.linear(f"{name}.in_proj_b", h, self.v_heads)
            self.a = b.linear(f"{name}.in_proj_a", h, self.v_heads)
        else:
            self.qkvz = b.linear(f"{name}.in_proj_qkvz", h, 2 * keys + 2 * values)
            self.ba = b.linear(f"{name}.in_proj_ba", h, 2 * self.v_heads)
            self.norm, self.out = self.output(b, name, values, h)
        self.fused_norm = before(b.job, "transformers", 5, 15)
        """fla's FusedRMSNormGated, which transformers took beside its operators up to 5.14."""
        self.packed = b.training.packing and b.job.framework.startswith("axolotl")
        """axolotl's own forward, which keeps packed sequences apart."""
        self.repeats = self.packed or before(b.job, "transformers", 5, 20, 1)
        """Query and key heads are repeated before the kernel, as transformers did up to 5.20.0 and axolotl does."""

    def output(self, b: Build, name: str, width: int, hidden: int) -> tuple[Weight, Any]:
        """The norm of each head's values and the projection behind it."""
        return b.parameter(f"{name}.norm.weight", self.v_dim), b.linear(f"{name}.out_proj", width, hidden)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        groups = self.k_heads
        keys, values = self.k_dim * self.k_heads, self.v_dim * self.v_heads
        narrow = (b, s, groups, self.k_dim)
        projected: tuple[Tensor, ...] = ()
        if self.separate:
            mixed = self.qkv(f, x)
            z, rate, step = self.z(f, x), self.b(f, x), self.a(f, x)
        else:
            projected = self.qkvz(f, x), self.ba(f, x)  # its names live as long as the forward
            mixed, z, rate, step = self.ordered(f, *projected)
        mixed = mixed.view(b, 2 * keys + values, s)
        dtype = mixed.dtype
        cache = env.state.get("cache")
        if cache is not None:
            # LinearAttentionLayer.update_conv_state (cache_utils.py) copies the last positions.
            cache.append(f.new((b, mixed.shape[1], self.conv.shape[-1]), dtype))
        if self.packed and env.kernel(FLA):
            mixed = short_convolution(f, mixed, self.conv, None)
        elif env.kernel(CONV):
            mixed = causal_conv(f, mixed, self.conv, None)
        else:
            mixed = activate(f, causal_convolution(f, mixed, self.conv, None), self.act)
            mixed = cast(f, mixed, dtype)
        if cache is not None:
            mixed = slice_of(f, mixed, mixed.shape)
        query, key, value = split(f, mixed, narrow, narrow, (b, s, self.v_heads, self.v_dim))
        beta = saving_output(f, rate.view(b, s, self.v_heads))
        decay = scale(f, saving_output(f, cast(f, self.a_log, "fp32")))
        g = mul(f, decay, activation(f, add(f, cast(f, step.view(b, s, self.v_heads), "fp32"), self.dt_bias)))
        del decay
        kernel = env.kernel(FLA)
        core = self.fused(f, query, key, value, g, beta) if kernel else delta_rule(f, query, key, value, g, beta)
        state = None
        if cache is not None:
            # The last state, which this frame holds, and update_recurrent_state's copy of it.
            state = f.new((b, self.v_heads, self.k_dim, self.v_dim), "fp32")
            cache.append(f.like(state))
        z = z.view(*core.shape)
        if kernel and (self.fused_norm or HUB in env.kernels):
            core = gated_norm(f, core, z, self.norm)
        else:
            core = self.gated(f, core, z)
        result: Tensor = self.out(f, core.view(b, s, values))
        del state, projected
        return result

    def fused(self, f: Tape, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """chunk_gated_delta_rule over parts of the convolution's output."""
        heads, repeated = value.shape[2], False
        if self.repeats and query.shape[2] != heads:
            shape = (*query.shape[:2], heads, query.shape[3])
            query, key, repeated = expand_copy(f, query, shape), expand_copy(f, key, shape), True
        return chunk_gated_delta_rule(f, query, key, value, g, beta, slices=(not repeated, not repeated, True))

    def ordered(self, f: Tape, projected: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """fix_query_key_value_ordering: the fused projections are taken apart and put together again by kind."""
        b, s, _ = projected.shape
        groups, repeat = self.k_heads, self.v_heads // self.k_heads
        keys, values = self.k_dim * self.k_heads, self.v_dim * self.v_heads
        narrow, wide = (b, s, groups, self.k_dim), (b, s, groups, repeat * self.v_dim)
        query, key, value, z = split(f, projected, narrow, narrow, wide, wide)
        rate, step = split(f, gates, (b, s, groups, repeat), (b, s, groups, repeat))
        if repeat > 1:
            value, z, rate, step = copy(f, value), copy(f, z), copy(f, rate), copy(f, step)
        query, key = copy(f, query, (b, s, keys)), copy(f, key, (b, s, keys))
        value = value.view(b, s, values) if repeat > 1 else copy(f, value, (b, s, values))
        return cat(f, query, key, value), z, rate, step

    def gated(self, f: Tape, x: Tensor, gate: Tensor) -> Tensor:
        """Qwen3NextRMSNormGated: norm, weight, then silu of the gate in fp32."""
        dtype = x.dtype
        x = rms_norm(f, x, self.norm)
        x = mul(f, x, activation(f, cast(f, gate, "fp32"), "silu"))
        return cast(f, x, dtype)


class GatedAttention(Attention):
    """Qwen3NextAttention: the query projection is twice as wide, its second half gates the output."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.kv = int(a.get("num_key_value_heads", self.heads))
        self.dim = int(a.get("head_dim") or h // self.heads)
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.shape = s
        bias = flag(a, s.qkv_bias)
        self.q = b.linear(f"{name}.q_proj", h, 2 * self.heads * self.dim, bias)
        self.k = b.linear(f"{name}.k_proj", h, self.kv * self.dim, bias)
        self.v = b.linear(f"{name}.v_proj", h, self.kv * self.dim, bias)
        self.o = b.linear(f"{name}.o_proj", self.heads * self.dim, h, bias)
        self.q_norm = Norm(b, f"{name}.q_norm", self.dim, s.norm)
        self.k_norm = Norm(b, f"{name}.k_norm", self.dim, s.norm)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        part = (b, s, self.heads, self.dim)
        q, gate = split(f, self.q(f, x), part, part)
        gate = copy(f, gate, (b, s, self.heads * self.dim))
        q = self.q_norm(f, env, q).view(b, self.heads, s, self.dim)
        k = self.k_norm(f, env, self.k(f, x).view(b, self.kv, s, self.dim))
        v = self.v(f, x).view(b, self.kv, s, self.dim)
        tables = env.state["rope"]
        q, k = rotate_both(f, q, k, tables, self.shape)
        cache = env.state.get("cache")
        if cache is not None:
            k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
            cache.append((k.detach(), v.detach()))
        out = env.attend(f, q, k, v, env.state["masks"]["full"], self.dropout, dense=True)
        out = mul(f, out, saving_output(f, gate))
        result: Tensor = self.o(f, out)
        return result
