"""UMT5: T5 whose every layer has relative position biases of its own.

Source: transformers 5.24 models/umt5/modeling_umt5.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.bias import BUCKET_SCRATCH
from memlint.estimate.families.t5 import Model as T5Model
from memlint.estimate.families.t5_layers import Attention, FeedForward, Norm
from memlint.estimate.ops.activations import clamped
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.ops.linear import Weight, embedding
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Block:
    """UMT5Block of the encoder or the decoder."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env, root: str) -> None:
        name, h = f"{root}.block.{index}.layer", a.hidden_size
        self.env, self.decoder = env, root == "decoder"
        self.dropout = float(a.get("dropout_rate", 0.0))
        self.attention = Attention(a, b, f"{name}.0.SelfAttention")
        rows = int(a.get("relative_attention_num_buckets", 32))
        self.table: Weight = b.parameter(
            f"{name}.0.SelfAttention.relative_attention_bias.weight", rows, self.attention.heads
        )
        self.norm = Norm(b, f"{name}.0.layer_norm", h)
        self.cross: Attention | None = None
        if self.decoder:
            self.cross = Attention(a, b, f"{name}.1.EncDecAttention")
            self.cross_norm = Norm(b, f"{name}.1.layer_norm", h)
        self.feed_forward = FeedForward(a, b, f"{name}.{2 if self.decoder else 1}")

    def bias(self, f: Tape, length: int) -> Tensor:
        """compute_bias: [1, h, T, T]; the embedding keeps the buckets."""
        buckets = f.new((length, length), "int64")
        scratch = f.new((length, length, BUCKET_SCRATCH - 8), "uint8")
        del scratch
        return embedding(f, self.table, buckets).view(1, self.attention.heads, length, length)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """UMT5LayerSelfAttention."""
        normed = self.norm(f, x)
        mask = self.env.state["mask"]
        make = lambda q: self.bias(f, x.shape[1])  # noqa: E731
        out, weights = self.attention(f, self.env, normed, normed, make, mask, causal=self.decoder)
        return clamped(f, add(f, x, dropout(f, out, self.dropout)), computed=True), weights

    def look(self, f: Tape, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor | None]:
        """UMT5LayerCrossAttention: zeros in place of a bias."""
        assert self.cross is not None
        normed = self.cross_norm(f, x)
        mask = self.env.state["cross mask"]
        make = lambda q: f.new((1, q.shape[1], x.shape[1], source.shape[1]), q.dtype)  # noqa: E731
        out, weights = self.cross(f, self.env, normed, source, make, mask, causal=False)
        return clamped(f, add(f, x, dropout(f, out, self.dropout)), computed=True), weights

    def __call__(self, f: Tape, x: Tensor, *source: Tensor) -> Tensor:
        """x [B, T, H], and in the decoder source [B, S, H] -> [B, T, H]."""
        x, _ = self.attend(f, x)
        if source:
            x, _ = self.look(f, x, source[0])
        return clamped(f, self.feed_forward(f, x), computed=True)


class StackOfBlocks:
    """UMT5Stack: embedded ids -> hidden states."""

    held: Tensor | None = None

    def __init__(self, a: Architecture, b: Build, env: Env, root: str, layers: int) -> None:
        self.env, self.dropout = env, float(a.get("dropout_rate", 0.0))
        kinds = ["layer"] * (layers - 1) + ["layer" if b.sharding.zero is None else "last"]
        self.layers = Stack(b, kinds, lambda build, _, index: Block(a, build, index, env, root))
        self.norm = Norm(b, f"{root}.final_layer_norm", a.hidden_size)

    def __call__(
        self, f: Tape, embeds: Tensor, mask: Tensor | None, source: Tensor | None, padded: Tensor | None
    ) -> Tensor:
        """embeds [B, T, H] over the encoder's source [B, S, H] -> [B, T, H]."""
        env = self.env
        x = dropout(f, embeds, self.dropout)
        env.state["mask"], env.state["cross mask"] = mask, padded
        x = self.layers(f, env, x, *(() if source is None else (shared(f, source),)))
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        env.release()
        return x


class Model(T5Model):
    """UMT5ForConditionalGeneration: source ids [B, S] and labels [B, T] -> logits [B, T, V]."""

    stack: Any = StackOfBlocks
