"""OLMo Hybrid: gated delta nets with norms before, full attention with norms after the branches.

Source: transformers 5.24 models/olmo_hybrid/modeling_olmo_hybrid.py, whose delta rule runs in PyTorch where
flash-linear-attention is not installed; that is what is computed here.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import kinds_of_layers, required
from memlint.estimate.families.body import Body
from memlint.estimate.families.delta import DeltaNet
from memlint.estimate.families.llama import Attention
from memlint.estimate.families.mlp import Mlp
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import activation, add, cast, cat, mul, saving_output, scale
from memlint.estimate.ops.delta_rule import delta_rule
from memlint.estimate.ops.ssm import causal_convolution
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(norm="olmo2", norms="post", qk_norm="full", mlp_bias=False, rope_fp32=True)


class OlmoDeltaNet(DeltaNet):
    """OlmoHybridGatedDeltaNet: separate projections, rates up to two."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.v_heads, self.k_heads = required(a, "linear_num_value_heads"), required(a, "linear_num_key_heads")
        self.k_dim, self.v_dim = required(a, "linear_key_head_dim"), required(a, "linear_value_head_dim")
        self.act = str(a.get("hidden_act") or "silu")
        self.doubled = bool(a.get("linear_allow_neg_eigval", True))
        keys, values = self.k_dim * self.k_heads, self.v_dim * self.v_heads
        self.a_log = b.parameter(f"{name}.A_log", self.v_heads)
        self.dt_bias = b.parameter(f"{name}.dt_bias", self.v_heads)
        widths = {"q": keys, "k": keys, "v": values, "a": self.v_heads, "b": self.v_heads, "g": values}
        self.parts = {part: b.linear(f"{name}.{part}_proj", h, width) for part, width in widths.items()}
        self.out = b.linear(f"{name}.o_proj", values, h)
        self.conv = b.parameter(f"{name}.conv1d.weight", 2 * keys + values, 1, int(a.get("linear_conv_kernel_dim", 4)))
        self.norm = b.parameter(f"{name}.o_norm.weight", self.v_dim)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        parts = self.parts
        mixed = cat(f, parts["q"](f, x), parts["k"](f, x), parts["v"](f, x)).view(b, self.conv.shape[0], s)
        before = mixed.dtype
        mixed = activate(f, causal_convolution(f, mixed, self.conv, None), self.act)
        mixed = cast(f, mixed, before)
        narrow, wide = (b, s, self.k_heads, self.k_dim), (b, s, self.v_heads, self.v_dim)
        query, key, value = split(f, mixed, narrow, narrow, wide)
        beta = saving_output(f, parts["b"](f, x))
        if self.doubled:
            beta = scale(f, beta)
        decay = scale(f, saving_output(f, cast(f, self.a_log, "fp32")))
        g = mul(f, decay, activation(f, add(f, cast(f, parts["a"](f, x), "fp32"), self.dt_bias)))
        del decay
        core = delta_rule(f, query, key, value, g, beta)
        gate = parts["g"](f, x)
        core = self.gated(f, core, gate.view(*core.shape))
        result: Tensor = self.out(f, core.view(b, s, self.v_heads * self.v_dim))
        return result


class Block:
    """OlmoHybridLinearAttentionDecoderLayer or OlmoHybridAttentionDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env, self.linear = env, kind == "linear_attention"
        self.mixer: Any = None
        if not self.linear:
            self.attention = Attention(a, b, f"{name}.self_attn", SHAPE)
        self.mlp = Mlp(a, b, f"{name}.mlp", SHAPE)
        names = ("input_layernorm", "post_attention_layernorm")
        if not self.linear:
            names = ("post_attention_layernorm", "post_feedforward_layernorm")
        self.norms = [Norm(b, f"{name}.{n}", h, SHAPE.norm) for n in names]
        if self.linear:
            self.mixer = OlmoDeltaNet(a, b, f"{name}.linear_attn")
            # OlmoHybridModel gives the tables to layers of attention alone.
            self.uses = ("positions",)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, norms = self.env, self.norms
        residual = x
        if self.linear:
            x = norms[0](f, env, x)
            x = self.mixer(f, env, x)
            x = add(f, residual, x)
            residual = x
            x = norms[1](f, env, x)
            x = self.mlp(f, env, x)
            return add(f, residual, x)
        x = self.attention(f, env, x, "full")
        x = norms[0](f, env, x)
        x = add(f, residual, x)
        residual = x
        x = self.mlp(f, env, x)
        x = norms[1](f, env, x)
        return add(f, residual, x)


class Model(Body):
    """OlmoHybridModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE)
        kinds = kinds_of_layers(a, "layer_types")
        self.kinds = ["full"]
        self.layers = Stack(b, kinds, lambda build, kind, index: Block(a, build, kind, index, env))
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))

    def body(self, f: Tape, x: Tensor, batch: Any) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        self.share(f, x)
        x = self.layers(f, self.env, x)
        x = self.norm(f, self.env, x)
        self.env.release()
        return x
