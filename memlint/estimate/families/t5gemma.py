"""T5Gemma: an encoder and a decoder of Gemma 2's layers, the decoder's with attention over the encoder's states.

Source: transformers 5.24 models/t5gemma/modeling_t5gemma.py. Scores are soft-capped, so it runs eager attention.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported, required
from memlint.estimate.families.llama import layer_kinds
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotary_tables, rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout, mul, saving_output, scale
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.models.config import part

SHAPE = Shape(norm="gemma", mlp_bias=False)


class Attention:
    """T5GemmaSelfAttention, or T5GemmaCrossAttention: over the encoder's states, without positions."""

    def __init__(self, a: Architecture, b: Build, name: str, source: int) -> None:
        h, bias = a.hidden_size, bool(a.get("attention_bias", False))
        self.heads, self.kv = required(a, "num_attention_heads"), required(a, "num_key_value_heads")
        self.dim = int(a.get("head_dim") or h // self.heads)
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.capped = a.get("attn_logit_softcapping") is not None
        self.q = b.linear(f"{name}.q_proj", h, self.heads * self.dim, bias)
        self.k = b.linear(f"{name}.k_proj", source, self.kv * self.dim, bias)
        self.v = b.linear(f"{name}.v_proj", source, self.kv * self.dim, bias)
        self.o = b.linear(f"{name}.o_proj", self.heads * self.dim, h, bias)

    def __call__(self, f: Tape, env: Env, x: Tensor, source: Tensor | None, mask: Tensor | None) -> Tensor:
        """x [B, T, H], source [B, S, H'] or None for x itself -> [B, T, H]."""
        seen = x if source is None else source
        q = self.q(f, x).view(x.shape[0], self.heads, x.shape[1], self.dim)
        k = self.k(f, seen).view(x.shape[0], self.kv, seen.shape[1], self.dim)
        v = self.v(f, seen).view(x.shape[0], self.kv, seen.shape[1], self.dim)
        if source is None:
            q, k = rotate_both(f, q, k, env.state["rope"], SHAPE)
        out = env.attend(f, q, k, v, mask, self.dropout, softcap=self.capped)
        held = env.named(f, q, k, v)
        del q, k, v
        result: Tensor = self.o(f, out)
        del held
        return result


class FeedForward:
    """T5GemmaMLP."""

    def __init__(self, a: Architecture, b: Build, name: str, p: float) -> None:
        h, width = a.hidden_size, required(a, "intermediate_size")
        self.gate, self.up = b.linear(f"{name}.gate_proj", h, width), b.linear(f"{name}.up_proj", h, width)
        self.down = b.linear(f"{name}.down_proj", width, h)
        self.act, self.dropout = str(a.get("hidden_activation", "gelu_pytorch_tanh")), p

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        hidden = mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x))
        hidden = dropout(f, hidden, self.dropout)
        result: Tensor = self.down(f, hidden)
        return result


class Block:
    """T5GemmaEncoderLayer, or T5GemmaDecoderLayer with its cross-attention."""

    def __init__(self, a: Architecture, b: Build, kind: str, name: str, env: Env, p: float, source: int | None) -> None:
        h = a.hidden_size
        self.env, self.kind, self.dropout = env, kind, p
        self.attention = Attention(a, b, f"{name}.self_attn", h)
        self.norms = {n: Norm(b, f"{name}.{n}_layernorm", h, "gemma") for n in ("pre_self_attn", "post_self_attn")}
        self.mlp = FeedForward(a, b, f"{name}.mlp", p)
        parts = ["pre_feedforward", "post_feedforward"]
        self.cross: Attention | None = None
        if source is not None:
            self.cross = Attention(a, b, f"{name}.cross_attn", source)
            parts += ["pre_cross_attn", "post_cross_attn"]
        self.norms.update({n: Norm(b, f"{name}.{n}_layernorm", h, "gemma") for n in parts})

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        env, state = self.env, self.env.state
        residual = x
        x = self.norms["pre_self_attn"](f, env, x)
        x = self.attention(f, env, x, None, state["masks"][self.kind])
        x = self.norms["post_self_attn"](f, env, x)
        x = add(f, residual, dropout(f, x, self.dropout))
        if self.cross is not None:
            residual = x
            x = self.norms["pre_cross_attn"](f, env, x)
            x = self.cross(f, env, x, state["source"], state["cross mask"])
            x = self.norms["post_cross_attn"](f, env, x)
            x = add(f, residual, dropout(f, x, self.dropout))
        residual = x
        x = self.norms["pre_feedforward"](f, env, x)
        x = self.mlp(f, x)
        x = self.norms["post_feedforward"](f, env, x)
        return add(f, residual, dropout(f, x, self.dropout))


