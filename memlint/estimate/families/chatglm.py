"""ChatGLM 2 and 3, and GLM-4 as it was first published: code on the hub.

Source: modeling_chatglm.py of THUDM/chatglm3-6b, whose tensors are [tokens, rows, features], and of
THUDM/glm-4-9b-chat, which has the rows first. Both always call scaled_dot_product_attention, over keys and values
repeated for every head.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import required
from memlint.estimate.heads import CausalHead
from memlint.estimate.ops.attention import sdpa
from memlint.estimate.ops.basic import (
    activation,
    add,
    cast,
    cat,
    copy,
    expand_copy,
    mean_last,
    mul,
    rsqrt,
    shift,
    slice_of,
    square,
)
from memlint.estimate.ops.gather import subtract
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.ops.views import select, split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.models.traits import TOKENS_FIRST


class Norm:
    """RMSNorm: the input times a number for each token, in fp32, times the weight, and back."""

    __slots__ = ("weight",)

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight = b.parameter(f"{name}.weight", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        dtype = x.dtype
        variance = mean_last(f, square(f, cast(f, x, "fp32")))
        x = mul(f, x, rsqrt(f, shift(f, variance)))
        return cast(f, mul(f, self.weight, x), dtype)


def rotated(f: Tape, x: Tensor, table: Tensor) -> Tensor:
    """apply_rotary_pos_emb: the first half of each head, neighbours together; table [..., D / 4, 2]."""
    half, table = (*x.shape[:-1], x.shape[-1] // 2), table.view(1, 1, 1, x.shape[-1] // 4)
    turning, passing = slice_of(f, x, half), slice_of(f, x, half)
    pairs = (*x.shape[:-1], x.shape[-1] // 4)
    first, second = _turn(f, turning, pairs, table, subtract), _turn(f, turning, pairs, table, add)
    turned = cat(f, first, second, shape=half)
    del first, second
    return cat(f, turned, passing, shape=x.shape)


def _turn(f: Tape, x: Tensor, pairs: tuple[int, ...], table: Tensor, join: object) -> Tensor:
    one = mul(f, select(f, x, pairs), table)
    other = mul(f, select(f, x, pairs), table)
    joined: Tensor = join(f, one, other)  # type: ignore[operator]
    return joined


class Attention:
    """SelfAttention with CoreAttention inside."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = required(a, "num_attention_heads")
        self.groups = int(a.get("num_key_value_heads") or self.heads)
        self.width = int(a.get("head_dim") or h // self.heads)
        inner, grouped = self.heads * self.width, self.groups * self.width
        biased = bool(a.get("add_bias_linear", False))
        self.qkv = b.linear(f"{name}.query_key_value", h, inner + 2 * grouped, biased or bool(a.get("attention_bias")))
        self.dense = b.linear(f"{name}.dense", inner, h, biased)
        self.tokens_first = TOKENS_FIRST in a.traits

    def __call__(self, f: Tape, env: Env, x: Tensor, table: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, S, H] or [S, B, H] -> the same shape."""
        outer = x.shape[:-1]
        rows, length = outer[::-1] if self.tokens_first else outer
        mixed = self.qkv(f, x)
        query, key, value = split(f, mixed, *((*outer, n, self.width) for n in (self.heads, self.groups, self.groups)))
        query = rotated(f, query, table)
        key = rotated(f, key, table)
        whole = (*outer, self.heads, self.width)
        key = _repeated(f, key, whole)
        value = _repeated(f, value, whole)
        seen = (rows, self.heads, length, self.width)
        shown = None if mask is None else f.new(mask.shape, "bool")
        query, key, value = query.view(*seen), key.view(*seen), value.view(*seen)
        # With the rows first, queries lie as [B, h, S, D] after their turn, and flash lays its output out likewise.
        dense = not self.tokens_first
        context = sdpa(f, query, key, value, shown, causal=mask is None, capability=env.capability, dense=dense)
        context = context.view(*outer, self.heads * self.width)
        if self.tokens_first and rows > 1 and (mask is not None or context.dtype == "fp32"):
            context = copy(f, context)  # the memory-efficient kernel's output has the rows first
        result: Tensor = self.dense(f, context)
        return result


def _repeated(f: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if x.shape == shape:
        return copy(f, x)
    # expand_copy takes [B, heads, ...], where a single head stays a view; here it is copied all the same.
    turned = x.view(x.shape[0] * x.shape[1], x.shape[2], x.shape[3])
    copied = expand_copy(f, turned, (turned.shape[0], shape[2], shape[3]))
    if turned.shape[1] == 1:
        copied = copy(f, copied)
    return copied.view(*shape)


class Block:
    """GLMBlock, whose variables hold what its parts gave until it returns."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"transformer.encoder.layers.{index}"
        h, inner = a.hidden_size, required(a, "intermediate_size")
        biased = bool(a.get("add_bias_linear", False))
        self.env, self.inner = env, inner
        self.before = Norm(b, f"{name}.input_layernorm", h)
        self.attention = Attention(a, b, f"{name}.self_attention")
        self.after = Norm(b, f"{name}.post_attention_layernorm", h)
        self.up = b.linear(f"{name}.mlp.dense_h_to_4h", h, 2 * inner, biased)
        self.down = b.linear(f"{name}.mlp.dense_4h_to_h", inner, h, biased)

    def mlp(self, f: Tape, x: Tensor) -> Tensor:
        """silu of one half of the product, times the other."""
        both = self.up(f, x)
        half = (*x.shape[:-1], self.inner)
        gate, value = split(f, both, half, half)
        del both
        product = mul(f, activation(f, gate, "silu"), value)
        del gate, value
        result: Tensor = self.down(f, product)
        return result

    def __call__(self, f: Tape, x: Tensor, table: Tensor, *masks: Tensor) -> Tensor:
        """x [B, S, H] or [S, B, H] -> the same shape."""
        normed = self.before(f, x)
        attended = self.attention(f, self.env, normed, table, masks[0] if masks else None)
        summed = add(f, x, attended)
        normed = self.after(f, summed)
        fed = self.mlp(f, normed)
        out = add(f, summed, fed)
        del attended
        return out


class Head(CausalHead):
    """The logits in fp32 for the loss, and in the model's dtype again for the output."""

    def __init__(self, a: Architecture, b: Build, embed: object, *, name: str = "", bias: bool = False) -> None:
        super().__init__(a, b, embed, name=name, bias=bias)
        self.early_fp32, self.shifts, self.upcasts = False, True, False
        self.tokens_first = TOKENS_FIRST in a.traits

    def logits(self, f: Tape, hidden: Tensor) -> Tensor | None:
        """Logits [B, S, V] of hidden [B, S, H] or [S, B, H]; None when the loss never makes them whole."""
        logits = super().logits(f, hidden)
        if logits is None:
            return None
        f.component = LOGITS
        if self.tokens_first:
            length, rows, width = logits.shape
            turned = (rows, length, width)
            logits = copy(f, logits, turned) if rows > 1 else logits.view(*turned)
        logits = cast(f, logits, "fp32")
        f.component = TEMPORARIES
        return logits

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """The scalar loss, of the logits shifted by one."""
        if logits is None or hidden is None:
            return super().loss(f, logits, hidden, batch)
        assert batch.labels is not None
        f.component = LOGITS
        rows, length, width = logits.shape
        shifted = slice_of(f, logits, (rows, length - 1, width))
        if rows > 1:
            shifted = copy(f, shifted)
        targets = batch.labels if rows == 1 else f.new((rows, length - 1), "int64", TEMPORARIES)
        loss = cross_entropy(f, shifted, targets)
        returned = cast(f, logits.detach(), hidden.dtype)
        del returned
        return cast(f, loss, hidden.dtype)


class Model:
    """ChatGLMModel: ids [B, S] -> hidden states [B, S, H] or [S, B, H]."""

    head_class = Head
    head_name = "transformer.output_layer"

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h, heads = a.hidden_size, required(a, "num_attention_heads")
        self.tokens_first = TOKENS_FIRST in a.traits
        self.positions = int(a.get("max_position_embeddings") or 0)
        self.pairs = int(a.get("head_dim") or h // heads) // 4
        rows = b.training.vocab_size or a.vocab_size
        self.embed = b.embedding("transformer.embedding.word_embeddings", rows, h, entry=True)
        b.buffer(self.pairs * 4)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, index: Block(a, build, index, env))
        self.norm = Norm(b, "transformer.encoder.final_layernorm", h)
        self.dtype = b.training.precision.weights

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        x = self._embedded(f, batch)
        masks = (_mask(f, batch.rows, batch.length),) if self.env.padding else ()
        table = self._table(f)
        x = self.layers(f, self.env, x, table, *masks)
        x = self.norm(f, x)
        del table
        return x

    def _embedded(self, f: Tape, batch: Batch) -> Tensor:
        words: Tensor = self.embed(f, batch.ids)
        if not self.tokens_first:
            return words
        rows, length, width = words.shape
        return copy(f, words, (length, rows, width)) if rows > 1 else words.view(length, rows, width)

    def _table(self, f: Tape) -> Tensor:
        """Cosines and sines [P, D / 4, 2] of every position."""
        angles = f.new((self.positions, self.pairs), "fp32")
        cos, sin = f.like(angles), f.like(angles)
        both = f.new((self.positions, self.pairs, 2), "fp32")
        del cos, sin
        made = both if self.dtype == "fp32" else f.like(both, self.dtype)
        del angles, both
        return made


def _mask(f: Tape, rows: int, length: int) -> Tensor:
    """get_masks: made in fp32, hidden positions are true."""
    shape = (rows, length, length)
    ones = f.new(shape, "fp32")
    ones = f.like(ones)
    hidden = f.new(shape, "bool")
    del ones
    return hidden.view(rows, 1, length, length)
