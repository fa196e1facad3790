"""ModernBERT as a decoder (Ettin): its layers under causal masks, with its prediction head before the output layer.

Source: transformers 5.24 models/modernbert_decoder/modeling_modernbert_decoder.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported, kinds_of_layers
from memlint.estimate.families import modernbert
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.rotary import rotary_tables
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, dropout
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Attention(modernbert.Attention):
    """ModernBertDecoderAttention: separate projections."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, bias = a.hidden_size, bool(a.get("attention_bias", False))
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.q, self.k, self.v = (b.linear(f"{name}.{n}_proj", h, h, bias) for n in "qkv")
        self.out = b.linear(f"{name}.Wo", h, h, bias)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        q = heads_of(self.q(f, x), self.heads, self.width)
        k = heads_of(self.k(f, x), self.heads, self.width)
        v = heads_of(self.v(f, x), self.heads, self.width)
        q, k = self.turned(f, q, k, env.state[f"rope:{kind}"])
        out, weights = attend(f, env, q, k, v, env.state[f"mask:{kind}"], self.dropout)
        out = dropout(f, self.out(f, out), self.dropout)
        return out, weights

    def turned(self, f: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """apply_rotary_pos_emb."""
        first, second = self.rotate(f, q, *tables), self.rotate(f, k, *tables)
        return cast(f, first, q.dtype), cast(f, second, q.dtype)


class Layer(modernbert.Layer):
    """ModernBertDecoderLayer."""

    attention = Attention

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        if self.attn_norm is not None:
            x = self.attn_norm(f, x)
        attended, weights = self.attn(f, self.env, x, self.kind)
        x = add(f, residual, attended)
        residual = x
        x = self.mlp_norm(f, x)
        fed = self.mlp(f, x)
        out = add(f, residual, fed)
        del weights, attended
        return out


class Model:
    """ModernBertDecoderModel and the prediction head: ids [B, S] -> what the output layer takes [B, S, H]."""

    head_name = "decoder"

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if b.training.objective in ("sequence-classification", "token-classification", "reward"):
            raise Unsupported("no memory model for a classifier on `modernbert-decoder` yet")
        self.a, self.env, h = a, env, a.hidden_size
        bias, rows = bool(a.get("norm_bias", False)), b.training.vocab_size or a.vocab_size
        self.head_bias = bool(a.get("decoder_bias", True))
        self.embed = b.embedding("model.embeddings.tok_embeddings", rows, h, entry=True)
        self.embed_norm = LayerNorm(b, "model.embeddings.norm", h, bias=bias)
        self.dropout = float(a.get("embedding_dropout", 0.0))
        types = kinds_of_layers(a, "layer_types")
        self.types = sorted(set(types))
        kinds = [(kind, index == 0) for index, kind in enumerate(types)]
        self.layers = Stack(b, kinds, lambda build, kind, i: Layer(a, build, kind, i, env))
        self.norm = LayerNorm(b, "model.final_norm", h, bias=bias)
        self.width = h // int(a.get("num_attention_heads"))
        for _ in range(2 * len(self.types)):
            b.buffer(self.width // 2 * 4)
        self.act = str(a.get("classifier_activation", "gelu"))
        self.dense = b.linear("lm_head.dense", h, h, bool(a.get("classifier_bias", False)))
        self.head_norm = LayerNorm(b, "lm_head.norm", h, bias=bias)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to what the output layer takes."""
        x = dropout(f, self.embed_norm(f, self.embed(f, batch.ids)), self.dropout)
        x = self.body(f, x)
        # The model's forward holds its last hidden states, the caller here holds the head's output in their place.
        return self.head_norm(f, activate(f, self.dense(f, x), self.act))

    def body(self, f: Tape, x: Tensor) -> Tensor:
        """Layers and final norm."""
        env, (rows, length) = self.env, x.shape[:2]
        window = self.a.get("sliding_window")
        env.state["mask:full_attention"] = env.mask(f, rows, length, x.dtype)
        env.state["mask:sliding_attention"] = env.mask(f, rows, length, x.dtype, window)
        for kind in self.types:
            env.state[f"rope:{kind}"] = rotary_tables(f, length, self.width, x.dtype, rows)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        shared = dict(env.state)
        env.release()
        if env.checkpointing.mode != "none" and env.checkpointing.reentrant:
            # CheckpointFunction's ctx.run_function holds masks and tables as long as the loss its graph; one block that
            # stands for those of its kind would let them go with itself.
            env.state["shared"] = shared
        return x
