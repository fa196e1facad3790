"""ESM-2: pre-norm encoder layers with rotary positions in fp32 and embeddings scaled for masked tokens.

Source: transformers 5.24 models/esm/modeling_esm.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import required
from memlint.estimate.families import pre_norm_bert
from memlint.estimate.families.encoder_heads import PooledHead, TokenHead
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.rotary import rotary_tables
from memlint.estimate.ops.activations import erf_gelu
from memlint.estimate.ops.basic import add, cast, cat, mul, scale, slice_of
from memlint.estimate.ops.gather import masked_fill
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Embeddings:
    """EsmEmbeddings."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, longest = a.hidden_size, int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.norm = LayerNorm(b, f"{name}.layer_norm", h) if a.get("emb_layer_norm_before") else None
        absolute = a.get("position_embedding_type", "absolute") == "absolute"
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h) if absolute else None
        self.token_dropout = bool(a.get("token_dropout", False))
        b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor, mask: Tensor | None) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        position_ids = f.new(ids.shape, "int64")
        x: Tensor = self.words(f, ids)
        inputs = x
        ratio = lengths = None
        if self.token_dropout:
            x = masked_fill(f, x, f.new((*ids.shape, 1), "bool"))
            lengths = f.new(ids.shape[:1], "int64") if mask is not None else None
            ratio = f.new(ids.shape[:1], "fp32")
            x = cast(f, _over(f, scale(f, x), f.new((ids.shape[0], 1, 1), "fp32")), x.dtype)
        if self.positions is not None:
            x = add(f, x, self.positions(f, position_ids))
        if self.norm is not None:
            x = self.norm(f, x)
        if mask is not None:
            x = cast(f, mul(f, x, mask.view(*mask.shape, 1)), x.dtype)
        del inputs, ratio, lengths
        return x


def _over(f: Tape, x: Tensor, divisor: Tensor) -> Tensor:
    """``x / divisor``, which needs no gradient: saves the divisor alone; the result is fp32."""
    return mul(f, x, divisor)


class Layer(pre_norm_bert.Layer):
    """EsmLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        super().__init__(a, b, name, env)
        self.rotary = a.get("position_embedding_type", "absolute") == "rotary"

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """EsmSelfAttention: the query is scaled before it is turned."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        q = scale(f, q)
        if self.rotary:
            cos, sin = self.env.state["rope"]
            q, k = _turned(f, q, k, cos, sin)
        mask = self.env.state["mask"]
        return attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False, style="raw")

    def _fed(self, f: Tape, x: Tensor) -> Tensor:
        x = self.up(f, x)
        return erf_gelu(f, x)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended = self._alone(f, x)
        return self._chunk(f, attended)

    def _alone(self, f: Tape, x: Tensor) -> Tensor:
        """Attention without its weights, which its frame holds."""
        return self._attended(f, x)[0]

    def _chunk(self, f: Tape, attended: Tensor) -> Tensor:
        normed = self.between(f, attended)
        fed = self._fed(f, normed)
        return self._output(f, fed, attended)


def _turned(f: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: each factor cast to fp32, the sums cast back."""
    dtype = q.dtype
    first, second = _turn(f, q, cos, sin), _turn(f, k, cos, sin)
    return cast(f, first, dtype), cast(f, second, dtype)


def _turn(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    straight = mul(f, cast(f, x, "fp32"), cos)
    return add(f, straight, mul(f, _half_turned(f, cast(f, x, "fp32")), sin))


def _half_turned(f: Tape, x: Tensor) -> Tensor:
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return cat(f, scale(f, second), first)


class MaskedHead:
    """EsmLMHead: the decoder's bias is added by itself."""

    def __init__(self, a: Architecture, b: Build, words: Any) -> None:
        h = a.hidden_size
        rows = words.weight.shape[0]
        self.dense = b.linear("lm_head.dense", h, h, True)
        self.norm = LayerNorm(b, "lm_head.layer_norm", h)
        tied = a.tie_word_embeddings
        self.decoder = Linear(words.weight if tied else b.parameter("lm_head.decoder.weight", rows, h), None)
        self.bias = b.parameter("lm_head.bias", rows)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, None]:
        """Logits over the vocabulary."""
        x = self.dense(f, x)
        x = erf_gelu(f, x)
        x = self.norm(f, x)
        f.component = LOGITS
        logits = add(f, self.decoder(f, x), self.bias)
        f.component = TEMPORARIES
        return logits, None


class Model:
    """EsmModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env = env
        required(a, "vocab_size")
        self.embeddings = Embeddings(a, b, "esm.embeddings")
        heads = int(a.get("num_attention_heads"))
        self.rotary = a.hidden_size // heads if a.get("position_embedding_type") == "rotary" else 0
        if self.rotary:
            b.buffer(self.rotary // 2 * 4)
        make = lambda build, kind, i: Layer(a, build, f"esm.encoder.layer.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, "esm.encoder.emb_layer_norm_after", a.hidden_size)
        # The contact head takes no part in training.
        b.idle = True
        b.linear("esm.contact_head.regression", a.num_hidden_layers * heads, 1, True)
        b.idle = False
        self.head: Any
        p = float(a.get("hidden_dropout_prob", 0.0))
        if objective == "token-classification":
            self.head = TokenHead(a, b, p)
        elif objective == "sequence-classification":
            names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
            self.head = PooledHead(a, b, act="tanh", before=p, after=p, **names)
        else:
            self.head = MaskedHead(a, b, self.embeddings.words)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, (rows, length) = self.env, batch.ids.shape
        embedded = self.embeddings(f, batch.ids, batch.mask)
        env.state["mask"] = env.mask(f, rows, length, embedded.dtype) if env.padding else None
        positions = None
        if self.rotary:
            positions = f.new((1, length), "int64")
            env.state["rope"] = rotary_tables(f, length, self.rotary, embedded.dtype)
        x = self.layers(f, env, embedded)
        x = self.norm(f, x)
        env.release()
        del positions
        return x
