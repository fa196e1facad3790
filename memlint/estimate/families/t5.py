"""T5 and mT5: relative position biases shared by all layers of a stack, RMS norms, plain or gated feed-forward.

Source: transformers 5.24 models/t5/modeling_t5.py (models/mt5 is the same).
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.bias import anchored, biased_attention, eager_biased
from memlint.estimate.families.pieces import heads_of, hooked
from memlint.estimate.ops.activations import activate, clamped
from memlint.estimate.ops.basic import add, cast, copy, dropout, mean_last, mul, rsqrt, scale, shift, square
from memlint.estimate.ops.linear import Weight, embedding
from memlint.estimate.ops.views import where
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


def t5_norm(f: Tape, x: Tensor, weight: Weight) -> Tensor:
    """T5LayerNorm: the variance in fp32, the product in the promoted dtype, cast to the weight's when that is half."""
    variance = mean_last(f, square(f, cast(f, x, "fp32")))
    x = mul(f, x, rsqrt(f, shift(f, variance)))
    if weight.dtype in ("fp16", "bf16"):
        x = cast(f, x, weight.dtype)
    return mul(f, weight, x)


SHARED = ("bias", "bias node", "bias shape", "mask", "source", "cross bias", "cross mask")
"""What the blocks of a stack share, by its name in ``env.state``."""


class Attention:
    """T5Attention; the position bias comes from outside."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads, self.width = int(a.get("num_heads") or a.get("num_attention_heads")), int(a.get("d_kv"))
        inner = self.heads * self.width
        self.q, self.k, self.v = (b.linear(f"{name}.{n}", h, inner) for n in "qkv")
        self.o = b.linear(f"{name}.o", inner, h)
        self.dropout = float(a.get("dropout_rate", 0.0))

    def __call__(
        self,
        f: Tape,
        env: Env,
        x: Tensor,
        source: Tensor,
        bias: Tensor | Callable[[Tensor], Tensor],
        mask: Tensor | None,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, H] over source [B, S, H] -> [B, T, H], attention weights; ``bias`` may still have to be made."""
        q = heads_of(self.q(f, x), self.heads, self.width)
        k = heads_of(self.k(f, source), self.heads, self.width)
        v = heads_of(self.v(f, source), self.heads, self.width)
        weights: Tensor | None = None
        if not isinstance(bias, Tensor):
            bias = bias(q)
        if env.attention == "eager":
            out, weights = eager_biased(f, q, k, v, bias, mask, self.dropout)
        else:
            whole = masked_bias(f, bias, mask, causal=causal, looked_up=source is x)
            out = biased_attention(f, q, k, v, whole)
        out = self.o(f, out)
        return out, weights


def masked_bias(f: Tape, bias: Tensor, mask: Tensor | None, *, causal: bool, looked_up: bool) -> Tensor:
    """create_position_bias_mask of integrations/sdpa_attention.py: made anew in every layer.

    A bias looked up in a table is a permuted view of [T, S, h], so ``contiguous()`` copies it; zeros are passed on.
    """
    if mask is not None:
        bias = where(f, bias, mask) if mask.dtype == "bool" else add(f, bias, mask)
    elif causal:
        bias = where(f, bias, f.new((1, 1, bias.shape[2], bias.shape[3]), "bool"))
    return copy(f, bias) if looked_up else bias


