"""BART and its kin: norms after (bart, marian) or before (mbart, pegasus) the branches, a decoder over encoder states.

Sources: transformers 5.24 models/<type>/modeling_*.py of bart, mbart, pegasus, marian, plbart, mvp, blenderbot,
blenderbot_small and m2m_100.
"""

from __future__ import annotations

from typing import Any, Container

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate, clamped
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.peft_prompts import words_of
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

POSITION_OFFSET = 2
"""Rows that BartLearnedPositionalEmbedding adds."""

PRE_NORM = ("mbart", "pegasus", "whisper", "blenderbot", "m2m_100", "qwen2_audio_encoder", "voxtral_encoder")
"""Norms before the branches, and one after the last layer."""

PLAIN_TABLES = ("pegasus", "marian", "blenderbot", "blenderbot-small")
"""Tables of positions (of sines or learned) with one row a position."""

UNNORMED = ("pegasus", "marian", "blenderbot", "m2m_100")
"""No norm after the embedding."""

BUFFERED = ("m2m_100",)
"""Positions are looked up in a buffer, for each token by its place; logits have no bias of their own."""


EAGER = ("mvp",)
"""Types whose class takes no attention but its own."""


class Attention:
    """BartAttention: self-attention, or attention over the encoder's states."""

    def __init__(self, a: Architecture, b: Build, name: str, heads: int) -> None:
        h = a.hidden_size
        self.heads, self.width = heads, h // heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            b.linear(f"{name}.{n}", h, h, True) for n in ("k_proj", "v_proj", "q_proj", "out_proj")
        )
        self.dropout = float(a.get("attention_dropout", 0.0))

    def __call__(
        self, f: Tape, env: Env, x: Tensor, source: Tensor, mask: Tensor | None, *, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, H] over source [B, S, H] -> [B, T, H], attention weights."""
        q = heads_of(self.q_proj(f, x), self.heads, self.width)
        k = heads_of(self.k_proj(f, source), self.heads, self.width)
        v = heads_of(self.v_proj(f, source), self.heads, self.width)
        cached = source is not x and env.prefix is not None and bool(env.prefix.held)
        if cached and env.prefix is not None:
            k, v = env.prefix.across(f, k, v)
        out, weights = attend(f, env, q, k, v, mask, self.dropout, causal=causal, style="raw", joined=cached)
        out = self.out_proj(f, out)
        return out, weights


class Layer:
    """An encoder or decoder layer, norms before or after each branch."""

    attention: Any = Attention

    def __init__(self, a: Architecture, b: Build, name: str, env: Env, *, decoder: bool) -> None:
        h = a.hidden_size
        side = "decoder" if decoder else "encoder"
        heads = int(a.get(f"{side}_attention_heads"))
        width = int(a.get(f"{side}_ffn_dim"))
        self.env, self.decoder = env, decoder
        self.pre = a.model_type in PRE_NORM
        self.act = str(a.get("activation_function", "gelu"))
        self.dropout = float(a.get("dropout", 0.0))
        self.activation_dropout = float(a.get("activation_dropout", 0.0))
        self.self_attn = self.attention(a, b, f"{name}.self_attn", heads)
        self.self_norm = LayerNorm(b, f"{name}.self_attn_layer_norm", h)
        if decoder:
            self.encoder_attn = self.attention(a, b, f"{name}.encoder_attn", heads)
            self.encoder_norm = LayerNorm(b, f"{name}.encoder_attn_layer_norm", h)
        self.fc1 = b.linear(f"{name}.fc1", h, width, True)
        self.fc2 = b.linear(f"{name}.fc2", width, h, True)
        self.final_norm = LayerNorm(b, f"{name}.final_layer_norm", h)

    def branch(
        self, f: Tape, x: Tensor, attention: Any, norm: LayerNorm, source: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One attention with its residual and norm."""
        residual = x
        if self.pre:
            x = norm(f, x)
        causal = self.decoder and source is None
        x, weights = attention(f, self.env, x, x if source is None else source, mask, causal=causal)
        x = dropout(f, x, self.dropout)
        x = add(f, residual, x)
        return (x if self.pre else norm(f, x)), weights

    def feed(self, f: Tape, x: Tensor) -> Tensor:
        """The two projections with their residual and norm."""
        residual = x
        if self.pre:
            x = self.final_norm(f, x)
        x = activate(f, self.fc1(f, x), self.act)
        x = dropout(f, x, self.activation_dropout)
        x = self.fc2(f, x)
        x = dropout(f, x, self.dropout)
        x = add(f, residual, x)
        if not self.pre:
            return self.final_norm(f, x)
        # Post-norm encoders clamp only what is not finite.
        return x if self.decoder else clamped(f, x)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        state = self.env.state
        x, weights = self.branch(f, x, self.self_attn, self.self_norm, None, state["mask"])
        if self.decoder:
            x, weights = self.branch(f, x, self.encoder_attn, self.encoder_norm, state["source"], state["cross mask"])
        x = self.feed(f, x)
        del weights
        return x


