"""MPNet: BERT's layers with one trained position bias that all of them share.

Source: transformers 5.24 models/mpnet/modeling_mpnet.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import bert
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, heads_of
from memlint.estimate.families.pre_norm_bert import composed
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, copy, dropout
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.linear import embedding
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

BUCKETS = 32
"""relative_attention_num_buckets."""


class Layer:
    """MPNetLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env = env
        self.heads = int(a.get("num_attention_heads"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.q, self.k, self.v, self.o = (b.linear(f"{name}.attention.attn.{n}", h, h, True) for n in "qkvo")
        self.attention_norm = LayerNorm(b, f"{name}.attention.LayerNorm", h)
        self.up = b.linear(f"{name}.intermediate.dense", h, inner, True)
        self.down = b.linear(f"{name}.output.dense", inner, h, True)
        self.norm = LayerNorm(b, f"{name}.output.LayerNorm", h)

    def attend(self, f: Tape, x: Tensor) -> Tensor:
        """MPNetSelfAttention."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.q(f, x), self.heads, width)
        k = heads_of(self.k(f, x), self.heads, width)
        v = heads_of(self.v(f, x), self.heads, width)
        state = self.env.state
        out, _ = composed(f, q, k, v, state["bias"], state["mask"], self.attention_dropout)
        result: Tensor = self.o(f, out)
        return result

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended = self.attend(f, x)
        attended = self.attention_norm(f, add(f, dropout(f, attended, self.dropout), x))
        fed = activate(f, self.up(f, attended), self.act)
        return self._out(f, fed, attended)

    def _out(self, f: Tape, x: Tensor, residual: Tensor) -> Tensor:
        x = self.down(f, x)
        x = dropout(f, x, self.dropout)
        return self.norm(f, add(f, x, residual))


class Embeddings(bert.Embeddings):
    """MPNetEmbeddings: no token types, positions counted from the ids."""

    def __init__(self, a: Architecture, b: Build, name: str, p: float) -> None:
        h, longest = a.hidden_size, int(a.get("max_position_embeddings"))
        self.per_row = True
        self.types = self.tasks = None
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        b.buffer(longest * 8)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", h)
        self.dropout = p


class Model:
    """MPNetModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        if env.checkpointing.mode != "none":
            raise Unsupported("MPNet's class in transformers has no activation checkpointing")
        env.attention = "eager"
        self.env, self.heads = env, int(a.get("num_attention_heads"))
        p = float(a.get("hidden_dropout_prob", 0.0))
        self.embeddings = Embeddings(a, b, "mpnet.embeddings", p)
        # The last layer's backward makes the first gradient of the bias.
        kinds = ["layer"] * (a.num_hidden_layers - 1) + ["last"]
        self.layers = Stack(b, kinds, lambda build, kind, i: Layer(a, build, f"mpnet.encoder.layer.{i}", env))
        rows = int(a.get("relative_attention_num_buckets", BUCKETS))
        self.table = b.parameter("mpnet.encoder.relative_attention_bias.weight", rows, self.heads)
        self.head = head(a, b, self.embeddings.words, p, objective)

    def bias(self, f: Tape, rows: int, length: int) -> Tensor:
        """compute_position_bias: [B, h, S, S], a copy for each row."""
        values = embedding(f, self.table, f.new((length, length), "int64"))
        shape = (rows, self.heads, length, length)
        return copy(f, expand(f, values.view(1, *shape[1:]), shape))

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, (rows, length) = self.env, batch.ids.shape
        x = self.embeddings(f, batch.ids)
        env.state["mask"] = env.mask(f, rows, length, x.dtype) if env.padding else None
        env.state["bias"] = self.bias(f, rows, length)
        x = self.layers(f, env, x)
        env.release()
        return x


def head(a: Architecture, b: Build, words: Any, p: float, objective: str) -> Any:
    """The head that transformers' class for the objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
        return PooledHead(a, b, act="tanh", before=p, after=p, **names)
    names = {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"}
    return MaskedHead(a, b, words, bias="lm_head.bias", act="gelu", **names)
