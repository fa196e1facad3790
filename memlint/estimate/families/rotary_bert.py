"""BERT-like encoders with rotary positions and norms after the branches: nomic_bert, gte, jina_embeddings_v3.

Sources: transformers 5.24 models/{nomic_bert,gte,jina_embeddings_v3}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, classifier_dropout, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.rotary import rotary_tables, rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout, mul
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

ROOTS = {"nomic_bert": "nomic_bert", "gte": "gte", "jina_embeddings_v3": "roberta"}
"""base_model_prefix."""

SHAPE = Shape()


class Embeddings:
    """Words and token types, normed and dropped out."""

    def __init__(self, a: Architecture, b: Build, name: str, p: float) -> None:
        h = a.hidden_size
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        kinds = int(a.get("type_vocab_size", 0))
        self.types = b.embedding(f"{name}.token_type_embeddings", kinds, h) if kinds else None
        self.norm = LayerNorm(b, f"{name}.LayerNorm", h)
        self.dropout = p
        if a.model_type != "gte":
            longest = int(a.get("max_position_embeddings"))
            b.buffer(longest * 8)
            b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        x = self.words(f, ids)
        type_ids = types = None
        if self.types is not None:
            type_ids = f.new(ids.shape, "int64")
            types = self.types(f, type_ids)
            x = add(f, x, types)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del type_ids, types
        return x


class FeedForward:
    """Two projections, or three with a gate."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, width = a.hidden_size, int(a.get("intermediate_size"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.gated = a.model_type != "jina_embeddings_v3"
        own = a.model_type == "gte"
        self.dropout = float(a.get("hidden_dropout_prob", 0.0)) if own else 0.0
        if self.gated:
            self.gate = b.linear(f"{name}.gate_proj", h, width)
            self.up = b.linear(f"{name}.up_proj", h, width)
            self.down = b.linear(f"{name}.down_proj", width, h, own)
        else:
            self.up = b.linear(f"{name}.fc1", h, width, True)
            self.down = b.linear(f"{name}.fc2", width, h, True)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        if self.gated:
            x = mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x))
            x = dropout(f, x, self.dropout)
        else:
            x = self.up(f, x)
            x = activate(f, x, self.act)
        result: Tensor = self.down(f, x)
        return result


class Layer:
    """NomicBertLayer and its kin."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h = a.hidden_size
        self.env, self.heads = env, int(a.get("num_attention_heads"))
        self.width = int(a.get("head_dim") or h // self.heads)
        inner, bias = self.heads * self.width, a.model_type != "nomic_bert"
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        at = f"{name}.self_attn"
        self.q, self.k, self.v = (b.linear(f"{at}.{n}_proj", h, inner, bias) for n in "qkv")
        self.o = b.linear(f"{at}.o_proj", inner, h, bias)
        self.attention_norm = LayerNorm(b, f"{name}.post_attention_layernorm", h)
        self.mlp = FeedForward(a, b, f"{name}.mlp")
        self.norm = LayerNorm(b, f"{name}.post_mlp_layernorm", h)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """NomicBertAttention."""
        q = heads_of(self.q(f, x), self.heads, self.width)
        k = heads_of(self.k(f, x), self.heads, self.width)
        v = heads_of(self.v(f, x), self.heads, self.width)
        q, k = rotate_both(f, q, k, self.env.state["rope"], SHAPE)
        mask = self.env.state["mask"]
        out, weights = attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False, style="raw")
        out = self.o(f, out)
        return out, weights

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        attended, _ = self.attend(f, x)
        x = add(f, residual, dropout(f, attended, self.dropout))
        x = self.attention_norm(f, x)
        residual = x
        x = self.mlp(f, x)
        x = add(f, residual, dropout(f, x, self.dropout))
        return self.norm(f, x)


class Model:
    """ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env = env
        root = ROOTS[a.model_type]
        self.embeddings = Embeddings(a, b, f"{root}.embeddings", float(a.get("hidden_dropout_prob", 0.0)))
        make = lambda build, kind, i: Layer(a, build, f"{root}.layers.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.rotary = int(a.get("head_dim") or a.hidden_size // int(a.get("num_attention_heads")))
        b.buffer(self.rotary // 2 * 4)
        b.buffer(self.rotary // 2 * 4)
        self.head = head(a, b, self.embeddings.words, root, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, (rows, length) = self.env, batch.ids.shape
        positions = f.new((1, length), "int64")
        embedded = self.embeddings(f, batch.ids)
        env.state["mask"] = env.mask(f, rows, length, embedded.dtype) if env.padding else None
        env.state["rope"] = rotary_tables(f, length, self.rotary, embedded.dtype)
        x = self.layers(f, env, embedded)
        env.release()
        del positions
        return x


def head(a: Architecture, b: Build, words: Any, root: str, objective: str) -> Any:
    """The head that transformers' class for this type and objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p = classifier_dropout(a)
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        if root != "roberta":
            return PooledHead(a, b, dense=f"{root}.pooler.dense", act="tanh", classifier="classifier", after=p)
        names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
        return PooledHead(a, b, act="tanh", before=p, after=p, **names)
    if root == "nomic_bert":
        at = "cls.predictions"
        names = {"dense": f"{at}.transform.dense", "norm": f"{at}.transform.layer_norm", "decoder": f"{at}.decoder"}
        return MaskedHead(a, b, words, bias=f"{at}.bias", act=str(a.get("hidden_act", "silu")), **names)
    names = {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"}
    return MaskedHead(a, b, words, bias="lm_head.bias", act="gelu", **names)
