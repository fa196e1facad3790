"""DeBERTa-v2 and v3: attention with relative positions in both directions, a mask always present; eager only.

Source: transformers 5.24 models/deberta_v2/modeling_deberta_v2.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import refuse_reentrant
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, unused_pooler
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout, mul, scale, shift
from memlint.estimate.ops.gather import masked_fill
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import add_in_place, gather
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


def span_of(a: Architecture) -> int:
    """Half of the rows of the relative embedding: position_buckets, else the largest distance."""
    longest = int(a.get("max_relative_positions", -1))
    longest = int(a.get("max_position_embeddings")) if longest < 1 else longest
    buckets = int(a.get("position_buckets", -1))
    return buckets if buckets > 0 else longest


def directions(a: Architecture) -> tuple[str, ...]:
    """pos_att_type: ``c2p|p2c`` or a list."""
    value = a.get("pos_att_type") or ()
    return tuple(part.strip() for part in value.lower().split("|")) if isinstance(value, str) else tuple(value)


def _repeat_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def repeat(f: Tape, x: Tensor, shape: Shape) -> Tensor:
    """``x.repeat(n, 1, 1)``: always a copy, summed in backward."""
    recorded = f.needs(x)
    out = f.new(shape, x.dtype)
    return f.record(out, _repeat_backward, (x,), (), x.shape) if recorded else out


class Attention:
    """DisentangledSelfAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = int(a.get("attention_head_size", h // self.heads))
        inner = self.heads * self.width
        self.query_proj, self.key_proj, self.value_proj = (
            b.linear(f"{name}.{n}", h, inner, True) for n in ("query_proj", "key_proj", "value_proj")
        )
        self.relative = bool(a.get("relative_attention", False))
        self.ways = directions(a) if self.relative else ()
        self.span = span_of(a)
        self.pos_key, self.pos_query = self.key_proj, self.query_proj
        if self.relative and not a.get("share_att_key", False):
            if "c2p" in self.ways:
                self.pos_key = b.linear(f"{name}.pos_key_proj", h, inner, True)
            if "p2c" in self.ways:
                self.pos_query = b.linear(f"{name}.pos_query_proj", h, inner, True)
        self.shared = bool(a.get("share_att_key", False))
        self.dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.pos_dropout = float(a.get("hidden_dropout_prob", 0.0))

    def split(self, f: Tape, x: Tensor) -> Tensor:
        """transpose_for_scores: a contiguous copy, [B, h, S, D]."""
        return copy(f, x.view(x.shape[0], self.heads, x.shape[1], self.width))

    def positions(self, f: Tape, embeddings: Tensor, project: Any, rows: int) -> Tensor:
        """Projected relative embeddings, repeated for each row of the batch: [B, h, P, D]."""
        return repeat(f, self.split(f, project(f, embeddings)), (rows, self.heads, 2 * self.span, self.width))

    def bias(self, f: Tape, q: Tensor, k: Tensor, relative: Tensor, embeddings: Tensor) -> Tensor | None:
        """disentangled_attention_bias: content to position, position to content, or both."""
        rows, _, length, _ = q.shape
        embeddings = embeddings.view(1, *embeddings.shape)
        pos_query = pos_key = None
        if self.shared or ("p2c" in self.ways and "c2p" not in self.ways):
            pos_query = self.positions(f, embeddings, self.pos_query, rows)
        if self.shared or "c2p" in self.ways:
            pos_key = self.positions(f, embeddings, self.pos_key, rows)
        if pos_query is None and "p2c" in self.ways:
            pos_query = self.positions(f, embeddings, self.pos_query, rows)
        score: Tensor | None = None
        square = (rows, self.heads, length, length)
        held = []
        for way, content, position in (("c2p", q, pos_key), ("p2c", k, pos_query)):
            if way not in self.ways or position is None:
                continue
            buckets = f.like(relative)
            buckets = f.like(relative)
            attended = matmul(f, content, position, 2 * self.span)
            attended = gather(f, attended, buckets, square)
            score = shift(f, scale(f, attended)) if score is None else add_in_place(f, score, scale(f, attended))
            held.append((buckets, attended))
        del held
        return score

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, h*D]."""
        b, s, _ = x.shape
        state = env.state
        q, k, v = (self.split(f, p(f, x)) for p in (self.query_proj, self.key_proj, self.value_proj))
        scores = matmul(f, q, scale(f, k), s)
        extra = None
        if self.relative:
            embeddings = dropout(f, state["relative embeddings"], self.pos_dropout)
            extra = self.bias(f, q, k, state["relative"], embeddings)
        if extra is not None:
            scores = add(f, scores, extra)
        mask = f.new(state["mask"].shape, "bool")
        scores = masked_fill(f, scores, f.like(mask))
        probs = softmax(f, scores)
        probs = dropout(f, probs, self.dropout)
        context = matmul(f, probs, v, self.width)
        context = copy(f, context)
        del mask, extra
        return context.view(b, s, self.heads * self.width)


class Convolution:
    """ConvLayer of the larger v2 models, after the first layer."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, kernel = a.hidden_size, int(a.get("conv_kernel_size", 3))
        self.act = str(a.get("conv_act", "tanh"))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.weight = b.parameter(f"{name}.conv.weight", h, h // int(a.get("conv_groups", 1)), kernel)
        self.offset = b.parameter(f"{name}.conv.bias", h)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", h)

    def __call__(self, f: Tape, embedded: Tensor, residual: Tensor, mask: Tensor) -> Tensor:
        """embedded and residual [B, S, H] -> [B, S, H]."""
        from memlint.estimate.families.whisper import convolution

        rows, length, width = embedded.shape
        out = convolution(f, copy(f, embedded, (rows, width, length)), self.weight, self.offset, length)
        out = copy(f, out, (rows, length, width))
        out = masked_fill(f, out, f.new((rows, length, 1), "bool"))
        out = activate(f, dropout(f, out, self.dropout), self.act)
        out = self.norm(f, add(f, residual, out))
        return mul(f, out, cast(f, mask, out.dtype))


class Layer:
    """DebertaV2Layer; the first one is followed by the convolution where the model has one."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        name, h, width = f"deberta.encoder.layer.{index}", a.hidden_size, int(a.get("intermediate_size"))
        self.env = env
        self.act = str(a.get("hidden_act", "gelu"))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.attention = Attention(a, b, f"{name}.attention.self")
        self.out = b.linear(f"{name}.attention.output.dense", h, h, True)
        self.attention_norm = LayerNorm(b, f"{name}.attention.output.LayerNorm", h)
        self.up = b.linear(f"{name}.intermediate.dense", h, width, True)
        self.down = b.linear(f"{name}.output.dense", width, h, True)
        self.norm = LayerNorm(b, f"{name}.output.LayerNorm", h)
        self.conv = None
        if kind == "first" and int(a.get("conv_kernel_size", 0)) > 0:
            self.conv = Convolution(a, b, "deberta.encoder.conv")

    def joined(self, f: Tape, linear: Any, x: Tensor, residual: Tensor, norm: LayerNorm) -> Tensor:
        """Dropout, sum and norm."""
        x = linear(f, x)
        x = dropout(f, x, self.dropout)
        return norm(f, add(f, x, residual))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended = self.attention(f, self.env, x)
        attended = self.joined(f, self.out, attended, x, self.attention_norm)
        fed = activate(f, self.up(f, attended), self.act)
        out = self.joined(f, self.down, fed, attended, self.norm)
        if self.conv is not None:
            out = self.conv(f, x, out, self.env.state["token mask"])
        return out


class Model:
    """DebertaV2Model: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        env.attention = "eager"
        self.env = env
        h, name = a.hidden_size, "deberta.embeddings"
        longest = int(a.get("max_position_embeddings"))
        width = int(a.get("embedding_size", h))
        self.words = b.embedding(f"{name}.word_embeddings", b.training.vocab_size or a.vocab_size, width, entry=True)
        self.positions = None
        if a.get("position_biased_input", True):
            self.positions = b.embedding(f"{name}.position_embeddings", longest, width)
        types = int(a.get("type_vocab_size", 0))
        self.types = b.embedding(f"{name}.token_type_embeddings", types, width) if types > 0 else None
        self.project = b.linear(f"{name}.embed_proj", width, h) if width != h else None
        self.embed_norm = LayerNorm(b, f"{name}.LayerNorm", h)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        b.buffer(longest * 8)
        self.convolves = int(a.get("conv_kernel_size", 0)) > 0
        first = "first" if self.convolves else "rest"
        kinds = [first, *["rest"] * (a.num_hidden_layers - 2), "last"][: a.num_hidden_layers]
        self.layers = Stack(b, kinds, lambda build, kind, i: Layer(a, build, kind, i, env))
        self.a, self.numbers = a, range(a.num_hidden_layers)
        self.table = self.table_norm = None
        if a.get("relative_attention", False):
            self.table = b.parameter("deberta.encoder.rel_embeddings.weight", 2 * span_of(a), h)
            if "layer_norm" in str(a.get("norm_rel_ebd", "none")).lower():
                self.table_norm = LayerNorm(b, "deberta.encoder.LayerNorm", h)
        self.head = head(a, b, self.words, objective)

    def embed(self, f: Tape, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """DebertaV2Embeddings, multiplied by the mask even where nothing is padded."""
        rows, length = ids.shape
        embeds = self.words(f, ids)
        if self.positions is not None:
            position_embeds = self.positions(f, Tensor((1, length), "int64", None))
            x = add(f, embeds, position_embeds)
        else:
            position_embeds = f.like(embeds)
            x = embeds
        if self.types is not None:
            x = add(f, x, self.types(f, types))
        if self.project is not None:
            x = self.project(f, x)
        x = self.embed_norm(f, x)
        x = mul(f, x, cast(f, mask.view(rows, length, 1), x.dtype))
        return dropout(f, x, self.dropout)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env, state = self.env, self.env.state
        rows, length = batch.rows, batch.length
        mask = batch.mask or f.new((rows, length), "fp32")
        types = f.new((rows, length), "int64")
        embedded = self.embed(f, batch.ids, mask, types)
        state["mask"] = f.new((rows, 1, length, length), mask.dtype)
        if self.convolves:
            state["token mask"] = mask.view(rows, length, 1)
        state["relative"] = f.new((1, length, length), "int64")
        state["relative embeddings"] = self.table
        if self.table is not None and self.table_norm is not None:
            normed = state["relative embeddings"] = self.table_norm(f, self.table)
            refuse_reentrant(f, env, self.a, normed, "the normed table of relative positions", self.numbers)
            del normed
        del state
        self.layers.keeps = True
        x = self.layers(f, env, embedded)
        del embedded
        self.layers.forget(f)
        env.release()
        return x


def head(a: Architecture, b: Build, words: Any, objective: str) -> Any:
    """The head that transformers' class for the objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p = float(a.get("hidden_dropout_prob", 0.0))
    if objective == "token-classification":
        return TokenHead(a, b, p)
    if objective == "sequence-classification":
        return PooledHead(
            a,
            b,
            dense="pooler.dense",
            act=str(a.get("pooler_hidden_act", "gelu")),
            classifier="classifier",
            before=float(a.get("pooler_dropout", 0.0)),
            after=float(a.get("cls_dropout", p)),
        )
    at = "cls.predictions"
    names: dict[str, Any] = {
        "dense": f"{at}.transform.dense",
        "norm": f"{at}.transform.LayerNorm",
        "decoder": f"{at}.decoder",
    }
    return MaskedHead(a, b, words, bias=f"{at}.bias", act=str(a.get("hidden_act", "gelu")), **names)
