"""MiMo V2 Flash: layers of two attention shapes, local ones with sinks, scaled values, sigmoid-routed experts.

Source: transformers 5.24 models/mimo_v2_flash/modeling_mimo_v2_flash.py. As gpt_oss it has no
scaled_dot_product_attention path.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import kinds_of_layers, required
from memlint.estimate.families.body import Body, PreNormBlock
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama import layer_kinds
from memlint.estimate.families.mixtures import Mixture
from memlint.estimate.families.moe import Moe
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.attention import repeat_kv, sdpa, softmax
from memlint.estimate.ops.basic import add, cast, cat, copy, scale, slice_of
from memlint.estimate.ops.gather import expand, subtract, topk
from memlint.estimate.ops.linear import Weight, matmul
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(o_bias=False, mlp_bias=False, rope_cat=True, local_rope=True)
MIXTURE = Mixture(shape=SHAPE, router="grouped", normalise="norm_topk_prob", experts="n_routed_experts")
ROTATED = 0.334
"""partial_rotary_factor of MiMoV2FlashConfig's own rope_parameters."""


def eager_attention(
    f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Weight | None
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: where there are sinks, they are one more column of the scores."""
    b, heads, s, _ = q.shape
    repeated = k.shape[1] not in (1, heads)
    keys, values = repeat_kv(f, k, heads), repeat_kv(f, v, heads)
    weights = scale(f, matmul(f, q, keys, s))
    if mask is not None:
        weights = add(f, weights, mask)
    if sinks is not None:
        column = expand(f, sinks, (b, heads, s, 1))
        dtype = "fp32" if "fp32" in (weights.dtype, column.dtype) else weights.dtype
        weights = cat(f, cast(f, weights, dtype), cast(f, column, dtype))
    highest, places = topk(f, weights, 1)
    weights = subtract(f, weights, highest)
    del highest, places
    scores = softmax(f, weights, weights.dtype)
    if sinks is not None:
        scores = slice_of(f, scores, (b, heads, s, s))
    weights = cast(f, scores, values.dtype)
    out = copy(f, matmul(f, weights, values, v.shape[-1], copy_b=b > 1 and not repeated))
    return out.view(b, s, heads * v.shape[-1]), weights


class Attention:
    """MiMoV2FlashAttention: local layers have twice the key-value heads, and a sink a head."""

    def __init__(self, a: Architecture, b: Build, name: str, kind: str) -> None:
        h, bias = a.hidden_size, bool(a.get("attention_bias", False))
        local = kind == "sliding"
        self.heads = required(a, "num_attention_heads")
        self.kv = required(a, "num_key_value_heads") * (2 if local else 1)
        self.dim, self.width = required(a, "head_dim"), required(a, "v_head_dim")
        self.sinks: Weight | None = b.parameter(f"{name}.sinks", self.heads) if local else None
        self.q = b.linear(f"{name}.q_proj", h, self.heads * self.dim, bias)
        self.k = b.linear(f"{name}.k_proj", h, self.kv * self.dim, bias)
        self.v = b.linear(f"{name}.v_proj", h, self.kv * self.width, bias)
        self.o = b.linear(f"{name}.o_proj", self.heads * self.width, h)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        q = self.q(f, x).view(b, self.heads, s, self.dim)
        k = self.k(f, x).view(b, self.kv, s, self.dim)
        v = scale(f, self.v(f, x).view(b, self.kv, s, self.width))
        q, k = rotate_both(f, q, k, env.state.get(f"rope:{kind}") or env.state["rope"], SHAPE)
        if env.attention == "eager":
            out, weights = eager_attention(f, q, k, v, env.state["masks"][kind], self.sinks)
            env.name(f, weights)
        else:
            out = sdpa(f, q, k, v, None, force="flash")
        held = env.named(f, q, k, v)
        del q, k, v
        result: Tensor = self.o(f, out)
        del held
        return result


class Block(PreNormBlock):
    """MiMoV2FlashDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env, (self.kind, sparse) = env, kind
        self.attention = Attention(a, b, f"{name}.self_attn", self.kind)
        act = str(a.get("hidden_act") or "silu")
        self.mlp: Any
        if sparse:
            self.mlp = Moe(a, b, f"{name}.mlp", MIXTURE)
        else:
            self.mlp = GatedMlp(b, f"{name}.mlp", h, required(a, "intermediate_size"), act, a=a)
        self.norms = [Norm(b, f"{name}.{n}", h, SHAPE.norm) for n in ("input_layernorm", "post_attention_layernorm")]


class Model(Body):
    """MiMoV2FlashModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if env.attention == "sdpa":
            env.attention = "eager"
        super().__init__(a, b, env, SHAPE)
        self.kinds = layer_kinds(a)
        layers = [(kind, feed == "sparse") for kind, feed in zip(self.kinds, kinds_of_layers(a, "mlp_layer_types"))]
        self.layers = Stack(b, layers, lambda build, kind, index: Block(a, build, kind, index, env))
        self.finish(b, int(required(a, "head_dim") * rotated_share(a)))
        if len(set(self.kinds)) > 1:
            b.buffer(self.rotary // 2 * 4)
            b.buffer(self.rotary // 2 * 4)


def rotated_share(a: Architecture) -> float:
    """Share of each head that is rotated; each kind of layer states it in rope_parameters of its own."""
    stated = a.get("rope_parameters")
    kinds = [kind for kind in stated.values() if isinstance(kind, dict)] if isinstance(stated, dict) else []
    return float(kinds[0].get("partial_rotary_factor", 1.0)) if kinds else ROTATED
