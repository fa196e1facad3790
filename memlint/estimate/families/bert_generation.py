"""BERT as a decoder with a language-model head: BertGenerationDecoder, also where its config does not say is_decoder.

Source: transformers 5.24 models/bert_generation/modeling_bert_generation.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import bert
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Layer(bert.Layer):
    """BertGenerationLayer."""

    causal = False

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """BertGenerationSelfAttention."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        mask = self.env.state["mask"]
        return attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=self.causal, style="raw")


class Model:
    """BertGenerationEncoder: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = True

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env, h, name = env, a.hidden_size, "bert.embeddings"
        longest = int(a.get("max_position_embeddings"))
        self.causal = bool(a.get("is_decoder", False))
        self.embed = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        b.buffer(longest * 8)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", h)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))

        def make(build: Build, kind: str, index: int) -> Layer:
            layer = Layer(a, build, f"bert.encoder.layer.{index}", env)
            layer.causal = self.causal
            return layer

        # No norm and no transform follow the last layer: its gradient is the head's own.
        last = a.num_hidden_layers - 1
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make, alone=(last,))

    def embedded(self, f: Tape, ids: Tensor) -> Tensor:
        """BertGenerationEmbeddings: ids [B, S] -> [B, S, H]."""
        words = self.embed(f, ids)
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        x = add(f, words, places)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del words, places
        return x

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        x = self.embedded(f, batch.ids)
        masked = self.causal or env.padding
        env.state["mask"] = env.mask(f, batch.rows, batch.length, x.dtype) if masked else None
        x = self.layers(f, env, x)
        env.release()
        return x
