"""The first-generation Mamba mixer: mamba, falcon_mamba, jamba.

Source: transformers 5.24 models/{mamba,falcon_mamba,jamba}/modeling_*.py. The rule: with the packages mamba-ssm and
causal-conv1d (estimate/kernels.py) training runs their Functions, which hold a state for every 2048 positions; else the
PyTorch path, which keeps the state of every one. A fused Function multiplies by the weights of x_proj and out_proj
itself, so an adapter there is passed by, and a quantised weight cannot serve: the scan then runs alone.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.norms import Norm
from memlint.estimate.kernels import CONV, MAMBA
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import activation, add, cast, copy, mul, saving_output, scale
from memlint.estimate.ops.gather import subtract
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.ops.mamba_kernels import causal_conv, mamba_inner, selective_scan
from memlint.estimate.ops.norm import rms_norm
from memlint.estimate.ops.ssm import causal_convolution, repack, scan
from memlint.estimate.ops.views import split
from memlint.models.architecture import Architecture


def bare(module: Any) -> tuple[Weight, Weight | None] | None:
    """Weight and bias of a linear layer below its adapters; None where the weight is quantised."""
    module = getattr(module, "base", module)
    weight = getattr(module, "weight", None)
    return (weight, module.bias) if isinstance(weight, Weight) else None


def straight(f: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[B, I, S] seen as [B, S, I] for a linear layer: a copy unless one sequence makes it a transposed matrix."""
    return copy(f, x, shape) if x.shape[0] > 1 else x.view(*shape)


class Mixer:
    """MambaMixer. ``norms``: none, plain (falcon_mamba: no weights), weighted (jamba)."""

    def __init__(
        self,
        a: Architecture,
        b: Build,
        name: str,
        *,
        inner: int,
        state: int,
        rank: int,
        kernel: int,
        conv_bias: bool,
        bias: bool,
        norms: str = "none",
    ) -> None:
        b.asks = True
        h = a.hidden_size
        self.inner, self.state, self.rank = inner, state, rank
        self.act = str(a.get("hidden_act") or "silu")
        self.a_log = b.parameter(f"{name}.A_log", inner, state)
        self.d = b.parameter(f"{name}.D", inner)
        self.conv = b.parameter(f"{name}.conv1d.weight", inner, 1, kernel)
        self.conv_bias: Weight | None = b.parameter(f"{name}.conv1d.bias", inner) if conv_bias else None
        self.in_proj = b.linear(f"{name}.in_proj", h, 2 * inner, bias)
        self.x_proj = b.linear(f"{name}.x_proj", inner, rank + 2 * state)
        self.dt_proj: Any = None
        if b.training.quantization is not None and norms != "none":
            # jamba and falcon_mamba call a quantised dt_proj (`hasattr(self.config, "_is_quantized")`).
            self.dt_proj = b.linear(f"{name}.dt_proj", rank, inner, True)
            self.dt_bias: Weight = getattr(self.dt_proj, "base", self.dt_proj).bias
        else:
            self.dt_weight = b.parameter(f"{name}.dt_proj.weight", inner, rank)
            self.dt_bias = b.parameter(f"{name}.dt_proj.bias", inner)
            # Its weight alone is multiplied: an adapter beside it gets no gradient, and so no states.
            b.idle, before = True, b.idle
            b.adapted(f"{name}.dt_proj", Linear(self.dt_weight, self.dt_bias), rank, inner)
            b.idle = before
        self.out_proj = b.linear(f"{name}.out_proj", inner, h, bias)
        self.norms: list[Any] | None = None
        self.plain = norms == "plain"
        if norms == "weighted":
            widths = {"dt_layernorm": rank, "b_layernorm": state, "c_layernorm": state}
            self.norms = [Norm(b, f"{name}.{key}", width, "llama") for key, width in widths.items()]
        elif norms == "plain":
            size = 4 if b.training.precision.weights == "fp32" else 2
            for width in (inner, state, state):
                b.buffer(width * size)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        i, n = self.inner, self.state
        dtype = x.dtype
        projected: Tensor = self.in_proj(f, x).view(b, 2 * i, s)
        decay = scale(f, saving_output(f, cast(f, self.a_log, "fp32")))
        kernel, convolves = env.kernel(MAMBA), env.kernel(CONV)
        into, out = bare(self.x_proj), bare(self.out_proj)
        fused = kernel and self.norms is None and self.dt_proj is None and not env.evaluating
        if fused and into is not None and out is not None:
            d, bias = cast(f, self.d, "fp32"), cast(f, self.dt_bias, "fp32")
            weights = (self.conv, self.conv_bias, into[0], self.dt_weight, *out)
            return mamba_inner(f, projected, *weights, decay, d, bias, norms=self.plain)
        del into, out
        hidden, gate = split(f, projected, (b, i, s), (b, i, s))
        before = hidden.dtype
        if convolves:
            hidden = causal_conv(f, hidden, self.conv, self.conv_bias)
        else:
            hidden = activate(f, causal_convolution(f, hidden, self.conv, self.conv_bias), self.act)
            hidden = cast(f, hidden, before)
        mixed: Tensor = self.x_proj(f, straight(f, hidden, (b, s, i)))
        step, key, value = split(f, mixed, (b, s, self.rank), (b, s, n), (b, s, n))
        if self.norms is not None:
            step, key, value = (norm(f, env, t) for norm, t in zip(self.norms, (step, key, value)))
        elif self.plain:
            step, key, value = rms_norm(f, step, None), rms_norm(f, key, None), rms_norm(f, value, None)
        if self.dt_proj is not None:
            step = self.dt_proj(f, step)
            step = subtract(f, step, self.dt_bias).view(b, i, s)
        else:
            step = repack(f, linear(f, step, self.dt_weight), (b, i, s))
        bias = cast(f, self.dt_bias, "fp32")
        if kernel:
            scanned = selective_scan(f, hidden, step, decay, key, value, cast(f, self.d, "fp32"), gate, bias)
        else:
            scanned = self.selective_scan(f, hidden, step, decay, key, value, gate, bias)
        shaped = scanned.view(b, s, i)
        turned = cast(f, shaped, dtype)
        result: Tensor = self.out_proj(f, straight(f, turned, turned.shape))
        return result

    def selective_scan(
        self,
        f: Tape,
        hidden: Tensor,
        step: Tensor,
        decay: Tensor,
        key: Tensor,
        value: Tensor,
        gate: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """mamba_selective_scan, the recurrent iteration."""
        b, i, s = hidden.shape
        n = self.state
        step = add(f, step, cast(f, bias, step.dtype).view(i, 1))
        if f.autocast is not None:
            step = cast(f, step, "fp32")
        step = activation(f, step)
        wide = step.view(b, i, s, 1)
        decays = saving_output(f, mul(f, decay.view(1, i, 1, n), wide))
        inputs = mul(f, wide, cast(f, key, "fp32").view(b, 1, s, n))
        updates = mul(f, inputs, cast(f, hidden, "fp32").view(b, i, s, 1))
        out, held = scan(f, decays, updates, value, hidden.dtype)
        out = add(f, out, mul(f, hidden, cast(f, self.d, "fp32").view(1, i, 1)))
        out = mul(f, out, activation(f, gate, "silu"))
        del held, updates
        return out