class FeedForward:
    """T5LayerFF with T5DenseActDense or its gated form."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, width = a.hidden_size, int(a.get("d_ff"))
        kind = str(a.get("feed_forward_proj", "relu"))
        self.gated = bool(a.get("is_gated_act", kind.startswith("gated")))
        act = str(a.get("dense_act_fn") or kind.split("-")[-1])
        self.act = "gelu_new" if kind == "gated-gelu" else act
        root = f"{name}.DenseReluDense"
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        self.ups = [b.linear(f"{root}.{n}", h, width) for n in names]
        self.down = b.linear(f"{root}.wo", width, h)
        self.norm = b.parameter(f"{name}.layer_norm.weight", h)
        self.dropout = float(a.get("dropout_rate", 0.0))

    def dense(self, f: Tape, x: Tensor) -> Tensor:
        """The two or three projections; the last one's input is cast to its weight's dtype (fp32 under autocast)."""
        if self.gated:
            gate = activate(f, self.ups[0](f, x), self.act)
            linear = self.ups[1](f, x)
            x = mul(f, gate, linear)
        else:
            gate = linear = None  # type: ignore[assignment]
            x = self.ups[0](f, x)
            x = activate(f, x, self.act)
        x = dropout(f, x, self.dropout)
        if isinstance(self.down, Linear) and self.down.weight.dtype != x.dtype:
            x = cast(f, x, self.down.weight.dtype)
        x = self.down(f, x)
        del gate, linear
        return x

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        forwarded = t5_norm(f, x, self.norm)
        forwarded = self.dense(f, forwarded)
        return add(f, x, dropout(f, forwarded, self.dropout))


class Block:
    """T5Block of the encoder or the decoder; the first one of a stack owns its position bias."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env, root: str) -> None:
        name = f"{root}.block.{index}.layer"
        self.env, self.first = env, kind == "first"
        self.given: Tensor | None = None
        """The bias that the first block has just made; a recomputation has none and makes it again."""
        if self.first:
            self.uses = tuple(n for n in SHARED if n != "bias")
        self.decoder = root == "decoder"
        self.dropout = float(a.get("dropout_rate", 0.0))
        self.attention = Attention(a, b, f"{name}.0.SelfAttention")
        self.table: Weight | None = None
        if self.first:
            rows = int(a.get("relative_attention_num_buckets", 32))
            self.table = b.parameter(
                f"{name}.0.SelfAttention.relative_attention_bias.weight", rows, self.attention.heads
            )
        self.norm = b.parameter(f"{name}.0.layer_norm.weight", a.hidden_size)
        self.cross: Attention | None = None
        if self.decoder:
            self.cross = Attention(a, b, f"{name}.1.EncDecAttention")
            self.cross_norm = b.parameter(f"{name}.1.layer_norm.weight", a.hidden_size)
        self.feed_forward = FeedForward(a, b, f"{name}.{2 if self.decoder else 1}")

    def sublayer(
        self, f: Tape, x: Tensor, attention: Attention, norm: Weight, source: Tensor | None, names: tuple[str, str]
    ) -> tuple[Tensor, Tensor | None]:
        """T5LayerSelfAttention and T5LayerCrossAttention."""
        state = self.env.state
        normed = t5_norm(f, x, norm)
        bias, mask = state[names[0]], state[names[1]]
        causal = self.decoder and source is None
        out, weights = attention(f, self.env, normed, normed if source is None else source, bias, mask, causal=causal)
        return clamped(f, add(f, x, dropout(f, out, self.dropout)), computed=True), weights

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        state = self.env.state
        made: Any = None
        if self.first:
            # The first block makes the biases: a recomputation makes them again, and keeps of them only the buckets.
            if self.given is None:
                x, made = anchored(f, x, state["bias shape"], state["bias node"])
            state["bias"] = self.given or made
        x, _ = self.sublayer(f, x, self.attention, self.norm, None, ("bias", "mask"))
        if self.cross is not None:
            if made is not None:
                made = (made, f.like(state["cross bias"]))
            x, _ = self.sublayer(f, x, self.cross, self.cross_norm, state["source"], ("cross bias", "cross mask"))
        x = clamped(f, self.feed_forward(f, x), computed=True)
        if made is not None:
            del state["bias"]
        return x


