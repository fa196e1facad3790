"""LFM2: short gated convolutions among layers of grouped-query attention, with a dense feed-forward or experts.

Sources: transformers 5.24 models/lfm2/modeling_lfm2.py, models/lfm2_moe/modeling_lfm2_moe.py. The convolution
runs in causal-conv1d's kernel where a job has that package, else in PyTorch.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.body import Body
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama import Attention
from memlint.estimate.families.mixtures import Mixture
from memlint.estimate.families.moe import Moe
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape
from memlint.estimate.kernels import CONV
from memlint.estimate.ops.basic import add, cast, mul
from memlint.estimate.ops.mamba_kernels import causal_conv
from memlint.estimate.ops.ssm import causal_convolution
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm="head",
    qk_names=("q_layernorm", "k_layernorm"),
    out_name="out_proj",
)
EXPERTS = Mixture(router="sigmoid-biased", name="feed_forward")


def inner_width(a: Architecture) -> int:
    """Width of the dense feed-forward: Lfm2MLP shrinks what the config says and rounds it up; lfm2_moe does not."""
    width = int(a.get("intermediate_size"))
    if a.model_type == "lfm2_moe" or not a.get("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    multiplier, multiple = a.get("block_ffn_dim_multiplier", 1.0), int(a.get("block_multiple_of", 256))
    return multiple * -(-int(multiplier * width) // multiple)


class ShortConvolution:
    """Lfm2ShortConv: ``out(C * conv(B * x))`` of one projection's three parts."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        b.asks = True
        h, bias = a.hidden_size, bool(a.get("conv_bias", False))
        self.weight = b.parameter(f"{name}.conv.weight", h, 1, int(a.get("conv_L_cache", 3)))
        self.bias = b.parameter(f"{name}.conv.bias", h) if bias else None
        self.into = b.linear(f"{name}.in_proj", h, 3 * h, bias)
        self.out = b.linear(f"{name}.out_proj", h, h, bias)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, h = x.shape
        padding = env.state["padding"]
        if padding is not None:
            x = mul(f, x, padding.view(b, s, 1))
        part = (b, h, s)
        before, after, x = split(f, self.into(f, x), part, part, part)
        x = mul(f, before, x)
        dtype = x.dtype
        if env.kernel(CONV):
            x = causal_conv(f, x, self.weight, self.bias)
        else:
            x = cast(f, causal_convolution(f, x, self.weight, self.bias), dtype)
        x = mul(f, after, x)
        result: Tensor = self.out(f, x.view(b, s, h))
        return result


class Block:
    """Lfm2DecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env) -> None:
        h, name = a.hidden_size, f"model.layers.{index}"
        self.env = env
        self.kind, sparse = kind
        self.mixer: Any
        if self.kind == "conv":
            self.mixer = ShortConvolution(a, b, f"{name}.conv")
            self.uses = ("rope", "padding")
        else:
            self.mixer = Attention(a, b, f"{name}.self_attn", SHAPE)
        at = f"{name}.feed_forward"
        names = ("w1", "w3", "w2")
        self.mlp: Any = (
            Moe(a, b, at, EXPERTS) if sparse else GatedMlp(b, at, h, inner_width(a), "silu", a=a, names=names)
        )
        self.norm, self.second = Norm(b, f"{name}.operator_norm", h, "llama"), Norm(b, f"{name}.ffn_norm", h, "llama")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, residual = self.env, x
        x = self.norm(f, env, x)
        x = self.mixer(f, env, x) if self.kind == "conv" else self.mixer(f, env, x, "full")
        x = add(f, x, residual)
        return add(f, x, self.mlp(f, self.second(f, env, x)))


class Model(Body):
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE)
        names = a.get("layer_types") or ()
        dense = int(a.get("num_dense_layers", 2)) if a.model_type == "lfm2_moe" else a.num_hidden_layers
        kinds = [("conv" if name == "conv" else "full", index >= dense) for index, name in enumerate(names)]
        self.kinds = ["full"]
        self.layers = Stack(b, kinds, lambda build, kind, index: Block(a, build, kind, index, env))
        width = int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads"))
        self.finish(b, width, Norm(b, "model.embedding_norm", a.hidden_size, "llama"))

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        self.share(f, x)
        self.env.state["padding"] = batch.mask
        x = self.layers(f, self.env, x)
        x = self.norm(f, self.env, x)
        self.env.release()
        return x
