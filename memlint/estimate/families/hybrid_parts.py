"""Mixers and feed-forwards of the hybrid types, with the names their configs give to the sizes."""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.mamba2_mixer import Mixer2, Sizes
from memlint.estimate.families.mamba_mixer import Mixer
from memlint.estimate.families.routers import GroupedRouter
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, mul, scale
from memlint.estimate.ops.experts import Experts
from memlint.models.architecture import Architecture


def _sizes(a: Architecture, inner: int, *, norm_groups: int, multipliers: bool = False) -> Sizes:
    return Sizes(
        inner=inner,
        heads=int(a.get("mamba_n_heads")),
        head_dim=int(a.get("mamba_d_head"))
        if a.get("mamba_d_head") != "auto"
        else inner // int(a.get("mamba_n_heads")),
        groups=int(a.get("mamba_n_groups", 1)),
        state=int(a.get("mamba_d_state", 256)),
        kernel=int(a.get("mamba_d_conv", 4)),
        chunk=int(a.get("mamba_chunk_size", 256)),
        conv_bias=bool(a.get("mamba_conv_bias", True)),
        bias=bool(a.get("mamba_proj_bias", False)),
        out_bias=bool(a.get("projectors_bias" if a.model_type == "falcon_h1" else "mamba_proj_bias", False)),
        norm_groups=norm_groups,
        multipliers=multipliers,
        act=str(a.get("hidden_act") or "silu"),
    )


def bamba_mixer(a: Architecture, b: Build, name: str) -> Mixer2:
    """bamba, granitemoehybrid."""
    inner = int(a.get("mamba_expand", 2) * a.hidden_size)
    return Mixer2(a, b, name, _sizes(a, inner, norm_groups=int(a.get("mamba_n_groups", 1))))


def falcon_mixer(a: Architecture, b: Build, name: str) -> Mixer2:
    """falcon_h1: projections scaled by a vector, gated norm optional."""
    inner = int(a.get("mamba_d_ssm") or a.get("mamba_expand", 2) * a.hidden_size)
    normed = bool(a.get("mamba_rms_norm", False))
    groups = int(a.get("mamba_n_groups", 1)) if normed else 0
    size = 4 if b.training.precision.weights == "fp32" else 2
    sizes = _sizes(a, inner, norm_groups=groups, multipliers=True)
    b.buffer((2 * inner + 2 * sizes.groups * sizes.state + sizes.heads) * size)
    return Mixer2(a, b, name, sizes)


def nemotron_mixer(a: Architecture, b: Build, name: str) -> Mixer2:
    """nemotron_h."""
    heads, width = int(a.get("mamba_num_heads")), int(a.get("mamba_head_dim"))
    groups = int(a.get("n_groups", 8))
    return Mixer2(
        a,
        b,
        name,
        Sizes(
            inner=heads * width,
            heads=heads,
            head_dim=width,
            groups=groups,
            state=int(a.get("ssm_state_size", 128)),
            kernel=int(a.get("conv_kernel", 4)),
            chunk=int(a.get("chunk_size", 128)),
            conv_bias=bool(a.get("use_conv_bias", True)),
            bias=bool(a.get("use_bias", False)),
            out_bias=bool(a.get("use_bias", False)),
            norm_groups=groups,
            act=str(a.get("mamba_hidden_act") or "silu"),
        ),
    )


def jamba_mixer(a: Architecture, b: Build, name: str) -> Mixer:
    """jamba: the first-generation mixer with norms of dt, B and C."""
    return Mixer(
        a,
        b,
        name,
        inner=int(a.get("mamba_expand", 2)) * a.hidden_size,
        state=int(a.get("mamba_d_state", 16)),
        rank=int(a.get("mamba_dt_rank")),
        kernel=int(a.get("mamba_d_conv", 4)),
        conv_bias=bool(a.get("mamba_conv_bias", True)),
        bias=bool(a.get("mamba_proj_bias", False)),
        norms="weighted",
    )


class PlainMlp:
    """nemotron_h: ``down(act(up(x)))``."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int) -> None:
        bias = bool(a.get("mlp_bias", False))
        self.act = str(a.get("mlp_hidden_act") or "relu2")
        self.up = b.linear(f"{name}.up_proj", a.hidden_size, width, bias)
        self.down = b.linear(f"{name}.down_proj", width, a.hidden_size, bias)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]."""
        result: Tensor = self.down(f, activate(f, self.up(f, x), self.act))
        return result


class ScaledMlp:
    """falcon_h1: gate and output multiplied by numbers."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, width, bias = a.hidden_size, int(a.get("intermediate_size")), bool(a.get("mlp_bias", False))
        self.act = str(a.get("hidden_act") or "silu")
        self.gate = b.linear(f"{name}.gate_proj", h, width, bias)
        self.up = b.linear(f"{name}.up_proj", h, width, bias)
        self.down = b.linear(f"{name}.down_proj", width, h, bias)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]."""
        y = mul(f, self.up(f, x), activate(f, scale(f, self.gate(f, x)), self.act))
        return scale(f, self.down(f, y))


class NemotronMoe:
    """nemotron_h: sigmoid-routed experts without gate, optionally in a latent width, and a shared expert."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        count = int(a.get("n_routed_experts"))
        latent = a.get("moe_latent_size")
        bias = bool(a.get("mlp_bias", False))
        act = str(a.get("mlp_hidden_act") or "relu2")
        inner = int(latent) if latent is not None else h
        self.experts = Experts(
            b, f"{name}.experts", count, inner, int(a.get("moe_intermediate_size")), act, gated=False
        )
        self.router = GroupedRouter(
            b,
            f"{name}.gate",
            count,
            int(a.get("num_experts_per_tok")),
            h,
            groups=int(a.get("n_group", 1)),
            kept_groups=int(a.get("topk_group", 1)),
            normalise=bool(a.get("norm_topk_prob", True)),
        )
        self.shared = PlainMlp(a, b, f"{name}.shared_experts", int(a.get("moe_shared_expert_intermediate_size")))
        self.into = b.linear(f"{name}.fc1_latent_proj", h, inner, bias) if latent is not None else None
        self.back = b.linear(f"{name}.fc2_latent_proj", inner, h, bias) if latent is not None else None

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, h = x.shape
        residual = x
        x = x.view(b * s, h)
        _, weights, ids = self.router(f, x)
        if self.into is not None:
            x = self.into(f, x)
        x = self.experts(f, x, ids, weights)
        if self.back is not None:
            x = self.back(f, x)
        x = x.view(b, s, h)
        return add(f, x, self.shared(f, env, residual))
