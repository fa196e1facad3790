"""Baichuan 13B, of either edition: ALiBi in a mask that holds a matrix for every head.

Source: modeling_baichuan.py of baichuan-inc/Baichuan2-13B-Chat, code on the hub. The first edition differs in its head,
and always writes attention out; the second takes scaled_dot_product_attention where xformers is installed, though it
calls nothing of it. Neither has flash attention.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.mlp import Mlp
from memlint.estimate.families.shapes import shape_of
from memlint.estimate.kernels import XFORMERS
from memlint.estimate.ops.attention import sdpa, softmax
from memlint.estimate.ops.basic import add, cast, copy, mean_last, mul, rsqrt, scale, shift, square
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import select
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.models.traits import NORMED_HEAD
from memlint.units import DTYPE_BYTES


def _maximum_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # where(self == other, grad / 2, grad).masked_fill_(self < other, 0): one C++ expression (derivatives.yaml).
    equal = f.new(grad.shape, "bool")
    half = f.like(grad)
    out = f.like(grad)
    less = f.new(grad.shape, "bool")
    del equal, half, less
    return (out,)


def maximum(f: Tape, x: Tensor) -> Tensor:
    """``torch.max(x, number)``: saves x."""
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    out = f.like(x)
    return f.record(out, _maximum_backward, (x,), saved) if recorded else out


class Norm:
    """RMSNorm: Llama's, but what is multiplied is the input itself, not its copy in fp32."""

    __slots__ = ("weight",)

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight = b.parameter(f"{name}.weight", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        variance = mean_last(f, square(f, cast(f, x, "fp32")))
        x = mul(f, x, rsqrt(f, shift(f, variance)))
        if self.weight.dtype != "fp32":
            x = cast(f, x, self.weight.dtype)
        return mul(f, self.weight, x)


class Attention:
    """BaichuanAttention: queries, keys and values are parts of one product."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.second = NORMED_HEAD in a.traits
        self.pack = b.linear(f"{name}.W_pack", h, 3 * h)
        self.out = b.linear(f"{name}.o_proj", h, h)

    def __call__(self, f: Tape, env: Env, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, S, H], mask [B, h, S, S] -> [B, S, H]."""
        b, s, h = x.shape
        packed = self.pack(f, x)
        part = (b, self.heads, s, self.width)
        q, k, v = select(f, packed, part), select(f, packed, part), select(f, packed, part)
        if self.second and env.kernel(XFORMERS) and not env.evaluating:
            context = sdpa(f, q, k, v, mask, capability=env.capability)
        else:
            loose = b > 1
            weights = scale(f, matmul(f, q, k, s, copy_a=loose, copy_b=loose))
            weights = add(f, weights, mask)
            weights = maximum(f, weights)
            weights = softmax(f, weights)
            context = matmul(f, weights, v, self.width, copy_b=loose)
            context = copy(f, context).view(b, s, h)
        result: Tensor = self.out(f, context)
        return result


class Block:
    """BaichuanLayer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"model.layers.{index}"
        self.env = env
        self.attention = Attention(a, b, f"{name}.self_attn")
        self.mlp = Mlp(a, b, f"{name}.mlp", shape_of(a))
        self.before = Norm(b, f"{name}.input_layernorm", a.hidden_size)
        self.after = Norm(b, f"{name}.post_attention_layernorm", a.hidden_size)

    def __call__(self, f: Tape, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.before(f, x)
        x = self.attention(f, self.env, x, mask)
        x = add(f, residual, x)
        residual = x
        x = self.after(f, x)
        x = self.mlp(f, self.env, x)
        return add(f, residual, x)


class Model:
    """BaichuanModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        env.attention = "eager"
        self.env = env
        self.heads = int(a.get("num_attention_heads"))
        self.embed = b.embedding("model.embed_tokens", b.training.vocab_size or a.vocab_size, a.hidden_size, entry=True)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, index: Block(a, build, index, env))
        self.norm = Norm(b, "model.norm", a.hidden_size)
        # `self.alibi_mask` [h, S, S], which the first forward of a length makes and the next ones find.
        length = -(-b.training.sequence_length // b.job.parallelism.context)
        b.buffer(self.heads * length * length * DTYPE_BYTES[b.training.precision.weights])

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state, whose variables hold what the masks were made of."""
        x = self.embed(f, batch.ids)
        rows, length = batch.rows, batch.length
        alibi = Tensor((1, self.heads, length, length), x.dtype, None)
        kept, inverted = _expanded(f, rows, length, x.dtype)
        mask = add(f, inverted, alibi)
        x = self.layers(f, self.env, x, mask)
        x = self.norm(f, x)
        del kept
        return x


def _expanded(f: Tape, rows: int, length: int, dtype: str) -> tuple[Tensor, Tensor]:
    """``expanded_mask`` and ``inverted_mask`` [B, 1, S, S] of a padding mask, which every collator gives."""
    shape = (rows, length, length)
    own = f.new((rows, length), dtype)
    product = f.new(shape, dtype)
    greater = f.new(shape, "bool")
    del product
    lower = f.new(shape, "bool")
    del greater
    difference = f.new(shape, dtype)
    equal = f.new(shape, "bool")
    del difference
    expanded = f.new(shape, "bool")
    del lower, equal, own
    expanded = f.new((rows, 1, length, length), dtype)
    inverted = f.like(expanded)
    hidden = f.new(inverted.shape, "bool")
    inverted = f.like(inverted)
    del hidden
    return expanded, inverted
