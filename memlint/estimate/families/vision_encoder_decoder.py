"""An image tower and a text decoder over its states: TrOCR and Donut, and pairs of a ViT or Donut's Swin with the
decoders of TrOCR or mBART.

The decoder keeps its keys and values in training too, unless checkpointed: what its config says of use_cache is true.
Sources: transformers 5.24 models/{vision_encoder_decoder,trocr,mbart}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import bart
from memlint.estimate.families.pieces import LayerNorm, hooked
from memlint.estimate.families.vision_tower import Tower, Unreached
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, saving_output, scale, slice_of
from memlint.estimate.ops.convolutions import mean_over
from memlint.estimate.ops.linear import matmul
from memlint.models.architecture import Architecture
from memlint.models.config import part
from memlint.records import replace

ENCODERS = ("vit", "deit", "donut-swin")
DECODERS = ("trocr", "mbart")


class Cached(bart.Attention):
    """MBartAttention whose keys and values are copied into a cache (DynamicCache.update joins them to nothing)."""

    def __init__(self, a: Architecture, b: Build, name: str, heads: int) -> None:
        h = a.hidden_size
        self.heads, self.width = heads, h // heads
        crossing = name.endswith("encoder_attn") and a.model_type == "trocr"
        inputs = int((a.get("cross_attention_hidden_size") if crossing else None) or h)
        self.k_proj, self.v_proj = (b.linear(f"{name}.{n}_proj", inputs, h, True) for n in "kv")
        self.q_proj, self.out_proj = b.linear(f"{name}.q_proj", h, h, True), b.linear(f"{name}.out_proj", h, h, True)
        self.dropout = float(a.get("attention_dropout", 0.0))

    def split(self, f: Tape, x: Tensor) -> Tensor:
        """Keys or values by head, [B, h, S, D]."""
        rows, length, h = x.shape
        x = x.view(rows, self.heads, length, h // self.heads)
        return x

    def __call__(
        self, f: Tape, env: Env, x: Tensor, source: Tensor, mask: Tensor | None, *, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, H] over source [B, S, H] -> [B, T, H], attention weights."""
        from memlint.estimate.families.pieces import attend

        cached = env.checkpointing.mode == "none"
        q = self.split(f, self.q_proj(f, x))
        k = self.split(f, self.k_proj(f, source))
        v = self.split(f, self.v_proj(f, source))
        if cached:
            k, v = copy(f, k), copy(f, v)
        out, weights = attend(f, env, q, k, v, mask, self.dropout, causal=causal, style="raw")
        return self.out_proj(f, out), weights


