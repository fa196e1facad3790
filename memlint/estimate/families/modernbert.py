"""ModernBERT: pre-norm layers, rotary positions in fp32, alternating full and sliding-window attention, gated MLP.

Source: transformers 5.24 models/modernbert/modeling_modernbert.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import MaskedHead, labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, half_turned, heads_of
from memlint.estimate.families.rotary import rotary_tables
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, dropout, mul, scale
from memlint.estimate.ops.views import select, split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Attention:
    """ModernBertAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        bias = bool(a.get("attention_bias", False))
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.qkv = b.linear(f"{name}.Wqkv", h, 3 * h, bias)
        self.out = b.linear(f"{name}.Wo", h, h, bias)

    def rotate(self, f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x.float() * cos + rotate_half(x.float()) * sin``: two casts of x."""
        straight = mul(f, cast(f, x, "fp32"), cos)
        return add(f, straight, mul(f, self._half_turned(f, x), sin))

    def _half_turned(self, f: Tape, x: Tensor) -> Tensor:
        whole = cast(f, x, "fp32")  # which goes with this call, before the product
        return half_turned(f, whole)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        part = (*x.shape[:-1], self.heads, self.width)
        qkv = self.qkv(f, x)
        q, k, v = (heads_of(t, self.heads, self.width) for t in split(f, qkv, part, part, part))
        tables = env.state[f"rope:{kind}"]
        dtype = q.dtype
        q_turned, k_turned = self.rotate(f, q, *tables), self.rotate(f, k, *tables)
        q, k = cast(f, q_turned, dtype), cast(f, k_turned, dtype)
        del q_turned, k_turned
        out, weights = attend(f, env, q, k, v, env.state[f"mask:{kind}"], self.dropout, causal=False)
        out = dropout(f, self.out(f, out), self.dropout)
        del qkv
        return out, weights


class Layer:
    """ModernBertEncoderLayer; the first one has no norm before its attention."""

    attention: Any = Attention

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        bias, width = bool(a.get("norm_bias", False)), int(a.get("intermediate_size"))
        self.env, self.kind = env, kind[0]
        self.uses = (f"mask:{kind[0]}", f"rope:{kind[0]}")
        self.act = str(a.get("hidden_activation", "gelu"))
        self.dropout = float(a.get("mlp_dropout", 0.0))
        self.attn_norm = None if kind[1] else LayerNorm(b, f"{name}.attn_norm", h, bias=bias)
        self.attn = self.attention(a, b, f"{name}.attn")
        self.mlp_norm = LayerNorm(b, f"{name}.mlp_norm", h, bias=bias)
        mlp_bias = bool(a.get("mlp_bias", False))
        self.width = width
        self.up = b.linear(f"{name}.mlp.Wi", h, 2 * width, mlp_bias)
        self.down = b.linear(f"{name}.mlp.Wo", width, h, mlp_bias)

    def mlp(self, f: Tape, x: Tensor) -> Tensor:
        """ModernBertMLP."""
        half = (*x.shape[:-1], self.width)
        given, gate = split(f, self.up(f, x), half, half)
        return self.down(f, dropout(f, mul(f, activate(f, given, self.act), gate), self.dropout))  # type: ignore[no-any-return]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        normed = x if self.attn_norm is None else self.attn_norm(f, x)
        attended, _ = self.attn(f, self.env, normed, self.kind)
        del normed
        x = add(f, x, attended)
        return add(f, x, self.mlp(f, self.mlp_norm(f, x)))


class PredictionHead:
    """ModernBertPredictionHead, and dropout and classifier over one pooled or every position."""

    def __init__(self, a: Architecture, b: Build, *, pooled: bool) -> None:
        h = a.hidden_size
        self.pooling = str(a.get("classifier_pooling", "cls")) if pooled else None
        self.act = str(a.get("classifier_activation", "gelu"))
        self.dropout = float(a.get("classifier_dropout", 0.0))
        self.dense = b.linear("head.dense", h, h, bool(a.get("classifier_bias", False)))
        self.norm = LayerNorm(b, "head.norm", h, bias=bool(a.get("norm_bias", False)))
        self.classifier: Any = b.linear("classifier", h, labels_of(a), True)

    def __call__(self, f: Tape, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, labels] or [B, S, labels], and the vectors they are made of."""
        x = hidden
        one = (hidden.shape[0], hidden.shape[2])
        if self.pooling == "cls":
            x = select(f, hidden, one)
        elif self.pooling is not None:
            x = select(f, scale(f, hidden), one)
        x = self.norm(f, activate(f, self.dense(f, x), self.act))
        x = dropout(f, x, self.dropout)
        return self.classifier(f, x), x


class Model:
    """ModernBertModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    upcasts = True

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.a, self.env = a, env
        h = a.hidden_size
        bias = bool(a.get("norm_bias", False))
        rows = b.training.vocab_size or a.vocab_size
        self.embed = b.embedding("model.embeddings.tok_embeddings", rows, h, entry=True)
        self.embed_norm = LayerNorm(b, "model.embeddings.norm", h, bias=bias)
        self.dropout = float(a.get("embedding_dropout", 0.0))
        types = a.get("layer_types") or ["full_attention"] * a.num_hidden_layers
        self.types = sorted(set(types))
        kinds = [(kind, index == 0) for index, kind in enumerate(types)]
        self.layers = Stack(b, kinds, lambda build, kind, i: Layer(a, build, kind, i, env))
        self.norm = LayerNorm(b, "model.final_norm", h, bias=bias)
        self.width = h // int(a.get("num_attention_heads"))
        for _ in range(2 * len(self.types)):
            b.buffer(self.width // 2 * 4)
        self.head: Any
        if objective == "contrastive":
            self.head = None
        elif objective == "masked-lm":
            decoder = "decoder.bias" if a.get("decoder_bias", True) else None
            self.head = MaskedHead(
                a,
                b,
                self.embed,
                dense="head.dense",
                norm="head.norm",
                decoder="decoder",
                bias=decoder,
                act=str(a.get("classifier_activation", "gelu")),
                dense_bias=bool(a.get("classifier_bias", False)),
                norm_bias=bias,
            )
        else:
            self.head = PredictionHead(a, b, pooled=objective == "sequence-classification")

    def masks(self, f: Tape, batch: Batch, dtype: str) -> None:
        """create_bidirectional_mask and its sliding-window form, which no length below the window needs."""
        env, length = self.env, batch.length
        window = int(self.a.get("sliding_window") or int(self.a.get("local_attention", 128)) // 2)
        env.state["mask:full_attention"] = env.mask(f, batch.rows, length, dtype) if env.padding else None
        wide = env.padding or length >= window
        env.state["mask:sliding_attention"] = env.mask(f, batch.rows, length, dtype, window) if wide else None

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        x = dropout(f, self.embed_norm(f, self.embed(f, batch.ids)), self.dropout)
        self.masks(f, batch, x.dtype)
        for kind in self.types:
            env.state[f"rope:{kind}"] = rotary_tables(f, batch.length, self.width, x.dtype)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x
