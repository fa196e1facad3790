"""The second-generation Mamba mixer: mamba2, bamba, granitemoehybrid, falcon_h1, nemotron_h, zamba2.

Source: transformers 5.24 models/{mamba2,bamba,granitemoehybrid,falcon_h1,nemotron_h}/modeling_*.py. The rule is that of
mamba_mixer: with mamba-ssm and causal-conv1d one Function from projection to projection, which keeps no decay matrix;
a scan alone where out_proj is quantised (axolotl 0.19 monkeypatch/models/nemotron_h/modeling.py:34); else the PyTorch
path.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.mamba_mixer import bare
from memlint.estimate.kernels import CONV, MAMBA
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import activation, cast, mul, saving_output, scale
from memlint.estimate.ops.chunk_scan import chunk_scan
from memlint.estimate.ops.linear import Weight
from memlint.estimate.ops.mamba2_kernels import Scan, chunk_scan_combined, split_conv_scan
from memlint.estimate.ops.mamba_kernels import causal_conv
from memlint.estimate.ops.norm import rms_norm
from memlint.estimate.ops.ssm import causal_convolution
from memlint.estimate.ops.views import split
from memlint.models.architecture import Architecture
from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Widths of a mixer and what is optional in it."""

    inner: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int
    conv_bias: bool
    bias: bool
    out_bias: bool
    norm_groups: int = 1
    """Groups within which the gated norm takes its mean; 0: no norm (falcon_h1 with mamba_rms_norm off)."""
    multipliers: bool = False
    """falcon_h1: the projected states are multiplied by a vector."""
    act: str = "silu"


class Mixer2:
    """Mamba2Mixer."""

    def __init__(self, a: Architecture, b: Build, name: str, z: Sizes) -> None:
        b.asks = True
        h = a.hidden_size
        self.z = z
        self.conv_dim = z.inner + 2 * z.groups * z.state
        self.dt_bias = b.parameter(f"{name}.dt_bias", z.heads)
        self.a_log = b.parameter(f"{name}.A_log", z.heads)
        self.d = b.parameter(f"{name}.D", z.heads)
        self.conv = b.parameter(f"{name}.conv1d.weight", self.conv_dim, 1, z.kernel)
        self.conv_bias: Weight | None = b.parameter(f"{name}.conv1d.bias", self.conv_dim) if z.conv_bias else None
        self.in_proj = b.linear(f"{name}.in_proj", h, z.inner + self.conv_dim + z.heads, z.bias)
        self.norm = b.parameter(f"{name}.norm.weight", z.inner) if z.norm_groups else None
        self.out_proj = b.linear(f"{name}.out_proj", z.inner, h, z.out_bias)
        self.vector = Tensor((z.inner + self.conv_dim + z.heads,), b.training.precision.weights, None)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        z = self.z
        b, s, _ = x.shape
        dtype = x.dtype
        projected: Tensor = self.in_proj(f, x)
        if z.multipliers:
            # mup_vector is a buffer in the weights' dtype: under autocast the product is fp32.
            projected = mul(f, projected, self.vector)
        decay = scale(f, saving_output(f, cast(f, self.a_log, "fp32")))
        kernel, convolves = env.kernel(MAMBA), env.kernel(CONV)
        ends = bare(self.out_proj)
        if kernel and ends is not None and not env.evaluating:
            weights = (self.conv, self.conv_bias, self.dt_bias, decay, self.d, self.norm)
            return split_conv_scan(f, self.scan(b, s), projected, *weights, *ends)
        del ends
        gate, mixed, dt = split(f, projected, (b, s, z.inner), (b, self.conv_dim, s), (b, s, z.heads))
        before = mixed.dtype
        if convolves:
            mixed = causal_conv(f, mixed, self.conv, self.conv_bias)
        else:
            mixed = activate(f, causal_convolution(f, mixed, self.conv, self.conv_bias), z.act)
            mixed = cast(f, mixed, before)
        narrow = (b, s, z.groups, z.state)
        hidden, key, query = split(f, mixed, (b, s, z.heads, z.head_dim), narrow, narrow)
        if kernel:
            out = chunk_scan_combined(f, self.scan(b, s), hidden, dt, decay, key, query, self.d, self.dt_bias)
        else:
            scanned = (hidden, dt, decay, key, query, z.chunk, self.d, self.dt_bias)
            # causal_conv1d's result lies as its input does, a transposed projection (empty_like, causal_conv1d.cpp).
            out = chunk_scan(f, *scanned, channels_first=not convolves)
            del scanned
        out = self.gated(f, out.view(b, s, z.inner), gate)
        result: Tensor = self.out_proj(f, cast(f, out, dtype))
        return result

    def scan(self, rows: int, length: int) -> Scan:
        """The sizes of the scan over a batch."""
        z = self.z
        return Scan(
            rows=rows,
            length=length,
            heads=z.heads,
            head_dim=z.head_dim,
            groups=z.groups,
            state=z.state,
            chunk=z.chunk,
        )

    def gated(self, f: Tape, x: Tensor, gate: Tensor) -> Tensor:
        """MambaRMSNormGated: ``weight * norm(x * silu(gate))`` in fp32, within groups."""
        if self.norm is None:
            return mul(f, x, activation(f, gate, "silu"))
        dtype, shape = x.dtype, x.shape
        x = cast(f, x, "fp32")
        x = mul(f, x, activation(f, cast(f, gate, "fp32"), "silu"))
        groups = self.z.norm_groups
        x = rms_norm(f, x.view(*shape[:-1], groups, shape[-1] // groups), None)
        return mul(f, self.norm, cast(f, x.view(*shape), dtype))


def mamba2_mixer(a: Architecture, b: Build, name: str) -> Mixer2:
    """The mixer of mamba2 itself."""
    groups = int(a.get("n_groups", 8))
    heads = int(a.get("num_heads"))
    return Mixer2(
        a,
        b,
        name,
        Sizes(
            inner=int(a.get("expand", 2) * a.hidden_size),
            heads=heads,
            head_dim=int(a.get("head_dim", 64)),
            groups=groups,
            state=int(a.get("state_size", 128)),
            kernel=int(a.get("conv_kernel", 4)),
            chunk=int(a.get("chunk_size", 256)),
            conv_bias=bool(a.get("use_conv_bias", True)),
            bias=bool(a.get("use_bias", False)),
            out_bias=bool(a.get("use_bias", False)),
            norm_groups=groups,
            act=str(a.get("hidden_act") or "silu"),
        ),
    )
