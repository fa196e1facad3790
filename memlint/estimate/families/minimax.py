"""MiniMax-Text: lightning attention by blocks, every n-th layer full attention, and a mixture of experts in each.

Source: transformers 5.24 models/minimax/modeling_minimax.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import kinds_of_layers
from memlint.estimate.families.body import Body
from memlint.estimate.families.llama import Attention
from memlint.estimate.families.mixtures import TYPES
from memlint.estimate.families.moe import Moe
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cat, copy, mul, saving_output, scale, slice_of
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

SHAPE = Shape(qkv_bias=False, o_bias=False, mlp_bias=False)
MIXTURE = TYPES["mixtral"]


class LightningAttention:
    """MiniMaxLightningAttention: inside a block all pairs of positions, between blocks a state [B, h, D, D]."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.dim = int(a.get("head_dim") or h // self.heads)
        self.block = int(a.get("block_size", 256))
        self.act = str(a.get("hidden_act") or "silu")
        inner = self.heads * self.dim
        self.norm = Norm(b, f"{name}.norm", inner, "llama")
        self.qkv = b.linear(f"{name}.qkv_proj", h, 3 * inner)
        self.out = b.linear(f"{name}.out_proj", inner, h)
        self.gate = b.linear(f"{name}.output_gate", h, inner)
        self.dtype = b.training.precision.weights
        size = DTYPE_BYTES[self.dtype]
        for elements in (self.heads, self.heads * self.block, self.heads * self.block, self.heads * self.block**2):
            b.buffer(elements * size)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, S, H] -> [B, S, H], the last state."""
        b, s, _ = x.shape
        both = activate(f, self.qkv(f, x), self.act)
        part = (b, self.heads, s, self.dim)
        out, state = self.mixed(f, *split(f, both, part, part, part))
        out = copy(f, out, (b, s, self.heads * self.dim))
        out = self.norm(f, env, out)
        out = mul(f, saving_output(f, self.gate(f, x)), out)
        result: Tensor = self.out(f, out)
        return result, state

    def mixed(self, f: Tape, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The loop over blocks: query, key, value [B, h, S, D] -> [B, h, S, D], the last state."""
        b, h, s, d = query.shape
        several = b > 1
        state = f.new((b, h, d, d), value.dtype)
        parts: list[Tensor] = []
        for start in range(0, s, self.block):
            length = min(self.block, s - start)
            shape = (b, h, length, d)
            whole = length == s
            q, k, v = (t if whole else slice_of(f, t, shape) for t in (query, key, value))
            decay, fade = Tensor((h, length, 1), self.dtype, None), Tensor((1, h, length, length), self.dtype, None)
            block_decay = f.new((h, 1, 1), self.dtype)
            weights = matmul(f, q, k, length, copy_a=several, copy_b=several)
            intra = matmul(f, mul(f, weights, fade), v, d, copy_b=several)
            inter = matmul(f, mul(f, q, decay), state, d, copy_a=several)
            current = add(f, inter, intra)
            parts.append(current)
            enabled = f.grad_enabled
            if start + length == s:
                # Nothing is made of the last state: its graph goes with it.
                f.grad_enabled = False
            # The transposed product of keys and values: [B, h, D, S] by [B, h, S, D].
            further = _outer(f, mul(f, k, decay), v, copies=several)
            state = add(f, mul(f, state, block_decay), further)
            f.grad_enabled = enabled
        return cat(f, *parts, shape=query.shape), state


def _outer(f: Tape, key: Tensor, value: Tensor, *, copies: bool) -> Tensor:
    turned = Tensor((*key.shape[:2], key.shape[3], key.shape[2]), key.dtype, key.storage, key.node)
    return matmul(f, turned, value, value.shape[-1], copy_a=copies, copy_b=copies)


class Block:
    """MiniMaxDecoderLayer: the normed states are the residual."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env, self.linear = env, kind == "linear_attention"
        self.attention: Any = (
            LightningAttention(a, b, f"{name}.self_attn")
            if self.linear
            else Attention(a, b, f"{name}.self_attn", SHAPE)
        )
        self.norms = [Norm(b, f"{name}.{n}", h, "llama") for n in ("input_layernorm", "post_attention_layernorm")]
        self.moe = Moe(a, b, f"{name}.mlp", MIXTURE)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, state = self.env, None
        x = self.norms[0](f, env, x)
        residual = x
        if self.linear:
            x, state = self.attention(f, env, x)
        else:
            x = self.attention(f, env, x, "full")
        x = add(f, scale(f, residual), scale(f, x))
        x = self.norms[1](f, env, x)
        residual = x
        x = self.moe(f, x)
        x = add(f, scale(f, residual), scale(f, x))
        del state
        return x


class Model(Body):
    """MiniMaxModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE)
        kinds = kinds_of_layers(a, "layer_types")
        self.kinds = ["full"]
        make = lambda build, kind, index: Block(a, build, kind, index, env)  # noqa: E731
        # Under FSDP2 its layers of a kind do not do the same to the live bytes (found by the property test): all run.
        self.layers = Stack(b, kinds, make, full=b.sharding.fully is not None)
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))

    def body(self, f: Tape, x: Tensor, batch: Any) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        self.share(f, x)
        x = self.layers(f, self.env, x)
        x = self.norm(f, self.env, x)
        self.env.release()
        return x