class StackOfBlocks:
    """T5Stack: embedded ids -> hidden states."""

    def __init__(self, a: Architecture, b: Build, env: Env, root: str, layers: int) -> None:
        self.env = env
        self.held: Tensor | None = None
        """A leaf of the graph with its gradient: both live as long as the graph, that is until backward has
        returned.
        """
        self.dropout = float(a.get("dropout_rate", 0.0))
        # The last block, whose backward makes the first gradients of what all share, is not like those before it.
        kinds = ["first", *["rest"] * (layers - 2), "last"][:layers]
        self.blocks: list[Block] = []

        def make(build: Build, kind: str, index: int) -> Block:
            block = Block(a, build, kind, index, env, root)
            self.blocks.append(block)
            return block

        self.layers = Stack(b, kinds, make)
        self.norm = b.parameter(f"{root}.final_layer_norm.weight", a.hidden_size)

    def bias(self, f: Tape, length: int) -> Tensor:
        """compute_bias of the first block: [1, h, T, T], kept by all layers, its buckets by the embedding."""
        first = self.blocks[0]
        table = first.table
        assert table is not None

        def make() -> Tensor:
            values = embedding(f, table, f.new((length, length), "int64"))
            return values.view(1, first.attention.heads, length, length)

        rebuilt = self.env.checkpointed(0) and table.trainable
        return f.checkpoint(make, (), reentrant=False) if rebuilt else make()

    def zeros(self, f: Tape, shape: tuple[int, ...], dtype: str) -> Tensor:
        """The decoder's cross-attention has no bias: zeros, which collect a gradient under checkpointing."""
        zeros = f.new(shape, dtype)
        if self.env.checkpointed(0) and f.grad_enabled:
            leaf = Leaf(shape, dtype)
            leaf.sink = _collect
            zeros.node = leaf
            self.held = zeros
        return zeros

    def __call__(
        self, f: Tape, embeds: Tensor, mask: Tensor | None, source: Tensor | None, padded: Tensor | None
    ) -> Tensor:
        """embeds [B, T, H] over the encoder's source [B, S, H] -> [B, T, H]."""
        env, length = self.env, embeds.shape[1]
        state = env.state
        x = dropout(f, embeds, self.dropout)
        state["mask"], state["source"], state["cross mask"] = mask, source, padded
        bias = self.bias(f, length)
        state["bias"], state["bias node"], state["bias shape"] = bias, bias.node, (bias.shape, bias.dtype)
        state["cross bias"] = None
        if source is not None:
            # Queries are half under autocast, and so are these zeros.
            dtype = f.autocast or x.dtype
            state["cross bias"] = self.zeros(f, (1, self.blocks[0].attention.heads, length, source.shape[1]), dtype)
        first = self.blocks[0]
        first.given = bias
        del state, bias
        x = self.layers(f, env, x)
        first.given = None
        x = t5_norm(f, x, self.norm)
        x = dropout(f, x, self.dropout)
        env.release()
        return x


def _collect(f: Tape, leaf: Leaf, grad: Tensor) -> None:
    """AccumulateGrad of a tensor that is no parameter: the first gradient is kept, others are added in place."""
    if leaf.grad is None:
        leaf.grad = f.like(grad)


class Model:
    """T5ForConditionalGeneration: source ids [B, S] and labels [B, T] -> logits [B, T, V]."""

    stack: Any = StackOfBlocks

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h = a.hidden_size
        rows = b.training.vocab_size or a.vocab_size
        if env.attention == "flash":
            env.attention = "eager"
        self.shared = b.embedding("shared", rows, h)
        layers = int(a.get("num_layers") or a.num_hidden_layers)
        self.encoder = self.stack(a, b, env, "encoder", layers)
        self.decoder = self.stack(a, b, env, "decoder", int(a.get("num_decoder_layers") or layers))
        # T5Config and MT5Config of transformers 5.24 tie always, and take a stated false as "do not scale the outputs".
        self.scaled = a.model_type in ("t5", "umt5") and bool(a.get("scale_decoder_outputs", True))
        if a.config.get("tie_word_embeddings") is False:
            self.scaled = False
        self.head = Linear(self.shared.weight, None)

    def __call__(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Logits, and the hidden states that the model's forward holds."""
        env = self.env
        assert batch.labels is not None
        rows, target = batch.labels.shape
        embeds = hooked(f, env, self.shared(f, batch.ids))
        padded = env.mask(f, batch.rows, batch.length, embeds.dtype) if env.padding else None
        hidden = self.encoder(f, embeds, padded, None, None)
        del embeds, padded
        decoder_ids = f.new((rows, target), "int64")
        embeds = hooked(f, env, self.shared(f, decoder_ids))
        # Only the source has a padding mask; targets are padded with -100 (DataCollatorForSeq2Seq).
        padding, env.padding = env.padding, False
        mask = env.mask(f, rows, target, embeds.dtype)
        env.padding, padded = padding, None
        if padding:
            padded = f.new((rows, 1, target, batch.length), "bool" if env.attention == "sdpa" else embeds.dtype)
        out = self.decoder(f, embeds, mask, hidden, padded)
        env.state["held"], self.decoder.held = self.decoder.held, None
        del embeds, mask, padded
        scaled = scale(f, out) if self.scaled else out
        f.component = LOGITS
        logits: Tensor = self.head(f, scaled)
        f.component = TEMPORARIES
        return logits, (hidden, out, scaled, decoder_ids)
