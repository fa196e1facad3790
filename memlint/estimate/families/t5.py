"""T5 and mT5: relative position biases shared by all layers of a stack, RMS norms, plain or gated feed-forward.

Source: transformers 5.24 models/t5/modeling_t5.py (models/mt5 is the same).
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.adapters import keeps_input
from memlint.estimate.build import Build, Linear
from memlint.estimate.conditions import numbered
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.bias import BUCKET_SCRATCH, anchored
from memlint.estimate.families.t5_handed import Handed, collect, run_handing
from memlint.estimate.families.t5_layers import Attention, FeedForward, Norm
from memlint.estimate.ops.activations import clamped
from memlint.estimate.ops.basic import add, dropout, scale
from memlint.estimate.ops.linear import Weight, embedding
from memlint.estimate.peft_prompts import words_of
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHARED = ("bias", "bias node", "bias shape", "mask", "source", "cross bias", "cross mask")
"""What the blocks of a stack share, by its name in ``env.state``."""


class Block:
    """T5Block of the encoder or the decoder; the first one of a stack owns its position bias."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env, root: str) -> None:
        name = f"{root}.block.{index}.layer"
        self.env, self.first = env, kind == "first"
        self.given: Tensor | None = None
        """The bias that the first block has just made; a recomputation has none and makes it again."""
        self.uses: tuple[str, ...] | None = None
        self.checkpointed = False
        self.handed: Handed | None = None
        """The biases as the blocks hand them on, under reentrant checkpointing."""
        self.decoder = root == "decoder"
        self.dropout = float(a.get("dropout_rate", 0.0))
        self.attention = Attention(a, b, f"{name}.0.SelfAttention")
        self.table: Weight | None = None
        if self.first:
            rows = int(a.get("relative_attention_num_buckets", 32))
            self.table = b.parameter(
                f"{name}.0.SelfAttention.relative_attention_bias.weight", rows, self.attention.heads
            )
        self.norm = Norm(b, f"{name}.0.layer_norm", a.hidden_size)
        self.cross: Attention | None = None
        if self.decoder:
            self.cross = Attention(a, b, f"{name}.1.EncDecAttention")
            self.cross_norm = Norm(b, f"{name}.1.layer_norm", a.hidden_size)
        self.feed_forward = FeedForward(a, b, f"{name}.{2 if self.decoder else 1}")

    def sublayer(
        self, f: Tape, x: Tensor, attention: Attention, norm: Norm, source: Tensor | None, names: tuple[str, str]
    ) -> tuple[Tensor, Tensor | None]:
        """T5LayerSelfAttention and T5LayerCrossAttention."""
        state = self.env.state
        normed = norm(f, x)
        bias, mask = state[names[0]], state[names[1]]
        causal = self.decoder and source is None
        out, weights = attention(f, self.env, normed, normed if source is None else source, bias, mask, causal=causal)
        return clamped(f, add(f, x, dropout(f, out, self.dropout)), computed=True), weights

    def bias(self, f: Tape, length: int) -> Tensor:
        """compute_bias: [1, h, T, T]; the embedding keeps the buckets."""
        assert self.table is not None
        buckets = f.new((length, length), "int64")
        scratch = f.new((length, length, BUCKET_SCRATCH - 8), "uint8")
        del scratch
        return embedding(f, self.table, buckets).view(1, self.attention.heads, length, length)

    def layers(self, f: Tape, x: Tensor) -> Tensor:
        """T5Block.forward over what ``env.state`` holds."""
        x, _ = self.sublayer(f, x, self.attention, self.norm, None, ("bias", "mask"))
        if self.cross is not None:
            source = self.env.state["source"]
            x, _ = self.sublayer(f, x, self.cross, self.cross_norm, source, ("cross bias", "cross mask"))
        return clamped(f, self.feed_forward(f, x), computed=True)

    def __call__(self, f: Tape, x: Tensor, *given: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        if self.handed is not None:
            return run_handing(self, f, x, given)
        state = self.env.state
        made: Any = None
        if self.first:
            f.hollow_asked = True  # a recomputation does something else
            # The first block makes the biases: a recomputation makes them again, and keeps of them only the buckets.
            if self.given is None:
                x, made = anchored(f, x, state["bias shape"], state["bias node"])
            state["bias"] = self.given or made
        x, _ = self.sublayer(f, x, self.attention, self.norm, None, ("bias", "mask"))
        if self.cross is not None:
            if made is not None:
                # The zeros are made again, too; those of the forward are a leaf with its gradient (see ``held``).
                leaf, zeros = state["cross bias"].node, f.like(state["cross bias"])
                zeros.node, state["cross bias"] = leaf, zeros
                del zeros
            x, _ = self.sublayer(f, x, self.cross, self.cross_norm, state["source"], ("cross bias", "cross mask"))
        x = clamped(f, self.feed_forward(f, x), computed=True)
        if made is not None:
            # Eager attention keeps neither of what was made again; what the kernel saves it holds itself.
            del state["bias"]
            state.pop("cross bias", None)
        return x


def first_apart(b: Build, env: Env) -> bool:
    """Whether a stack's first block must be run by itself: it is recomputed, sharded or frozen in its own way."""
    job, sharding = b.job, b.sharding
    own = job.training.trainable_layers is not None or numbered(job) or keeps_input(job) or b.run_all_layers
    return env.checkpointed(b.first_layer) or Handed.among(env) or sharding.kind not in ("none", "ddp") or own


def table_of(a: Architecture, b: Build, root: str, heads: int) -> Weight:
    """The first block's table of biases, recorded where the block has it: behind its self-attention."""
    mark, name = len(b.records), f"{root}.block.0.layer.0"
    rows = int(a.get("relative_attention_num_buckets", 32))
    table = b.parameter(f"{name}.SelfAttention.relative_attention_bias.weight", rows, heads)
    made = b.records[mark:]
    del b.records[mark:]
    place = [record.name for record in b.records].index(f"{name}.layer_norm.weight")
    b.records[place:place] = made
    return table


class StackOfBlocks:
    """T5Stack: embedded ids -> hidden states."""

    def __init__(self, a: Architecture, b: Build, env: Env, root: str, layers: int) -> None:
        self.env = env
        self.held: Tensor | None = None
        """A leaf of the graph with its gradient: both live as long as the graph, that is until backward has
        returned.
        """
        self.dropout = float(a.get("dropout_rate", 0.0))
        # The last block's backward is called with zeros for the biases, where blocks hand them on.
        last = "last" if Handed.among(env) or b.sharding.zero is not None else "rest"
        # Whoever owns the table, the first block is one of the rest where it does not make the biases again.
        own = first_apart(b, env)
        kinds = ["first" if own else "rest", *["rest"] * (layers - 2), last][:layers]
        self.blocks: list[Block] = []

        def make(build: Build, kind: str, index: int) -> Block:
            block = Block(a, build, kind, index, env, root)
            block.checkpointed = env.checkpointed(build.first_layer + index)
            self.blocks.append(block)
            return block

        self.layers = Stack(b, kinds, make)
        first = self.blocks[0]
        self.table = first.table if own else table_of(a, b, root, first.attention.heads)
        self.norm = Norm(b, f"{root}.final_layer_norm", a.hidden_size)

    def bias(self, f: Tape, length: int) -> Tensor:
        """compute_bias of the first block: [1, h, T, T], wider by a prefix; all layers keep it, the embedding its
        buckets.
        """
        prefix = self.env.prefix
        keys = length + (prefix.tokens if prefix is not None and prefix.active else 0)
        first, table = self.blocks[0], self.table
        assert table is not None

        def make() -> Tensor:
            values = embedding(f, table, f.new((length, keys), "int64"))
            return values.view(1, first.attention.heads, length, keys)

        rebuilt = first.checkpointed and table.trainable
        return f.checkpoint(make, (), reentrant=False) if rebuilt else make()

    def zeros(self, f: Tape, shape: tuple[int, ...], dtype: str) -> Tensor:
        """The decoder's cross-attention has no bias: zeros, which collect a gradient under checkpointing."""
        zeros = f.new(shape, dtype)
        if self.env.checkpointed(0) and f.grad_enabled:
            leaf = Leaf(shape, dtype)
            leaf.sink = collect
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
        state["mask"], state["cross mask"] = mask, padded
        handed = Handed.of(env, f)
        for block in self.blocks:
            block.handed = handed
            block.uses = ("mask", "cross mask") if handed is not None else SHARED[1:] if block.first else None
        if source is not None:
            source = shared(f, source)
        if handed is not None:
            return self.end(f, handed.run(f, self.layers, env, x, () if source is None else (source,)))
        state["source"] = source
        bias = shared(f, self.bias(f, length))
        state["bias"], state["bias node"], state["bias shape"] = bias, bias.node, (bias.shape, bias.dtype)
        state["cross bias"], first = None, self.blocks[0]
        if source is not None:
            # Queries are half under autocast, and so are these zeros; quantised layers answer in the norm's dtype.
            weight = first.norm.weight.dtype
            kept = weight if weight in ("fp16", "bf16") else x.dtype
            dtype = kept if first.attention.keeps_dtype else f.autocast or x.dtype
            state["cross bias"] = self.zeros(f, (1, first.attention.heads, length, source.shape[1]), dtype)
        first.given = bias
        del state, bias
        x = self.layers(f, env, x)
        first.given = None
        return self.end(f, x)

    def end(self, f: Tape, x: Tensor) -> Tensor:
        """The last norm; what the blocks share goes with the forward's return."""
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        self.env.release()
        return x


class Model:
    """T5ForConditionalGeneration: source ids [B, S] and labels [B, T] -> logits [B, T, V]."""

    stack: Any = StackOfBlocks

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h = a.hidden_size
        rows = b.training.vocab_size or a.vocab_size
        if env.attention == "flash":
            env.attention = "eager"
        self.shared = b.embedding("shared", rows, h, entry=True)
        layers = int(a.get("num_layers") or a.num_hidden_layers)
        self.encoder = self.stack(a, b, env, "encoder", layers)
        b.first_layer = b.depth = b.layers  # a decoder's layers go by the encoder's numbers
        self.decoder = self.stack(a, b, env, "decoder", int(a.get("num_decoder_layers") or layers))
        b.first_layer, b.depth = 0, None
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
        embeds = self.shared(f, batch.ids)
        padded = env.mask(f, batch.rows, batch.length, embeds.dtype) if env.padding else None
        hidden = self.encoder(f, embeds, padded, None, None)
        del embeds, padded
        decoder_ids = f.new((rows, target), "int64")
        embeds = words_of(self.shared)(f, decoder_ids)
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
