"""ConvBERT: half of each layer's heads attend, the other half convolve with kernels made of their tokens.

Source: transformers 5.24 models/convbert/modeling_convbert.py. Attention is composed, whatever the job asks for.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import bert
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, classifier_dropout
from memlint.estimate.families.pieces import LayerNorm, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cat, copy, dropout, mul, scale
from memlint.estimate.ops.images import convolution, unfold
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import add_in_place
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Embeddings:
    """ConvBertEmbeddings."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int) -> None:
        longest = int(a.get("max_position_embeddings"))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, width, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, width)
        self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), width)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", width)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        b.buffer(longest * 8)
        b.buffer(longest * 8)

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, E]."""
        words = self.words(f, ids)
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        types = self.types(f, Tensor(ids.shape, "int64", None))
        x = add(f, add(f, words, places), types)
        x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        del words, places, types
        return x


class Layer(bert.Layer):
    """ConvBertLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        if int(a.get("num_groups", 1)) != 1:
            raise Unsupported("no memory model of a `convbert` with grouped feed-forwards yet")
        self.env, self.act = env, str(a.get("hidden_act", "gelu"))
        self.heads = max(int(a.get("num_attention_heads")) // int(a.get("head_ratio", 2)), 1)
        self.width = h // self.heads // 2
        self.kernel = int(a.get("conv_kernel_size", 9))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.hidden_dropout = self.branch_dropout = float(a.get("hidden_dropout_prob", 0.0))
        at, half = f"{name}.attention.self", self.heads * self.width
        self.query, self.key, self.value = (b.linear(f"{at}.{n}", h, half, True) for n in ("query", "key", "value"))
        self.bias = b.parameter(f"{at}.key_conv_attn_layer.bias", half, 1)
        self.depthwise = b.parameter(f"{at}.key_conv_attn_layer.depthwise.weight", h, 1, self.kernel)
        self.pointwise = b.parameter(f"{at}.key_conv_attn_layer.pointwise.weight", half, h, 1)
        self.kernels = b.linear(f"{at}.conv_kernel_layer", half, self.heads * self.kernel, True)
        self.outputs = b.linear(f"{at}.conv_out_layer", h, half, True)
        self.out = b.linear(f"{name}.attention.output.dense", h, h, True)
        self.attention_norm = LayerNorm(b, f"{name}.attention.output.LayerNorm", h)
        self.up = b.linear(f"{name}.intermediate.dense", h, inner, True)
        self.down = b.linear(f"{name}.output.dense", inner, h, True)
        self.norm = LayerNorm(b, f"{name}.output.LayerNorm", h)

    def separable(self, f: Tape, x: Tensor) -> Tensor:
        """SeparableConv1D over x [B, H, S]."""
        b, _, s = x.shape
        x = convolution(f, x, self.depthwise, None, x.shape)
        x = convolution(f, x, self.pointwise, None, (b, self.heads * self.width, s))
        return add_in_place(f, x, self.bias)

    def convolved(self, f: Tape, x: Tensor, mixed: Tensor) -> Tensor:
        """The convolution's half: kernels of ``mixed`` [B, S, h*w] over projections of x -> [B * S, h * w]."""
        b, s, half = mixed.shape
        kernels = self.kernels(f, mixed)
        kernels = softmax(f, kernels.view(b * s * self.heads, self.kernel, 1))
        out = self.outputs(f, x)
        out = copy(f, out, (b, half, s))
        out = unfold(f, out, (b, half * self.kernel, s))
        out = copy(f, out, (b * s * self.heads, self.width, self.kernel))
        out = matmul(f, out, kernels, 1)
        return out.view(b * s, half)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """ConvBertSelfAttention."""
        b, s, h = x.shape
        key, value = self.key(f, x), self.value(f, x)
        spread = self.separable(f, Tensor((b, h, s), x.dtype, x.storage, x.node))
        query = self.query(f, x)
        q, k, v = (heads_of(t, self.heads, self.width) for t in (query, key, value))
        mixed = mul(f, spread.view(b, s, spread.shape[1]), query)
        convolved = self.convolved(f, x, mixed)
        scores = matmul(f, q, k, s, copy_a=b > 1, copy_b=b > 1)
        scores = scale(f, scores)
        mask = self.env.state["mask"]
        if mask is not None:
            scores = add(f, scores, mask)
        weights = softmax(f, scores)
        weights = dropout(f, weights, self.attention_dropout)
        context = copy(f, matmul(f, weights, v, self.width, copy_b=b > 1))
        whole = (b, s, 2 * self.heads, self.width)
        out = cat(f, context, convolved, shape=whole)
        return out.view(b, s, h), weights

    def attended(self, f: Tape, x: Tensor) -> Tensor:
        """ConvBertAttention."""
        out, _ = self.attend(f, x)
        return self.joined(f, self.out, out, x, self.attention_norm, self.branch_dropout)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.attended(f, x)
        fed = activate(f, self.up(f, x), self.act)
        return self.joined(f, self.down, fed, x, self.norm, self.hidden_dropout)


class Model:
    """ConvBertModel: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        env.attention = "eager"
        self.env, root, h = env, "convbert", a.hidden_size
        width = int(a.get("embedding_size", h))
        self.embeddings = Embeddings(a, b, f"{root}.embeddings", width)
        self.project: Any = b.linear(f"{root}.embeddings_project", width, h, True) if width != h else None
        make = lambda build, kind, i: Layer(a, build, f"{root}.encoder.layer.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        p = classifier_dropout(a)
        self.head: Any
        if objective == "contrastive":
            self.head = None
        elif objective == "token-classification":
            self.head = TokenHead(a, b, p)
        elif objective == "sequence-classification":
            names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
            self.head = PooledHead(a, b, act=str(a.get("hidden_act", "gelu")), before=p, after=p, **names)
        else:
            names = {"dense": "generator_predictions.dense", "norm": "generator_predictions.LayerNorm"}
            decoder = "generator_lm_head"
            words = self.embeddings.words
            self.head = MaskedHead(a, b, words, decoder=decoder, bias=f"{decoder}.bias", act="gelu", **names)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        ones = None if batch.mask is not None else f.new(batch.ids.shape, "fp32")
        x = self.embeddings(f, batch.ids)
        if self.project is not None:
            x = self.project(f, x)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, x.dtype) if env.padding else None
        x = self.layers(f, env, x)
        env.release()
        del ones
        return x