class Side:
    """T5GemmaEncoder or T5GemmaDecoder."""

    def __init__(self, a: Architecture, b: Build, env: Env, side: str, p: float, source: int | None) -> None:
        name, h = f"model.{side}", a.hidden_size
        self.a, self.env, self.dropout, self.decoder = a, env, p, source is not None
        self.embed = b.embedding(f"{name}.embed_tokens", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.kinds = layer_kinds(a)
        last = self.decoder and b.sharding.zero is not None
        kinds = [(kind, last and i == len(self.kinds) - 1) for i, kind in enumerate(self.kinds)]
        self.layers = Stack(
            b, kinds, lambda build, kind, i: Block(a, build, kind[0], f"{name}.layers.{i}", env, p, source)
        )
        self.norm = Norm(b, f"{name}.norm", h, "gemma")
        self.width = int(a.get("head_dim") or h // required(a, "num_attention_heads"))
        b.buffer(self.width // 2 * 4)
        b.buffer(self.width // 2 * 4)

    def mask(self, f: Tape, rows: int, length: int, dtype: str, kind: str) -> Tensor | None:
        """A causal mask of the decoder; of the encoder one where there is padding or a window that cuts."""
        window = self.a.get("sliding_window") if kind == "sliding" else None
        if not self.decoder and not self.env.padding and (window is None or length < window):
            return None
        return self.env.mask(f, rows, length, dtype, window)

    def __call__(self, f: Tape, ids: Tensor, source: Tensor | None) -> Tensor:
        """ids [B, T] -> [B, T, H]."""
        env, (rows, length) = self.env, ids.shape
        embeds = self.embed(f, ids)
        default = None if env.padding and not self.decoder else f.new((rows, length), "int64")
        masks = {kind: self.mask(f, rows, length, embeds.dtype, kind) for kind in dict.fromkeys(self.kinds)}
        source = None if source is None else shared(f, source)
        env.state["masks"], env.state["source"], env.state["cross mask"] = masks, source, None
        if source is not None and env.padding:
            env.state["cross mask"] = f.new((rows, 1, length, source.shape[1]), embeds.dtype)
        del masks
        x = scale(f, embeds)
        x = dropout(f, x, self.dropout)
        env.state["rope"] = rotary_tables(f, length, self.width, x.dtype)
        x = self.layers(f, env, x)
        x = self.norm(f, env, x)
        x = dropout(f, x, self.dropout)
        env.release()
        del embeds, default
        return x


class Model:
    """T5GemmaForConditionalGeneration: source ids [B, S] and labels [B, T] -> logits [B, T, V]."""

    upcasts = True
    """ForMaskedLMLoss takes its loss in fp32."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if env.attention == "sdpa":
            env.attention = "eager"
        first, second = part(a, "encoder"), part(a, "decoder")
        if first is None or second is None:
            raise Unsupported(f"`{a.model_type}` without encoder and decoder")
        p = float(a.get("dropout_rate", 0.0))
        self.env = env
        env.positional = True
        self.encoder = Side(first, b, env, "encoder", p, None)
        b.first_layer = b.layers
        self.decoder = Side(second, b, env, "decoder", p, first.hidden_size)
        b.first_layer = 0
        tied = a.tie_word_embeddings
        rows = b.training.vocab_size or second.vocab_size
        self.head: Any = (
            Linear(self.decoder.embed.weight, None) if tied else b.linear("lm_head.out_proj", second.hidden_size, rows)
        )
        self.capped = second.get("final_logit_softcapping") is not None

    def __call__(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Logits, and the hidden states that the model's forward holds."""
        assert batch.labels is not None
        decoder_ids = f.new(batch.labels.shape, "int64")
        hidden = self.encoder(f, batch.ids, None)
        out = self.decoder(f, decoder_ids, hidden)
        f.component = LOGITS
        logits: Tensor = self.head(f, out)
        if self.capped:
            logits = scale(f, logits)
            logits = saving_output(f, logits)
            logits = scale(f, logits)
        f.component = TEMPORARIES
        return logits, (hidden, out, decoder_ids)