class Composed(Cached):
    """TrOCRAttention: always composed, over all heads of all rows as one batch."""

    def __call__(
        self, f: Tape, env: Env, x: Tensor, source: Tensor, mask: Tensor | None, *, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See Cached; the weights are kept by nobody."""
        rows, length, h = x.shape
        q = scale(f, self.q_proj(f, x))
        k, v = self.k_proj(f, source), self.v_proj(f, source)
        # Once, into the cache or to be seen as one batch.
        k, v = copy(f, self.split(f, k)), copy(f, self.split(f, v))
        batch, count, width = rows * self.heads, source.shape[1], self.width
        q = copy(f, q, (batch, length, width))
        k, v = k.view(batch, count, width), v.view(batch, count, width)
        weights = matmul(f, q, k, count)
        if mask is not None:
            weights = add(f, weights.view(rows, self.heads, length, count), mask).view(batch, length, count)
        weights = softmax(f, weights)
        shares = dropout(f, weights, self.dropout)
        out = matmul(f, shares, v, width)
        out = copy(f, out, (rows, length, h))
        out = self.out_proj(f, out)
        del weights, shares
        return out, None


class CachedLayer(bart.Layer):
    """MBartDecoderLayer."""

    attention = Cached


class ComposedLayer(bart.Layer):
    """TrOCRDecoderLayer."""

    attention = Composed


class Decoder:
    """TrOCRDecoder and MBartDecoder."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        h, name = a.hidden_size, "model.decoder"
        trocr = a.model_type == "trocr"
        if trocr and not a.get("use_learned_position_embeddings", True):
            raise Unsupported("no memory model for TrOCR's positions of sines yet")
        # TrOCR's attention knows no other kernel.
        self.env, self.trocr = replace(env, attention="eager", state={}) if trocr else env, trocr
        self.dropout = float(a.get("dropout", 0.0))
        self.embed = b.embedding(f"{name}.embed_tokens", b.training.vocab_size or a.vocab_size, h, entry=True)
        rows = int(a.get("max_position_embeddings")) + bart.POSITION_OFFSET
        self.positions = b.embedding(f"{name}.embed_positions", rows, h)
        normed = not trocr or bool(a.get("layernorm_embedding", True))
        self.embed_norm = LayerNorm(b, f"{name}.layernorm_embedding", h) if normed else None
        layer: Any = ComposedLayer if trocr else CachedLayer
        self.layers = bart.stack(a, b, self.env, "decoder", int(a.get("decoder_layers")), layer)
        self.norm = None if trocr else LayerNorm(b, f"{name}.layer_norm", h)

    def __call__(self, f: Tape, ids: Tensor, source: Tensor) -> Tensor:
        """ids [B, T] over the tower's states [B, S, H] -> [B, T, H]."""
        env, (rows, length) = self.env, ids.shape
        embeds = hooked(f, env, scale(f, self.embed(f, ids)))
        places = self.positions(f, f.new((rows if self.trocr else 1, length), "int64"))
        x = add(f, embeds, places)
        if self.embed_norm is not None:
            x = self.embed_norm(f, x)
        x = dropout(f, x, self.dropout)
        env.state["mask"] = env.mask(f, rows, length, embeds.dtype)
        env.state["source"], env.state["cross mask"] = shared(f, source), None
        x = self.layers(f, env, x)
        env.release()
        del embeds, places
        return x if self.norm is None else self.norm(f, x)


class Model:
    """VisionEncoderDecoderModel: pixels and labels [B, T] -> logits [B, T, V]."""

    dtype = "fp32"
    """Of the pixels: what casts them takes fp32."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        image, text = part(a, "encoder"), part(a, "decoder")
        if image is None or text is None or image.model_type not in ENCODERS or text.model_type not in DECODERS:
            pair = " and ".join(f"`{p.model_type}`" for p in (image, text) if p is not None)
            raise Unsupported(f"no memory model for a vision-encoder-decoder of {pair or 'unknown parts'} yet")
        self.donut = image.model_type == "donut-swin"
        self.env, self.pooler = env, None
        self.tower: Any
        if self.donut:
            from memlint.estimate.families import donut

            self.tower, self.dtype = donut.Tower(image, b, env, "encoder"), b.training.precision.weights
        else:
            self.tower, idle = Tower(image, b, env, "encoder"), b.idle
            b.idle = True
            self.pooler = b.linear("encoder.pooler.dense", image.hidden_size, image.hidden_size, True)
            b.idle = idle
        b.scope = "decoder.model."
        self.decoder = Decoder(text, b, env)
        b.scope = ""
        width = self.tower.out if self.donut else image.hidden_size
        between = width != text.hidden_size and text.get("cross_attention_hidden_size") is None
        self.project = b.linear("enc_to_dec_proj", width, text.hidden_size, True) if between else None
        embed = self.decoder.embed.weight
        name = "output_projection" if text.model_type == "trocr" else "lm_head"
        tied = text.tie_word_embeddings
        self.head = Linear(embed if tied else b.parameter(f"decoder.{name}.weight", *embed.shape), None)

    def features(self, rows: int) -> tuple[int, ...]:
        """Shape of the pixels of ``rows`` images."""
        size = self.tower.size if self.donut else (self.tower.image, self.tower.image)
        return rows, self.tower.channels, *size

    def seen(self, f: Tape, pixels: Tensor) -> tuple[Tensor, Any]:
        """The tower's states; the pooled vector, which nothing leads backward through, stands in its outputs."""
        x = self.tower(f, pixels) if self.donut else self.tower(f, pixels)[0]
        self.env.release()
        mark = len(f.nodes)
        if self.pooler is None:
            pooled = mean_over(f, x, (x.shape[0], x.shape[2]))
        else:
            pooled = saving_output(f, self.pooler(f, slice_of(f, x, (x.shape[0], x.shape[2]))))
        held = [pooled, Unreached(f.nodes[mark:])]
        del f.nodes[mark:]
        return x, held

    def __call__(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Logits, and the hidden states that the model's forward holds."""
        assert batch.labels is not None
        states, held = self.seen(f, batch.ids)
        source = states if self.project is None else self.project(f, states)
        decoder_ids = f.new(batch.labels.shape, "int64")
        out = self.decoder(f, decoder_ids, source)
        f.component = LOGITS
        logits = self.head(f, out)
        f.component = TEMPORARIES
        return logits, (states, source, held, out, decoder_ids)
