"""SqueezeBERT: BERT whose projections are grouped convolutions over [B, H, S]; without activation checkpointing.

Source: transformers 5.24 models/squeezebert/modeling_squeezebert.py. Attention is composed, whatever the job asks for.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.encoder_heads import UnusedPooler
from memlint.estimate.families.layoutlm import head
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, dropout, scale
from memlint.estimate.ops.images import convolution
from memlint.estimate.ops.linear import matmul
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Convolution:
    """nn.Conv1d of width one: x [B, in, S] -> [B, out, S]. PEFT's ``all-linear`` leaves it alone."""

    def __init__(self, b: Build, name: str, inputs: int, outputs: int, groups: int) -> None:
        self.weight = b.parameter(f"{name}.weight", outputs, inputs // groups, 1)
        self.bias = b.parameter(f"{name}.bias", outputs)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, in, S] -> [B, out, S]."""
        return convolution(f, x, self.weight, self.bias, (x.shape[0], self.bias.shape[0], x.shape[2]))


class Output:
    """ConvDropoutLayerNorm."""

    def __init__(self, b: Build, name: str, inputs: int, outputs: int, groups: int, p: float) -> None:
        self.convolution = Convolution(b, f"{name}.conv1d", inputs, outputs, groups)
        self.norm, self.dropout = LayerNorm(b, f"{name}.layernorm", outputs), p

    def __call__(self, f: Tape, x: Tensor, residual: Tensor) -> Tensor:
        """x [B, in, S], residual [B, out, S] -> [B, out, S]."""
        x = self.convolution(f, x)
        x = dropout(f, x, self.dropout)
        x = add(f, x, residual)
        shape = x.shape
        x = x.view(shape[0], shape[2], shape[1])
        x = self.norm(f, x)
        return x.view(*shape)


class Layer:
    """SqueezeBertModule."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner, p = a.hidden_size, int(a.get("intermediate_size")), float(a.get("hidden_dropout_prob", 0.0))
        groups = {n: int(a.get(f"{n}_groups", 4)) for n in ("q", "k", "v", "post_attention", "intermediate", "output")}
        self.env, self.heads, self.act = env, int(a.get("num_attention_heads")), str(a.get("hidden_act", "gelu"))
        self.dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.query, self.key, self.value = (
            Convolution(b, f"{name}.attention.{n}", h, h, groups[n[0]]) for n in ("query", "key", "value")
        )
        self.post = Output(b, f"{name}.post_attention", h, h, groups["post_attention"], p)
        self.up = Convolution(b, f"{name}.intermediate.conv1d", h, inner, groups["intermediate"])
        self.down = Output(b, f"{name}.output", inner, h, groups["output"], p)

    def attend(self, f: Tape, x: Tensor) -> Tensor:
        """SqueezeBertSelfAttention: x [B, H, S] -> [B, H, S]; every product takes its operands as they lie."""
        b, h, s = x.shape
        q, k, v = self.query(f, x), self.key(f, x), self.value(f, x)
        width = h // self.heads
        shape = (b, self.heads, s, width)
        scores = scale(f, matmul(f, q.view(*shape), k.view(*shape), s))
        mask = self.env.state["mask"]
        if mask is not None:
            scores = add(f, scores, mask)
        weights = softmax(f, scores)
        weights = dropout(f, weights, self.dropout)
        context = matmul(f, weights, v.view(*shape), width)
        return copy(f, context).view(b, h, s)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, H, S] -> [B, H, S]."""
        attended = self.attend(f, x)
        first = self.post(f, attended, x)
        fed = self.fed(f, first)
        return self.down(f, fed, first)

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """ConvActivation."""
        x = self.up(f, x)
        return activate(f, x, self.act)


class Embeddings:
    """SqueezeBertEmbeddings."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, longest = int(a.get("embedding_size", a.hidden_size)), int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, h, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, h)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), h)
        self.norm, self.dropout = LayerNorm(b, f"{name}.LayerNorm", h), float(a.get("hidden_dropout_prob", 0.0))
        b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor, types: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        words = self.words(f, ids)
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        kinds = self.types(f, types)
        x = add(f, add(f, words, places), kinds)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del words, places, kinds
        return x


class Model:
    """SqueezeBertModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        if env.checkpointing.mode != "none":
            raise Unsupported(f"the class of `{a.model_type}` in transformers has no activation checkpointing")
        env.attention = "eager"
        self.env, root = env, "transformer"
        self.embeddings = Embeddings(a, b, f"{root}.embeddings")
        make = lambda build, kind, i: Layer(a, build, f"{root}.encoder.layers.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.pooler = UnusedPooler(a, b, f"{root}.pooler.dense") if objective != "sequence-classification" else None
        self.head = head(a, b, self.embeddings, root, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, shape = self.env, batch.ids.shape
        ones = batch.mask or f.new(shape, "fp32")
        types = f.new(shape, "int64")
        x = self.embeddings(f, batch.ids, types)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, x.dtype) if env.padding else None
        x = x.view(shape[0], x.shape[2], shape[1])
        x = self.layers(f, env, x)
        x = x.view(shape[0], shape[1], x.shape[1])
        env.release()
        if self.pooler is not None:
            self.pooler(f, x)
        del ones, types
        return x
