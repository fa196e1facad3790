"""GPT-Neo: global and local layers with a boolean mask buffer each; eager attention in fp32, or flash.

Source: transformers 5.24 models/gpt_neo/modeling_gpt_neo.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import gpt2
from memlint.estimate.families.pieces import LayerNorm, heads_of
from memlint.estimate.ops.attention import sdpa, softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import where
from memlint.models.architecture import Architecture


class Attention:
    """GPTNeoSelfAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads") or a.get("num_heads"))
        self.width = h // self.heads
        self.k_proj, self.v_proj, self.q_proj = (b.linear(f"{name}.{n}", h, h) for n in ("k_proj", "v_proj", "q_proj"))
        self.out_proj = b.linear(f"{name}.out_proj", h, h, True)
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.residual_dropout = float(a.get("resid_dropout", 0.0))
        b.buffer(int(a.get("max_position_embeddings")) ** 2)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        q, k, v = self.q_proj(f, x), self.k_proj(f, x), self.v_proj(f, x)
        q, k, v = (heads_of(t, self.heads, self.width) for t in (q, k, v))
        weights: Tensor | None = None
        if env.attention == "eager":
            out, weights = self.eager(f, q, k, v, env.state["mask"])
            out = copy(f, out).view(*x.shape)
        else:
            out = sdpa(f, q, k, v, None, force="flash")
        out = self.out_proj(f, out)
        out = dropout(f, out, self.residual_dropout)
        return out, weights

    def eager(self, f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """_attn: scores in fp32, masked by the buffer and again by the additive mask."""
        loose = q.shape[0] > 1
        q = cast(f, q, "fp32")
        k = cast(f, k, "fp32")
        weights = matmul(f, q, k, k.shape[2], copy_a=loose, copy_b=loose)
        weights = where(f, weights)
        if mask is not None:
            weights = add(f, weights, mask)
        weights = softmax(f, weights)
        weights = cast(f, weights, v.dtype)
        weights = dropout(f, weights, self.dropout)
        return matmul(f, weights, v, self.width, copy_b=loose), weights


class Block(gpt2.Block):
    """GPTNeoBlock; returns the attention weights as a second output."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.env = env
        self.ln_1 = LayerNorm(b, f"{name}.ln_1", a.hidden_size)
        self.attention = Attention(a, b, f"{name}.attn.attention")
        self.ln_2 = LayerNorm(b, f"{name}.ln_2", a.hidden_size)
        self.mlp = gpt2.Mlp(a, b, f"{name}.mlp", int(a.get("intermediate_size") or 4 * a.hidden_size))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.ln_1(f, x)
        attended, weights = self.attention(f, self.env, x)
        x = add(f, attended, residual)
        residual = x
        x = self.ln_2(f, x)
        forward = self.mlp(f, x)
        self.env.left = weights
        return add(f, residual, forward)


class Model(gpt2.Model):
    """GPTNeoModel: ids [B, S] -> hidden states [B, S, H]."""

    block = Block
    embedding_dropout = "embed_dropout"

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if env.attention == "sdpa":
            env.attention = "eager"
        super().__init__(a, b, env)
