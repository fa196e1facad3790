"""Llama 3.2 Vision: a tower over tiles, and a language model whose cross-attention layers look at its states.

Source: transformers 5.24 models/mllama/modeling_mllama.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import refuse_reentrant
from memlint.estimate.families.llama import Block
from memlint.estimate.families.llama import Model as LlamaModel
from memlint.estimate.families.mlp import Mlp
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.basic import add, cat, mul, saving_output
from memlint.estimate.ops.linear import to_autocast
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class CrossAttention:
    """MllamaTextCrossAttention: queries from the text, keys and values from the tower."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.kv = int(a.get("num_key_value_heads", self.heads))
        self.dim = h // self.heads
        self.q = b.linear(f"{name}.q_proj", h, self.heads * self.dim)
        self.k = b.linear(f"{name}.k_proj", h, self.kv * self.dim)
        self.v = b.linear(f"{name}.v_proj", h, self.kv * self.dim)
        self.o = b.linear(f"{name}.o_proj", self.heads * self.dim, h)
        self.q_norm = Norm(b, f"{name}.q_norm", self.dim, s.norm)
        self.k_norm = Norm(b, f"{name}.k_norm", self.dim, s.norm)

    def __call__(self, f: Tape, env: Env, x: Tensor, states: Tensor) -> Tensor:
        """x [B, S, H], states [B * images * tiles, N, H] -> [B, S, H]."""
        b, s, _ = x.shape
        length = states.shape[0] * states.shape[1] // b
        q = self.q_norm(f, env, self.q(f, x).view(b, self.heads, s, self.dim))
        k = self.k(f, states).view(b, self.kv, length, self.dim)
        v = self.v(f, states).view(b, self.kv, length, self.dim)
        k = self.k_norm(f, env, k)
        cache = env.state.get("cache")
        if cache is not None:
            k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
            cache.append((k.detach(), v.detach()))
        mask = env.state["cross"][0]
        if env.attention == "sdpa":
            mask = to_autocast(f, mask)
        if env.attention == "sdpa" and length % 16:
            # pad_bias: the kernel reads rows of the bias in multiples of 16 (attention.cpp, torch 2.13).
            mask = f.new((*mask.shape[:-1], length + 16 - length % 16), mask.dtype)
        out = env.attend(f, q, k, v, mask, causal=False)
        result: Tensor = self.o(f, out)
        return result


class CrossBlock:
    """MllamaCrossAttentionDecoderLayer: both branches are gated by a learned scalar."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape, env: Env) -> None:
        h = a.hidden_size
        self.env = env
        self.attention = CrossAttention(a, b, f"{name}.cross_attn", s)
        self.norms = [Norm(b, f"{name}.{n}", h, s.norm) for n in ("input_layernorm", "post_attention_layernorm")]
        self.gates = [b.parameter(f"{name}.cross_attn_{n}_gate", 1) for n in ("attn", "mlp")]
        self.mlp = Mlp(a, b, f"{name}.mlp", s)

    def __call__(self, f: Tape, x: Tensor, states: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env = self.env
        residual = x
        x = self.norms[0](f, env, x)
        x = self.attention(f, env, x, states)
        x = add(f, residual, mul(f, saving_output(f, self.gates[0]), x))
        residual = x
        x = self.norms[1](f, env, x)
        x = self.mlp(f, env, x)
        x = mul(f, env.state["cross"][1], x)
        return add(f, residual, mul(f, saving_output(f, self.gates[1]), x))


class TextModel(LlamaModel):
    """MllamaTextModel: without images its cross-attention layers are skipped."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.images = b.training.images
        super().__init__(a, b, env)

    def embedding(self, b: Build, rows: int) -> Any:
        """Eight rows more than the vocabulary, for image tokens."""
        return b.embedding("model.embed_tokens", rows + 8, self.a.hidden_size)

    def stack(self, b: Build) -> Any:
        """Self-attention layers with cross-attention ones among them."""
        a, env, shape = self.a, self.env, self.shape
        crossing = {i for i in a.get("cross_attention_layers", ()) if i < a.num_hidden_layers}
        run = [i for i in range(a.num_hidden_layers) if self.images or i not in crossing]
        idle, b.idle = b.idle, True
        for i in sorted(crossing - set(run)):
            CrossBlock(a, b, f"model.layers.{i}", shape, env)
        b.idle = idle

        def make(build: Build, kind: str, index: int) -> Any:
            if kind == "cross":
                return CrossBlock(a, build, f"model.layers.{run[index]}", shape, env)
            block = Block(a, build, kind, run[index], env)
            return lambda f, x, *states: block(f, x)

        kinds = ["cross" if i in crossing else "full" for i in run]
        self.crossing = [index for index, kind in enumerate(kinds) if kind == "cross"]
        last = self.crossing[-1:] if b.sharding.zero is not None else ()
        b.depth = a.num_hidden_layers
        stack = Stack(b, kinds, make, alone=last, numbers=run)
        b.depth = None
        return stack

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm; ``env.state['states']`` are the tower's projected states."""
        states = self.env.state.pop("states", None)
        refuse_reentrant(f, self.env, self.a, states, "the states of the images", self.crossing)
        self.others = () if states is None else (shared(f, states),)
        out = super().body(f, x, batch)
        self.others = ()
        return out
