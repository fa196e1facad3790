"""ALBERT: one layer (or a few) that every place of the stack runs anew, over narrow embeddings.

Source: transformers 5.24 models/albert/modeling_albert.py. The class offers no activation checkpointing.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.bert import Embeddings
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Layer:
    """AlbertLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env, self.heads, self.act = env, int(a.get("num_attention_heads")), str(a.get("hidden_act", "gelu_new"))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.norm = LayerNorm(b, f"{name}.full_layer_layer_norm", h)
        at = f"{name}.attention"
        self.query, self.key, self.value, self.out = (
            b.linear(f"{at}.{n}", h, h, True) for n in ("query", "key", "value", "dense")
        )
        self.attention_norm = LayerNorm(b, f"{at}.LayerNorm", h)
        self.up, self.down = b.linear(f"{name}.ffn", h, inner, True), b.linear(f"{name}.ffn_output", inner, h, True)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """AlbertAttention, and under eager its weights, which the layer's frame holds."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(project(f, x), self.heads, width) for project in (self.query, self.key, self.value))
        mask, p = self.env.state["mask"], self.attention_dropout
        out, weights = attend(f, self.env, q, k, v, mask, p, causal=False, style="raw")
        out = self.out(f, out)
        out = dropout(f, out, self.dropout)
        return self.attention_norm(f, add(f, x, out)), weights

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended, weights = self.attend(f, x)
        fed = self.up(f, attended)
        fed = activate(f, fed, self.act)
        fed = self.down(f, fed)
        out = self.norm(f, add(f, fed, attended))
        del weights, fed
        return out


class Model:
    """AlbertModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env = env
        self.embeddings = Embeddings(a, b, "albert.embeddings", float(a.get("hidden_dropout_prob", 0.0)))
        width = self.embeddings.words.weight.shape[1]
        self.project = b.linear("albert.encoder.embedding_hidden_mapping_in", width, a.hidden_size, True)
        groups, inner = int(a.get("num_hidden_groups", 1)), int(a.get("inner_group_num", 1))
        at = "albert.encoder.albert_layer_groups"
        made = [[Layer(a, b, f"{at}.{g}.albert_layers.{i}", env) for i in range(inner)] for g in range(groups)]
        layers = a.num_hidden_layers
        places = [int(i / (layers / groups)) for i in range(layers)]

        def run(group: int) -> Any:
            def call(f: Tape, x: Tensor) -> Tensor:
                for layer in made[group]:
                    x = layer(f, x)
                return x

            return call

        # In backward the last two places of a group make the gradients to which the others add.
        ends = {place for g in range(groups) for place in [i for i in range(layers) if places[i] == g][-2:]}
        if b.sharding.fully is not None:
            # FSDP2 gathers the one layer's weights once for all its places, so that no place is like the next.
            ends = set(range(layers))
        kinds = [(group, index if index in ends else -1) for index, group in enumerate(places)]
        self.layers = Stack(b, kinds, lambda build, kind, index: run(kind[0]))
        self.head = head(a, b, self.embeddings, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        x = self.embeddings(f, batch.ids)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, x.dtype) if env.padding else None
        x = self.project(f, x)
        x = self.layers(f, env, x)
        env.release()
        return x


def head(a: Architecture, b: Build, embeddings: Embeddings, objective: str) -> Any:
    """AlbertForTokenClassification, AlbertForSequenceClassification or AlbertForMaskedLM."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p = float(a.get("classifier_dropout_prob", a.get("hidden_dropout_prob", 0.0)))
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        return PooledHead(a, b, dense="albert.pooler", act="tanh", classifier="classifier", after=p)
    names: dict[str, Any] = {
        "dense": "predictions.dense",
        "norm": "predictions.LayerNorm",
        "decoder": "predictions.decoder",
    }
    act = str(a.get("hidden_act", "gelu_new"))
    return MaskedHead(a, b, embeddings.words, bias="predictions.bias", act=act, **names)