def stack(
    a: Architecture,
    b: Build,
    env: Env,
    side: str,
    layers: int,
    layer: Any = Layer,
    name: str | None = None,
    cut: Container[int] = (),
) -> Stack:
    """The layers of one side. The last decoder layer is apart where no norm follows: its gradient is the head's own.

    ``cut``: layers whose parameters get no gradient, although they train.
    """
    decoder = side == "decoder"
    apart = decoder and (a.model_type not in PRE_NORM or b.sharding.zero is not None)
    kinds = ["layer"] * (layers - 1) + ["last" if apart else "layer"]
    kinds = [f"{kind} cut" if index in cut else kind for index, kind in enumerate(kinds)]
    at = f"{name or f'model.{side}'}.layers"

    def make(build: Build, kind: str, index: int) -> Any:
        idle, build.idle = build.idle, build.idle or index in cut
        made = layer(a, build, f"{at}.{index}", env, decoder=decoder)
        build.idle = idle
        return made

    return Stack(b, kinds, make)


class Side:
    """BartEncoder or BartDecoder: embedded ids -> hidden states."""

    def __init__(self, a: Architecture, b: Build, env: Env, side: str) -> None:
        h = a.hidden_size
        name = f"model.{side}"
        plain = a.model_type in PLAIN_TABLES
        self.env, self.per_row = env, side == "encoder" and not plain
        self.dropout = float(a.get("dropout", 0.0))
        rows = int(a.get("max_position_embeddings")) + (0 if plain else POSITION_OFFSET)
        self.dtype = b.training.precision.weights
        self.positions = None
        if a.model_type in BUFFERED:
            b.buffer(rows * h * DTYPE_BYTES[self.dtype])
        else:
            # Built frozen, the tables of sines train after from_pretrained of transformers 5.24, which puts new
            # parameters in place.
            self.positions = b.embedding(f"{name}.embed_positions", rows, h)
        self.layers = stack(a, b, env, side, int(a.get(f"{side}_layers")))
        self.norms_first = a.model_type == "blenderbot-small" and side == "decoder"
        """The embedding is normed before its positions are added."""
        unnormed = a.model_type in UNNORMED
        self.embed_norm = None if unnormed else LayerNorm(b, f"{name}.layernorm_embedding", h)
        self.norm = LayerNorm(b, f"{name}.layer_norm", h) if a.model_type in PRE_NORM else None

    def placed(self, f: Tape, rows: int, length: int, width: int) -> Tensor:
        """Embeddings of the positions."""
        if self.positions is None:
            return f.new((rows, length, width), self.dtype)
        places: Tensor = self.positions(f, f.new((rows if self.per_row else 1, length), "int64"))
        return places

    def __call__(
        self, f: Tape, embeds: Tensor, mask: Tensor | None, source: Tensor | None, padded: Tensor | None
    ) -> Tensor:
        """embeds [B, T, H] over the encoder's source [B, S, H] -> [B, T, H]."""
        env, rows, length = self.env, embeds.shape[0], embeds.shape[1]
        position_embeds = self.placed(f, rows, length, embeds.shape[-1])
        if self.norms_first and self.embed_norm is not None:
            embeds = self.embed_norm(f, embeds)
        x = add(f, embeds, position_embeds)
        if self.embed_norm is not None and not self.norms_first:
            x = self.embed_norm(f, x)
        given = [dropout(f, x, self.dropout)]
        del x
        source = None if source is None else shared(f, source)
        env.state["mask"], env.state["source"], env.state["cross mask"] = mask, source, padded
        x = self.layers(f, env, given)
        if self.norm is not None:
            x = self.norm(f, x)
        env.release()
        return x


class Model:
    """BartForConditionalGeneration: source ids [B, S] and labels [B, T] -> logits [B, T, V]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        if a.model_type in EAGER:
            env.attention = "eager"
        rows = b.training.vocab_size or a.vocab_size
        self.shared = b.embedding("model.shared", rows, a.hidden_size, entry=True, scaled=True)
        self.encoder = Side(a, b, env, "encoder")
        b.first_layer = b.depth = b.layers  # a decoder's layers go by the encoder's numbers
        self.decoder = Side(a, b, env, "decoder")
        b.first_layer, b.depth = 0, None
        weight = self.shared.weight if a.tie_word_embeddings else b.parameter("lm_head.weight", rows, a.hidden_size)
        self.head = Linear(weight, None)
        self.offset_dtype = b.training.precision.weights
        self.biased = a.model_type not in BUFFERED
        if self.biased:
            b.buffer(rows * DTYPE_BYTES[self.offset_dtype])

    def __call__(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Logits, and the hidden states that the model's forward holds."""
        env = self.env
        assert batch.labels is not None
        rows, target = batch.labels.shape
        decoder_ids = f.new((rows, target), "int64")
        embeds = self.shared(f, batch.ids)
        padded = env.mask(f, batch.rows, batch.length, embeds.dtype) if env.padding else None
        hidden = self.encoder(f, embeds, padded, None, None)
        del padded
        embeds = words_of(self.shared)(f, decoder_ids)
        mask = env.mask(f, rows, target, embeds.dtype)
        padded = None
        if env.padding:
            padded = f.new((rows, 1, target, batch.length), "bool" if env.attention == "sdpa" else embeds.dtype)
        out = self.decoder(f, embeds, mask, hidden, padded)
        del embeds, mask, padded
        f.component = LOGITS
        logits = self.head(f, out)
        if self.biased:
            logits = add(f, logits, Tensor((1, logits.shape[-1]), self.offset_dtype, None))
        f.component = TEMPORARIES
        return logits, (hidden, out, decoder_ids)
