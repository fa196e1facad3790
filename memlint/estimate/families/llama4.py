"""llama4_text: every expert computes every token, weighted by its router score (zero where it was not chosen).

Source: transformers 5.24 models/llama4/modeling_llama4.py. Activations of a sparse layer therefore grow with tokens
times all experts, not with top-k. Rotary positions are complex products in fp32; some layers have none.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import GRADIENTS
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.body import Body
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama import Attention
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import eager_attention
from memlint.estimate.ops.basic import add, cast, copy, expand_copy, mul, saving_output
from memlint.estimate.ops.gather import sum_groups, topk
from memlint.estimate.ops.linear import Weight, cast_weight, to_autocast
from memlint.estimate.ops.norm import rms_norm
from memlint.estimate.ops.views import split
from memlint.estimate.packed_experts import PackedExperts, expert_parameter, opened
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(mlp_bias=False)


class TextAttention(Attention):
    """Grouped-query attention; q and k are normalised after rotation, or q is scaled by position where nothing
    rotates.
    """

    def __init__(self, a: Architecture, b: Build, name: str, rotates: bool) -> None:
        super().__init__(a, b, name, SHAPE)
        self.rotates = rotates
        self.normed = rotates and bool(a.get("use_qk_norm", True))
        self.tuned = not rotates and bool(a.get("attn_temperature_tuning", True))

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        q = self.q(f, x).view(b, s, self.heads, self.dim)
        k = self.k(f, x).view(b, s, self.kv, self.dim)
        v = self.v(f, x).view(b, self.kv, s, self.dim)
        if self.rotates:
            q, k = self.rotated(f, q, k, env.state["rope"])
        if self.normed:
            q = rms_norm(f, q, None)
            k = rms_norm(f, k, None)
        if self.tuned:
            scales = f.new((1, s, 1, 1), "fp32")
            q = cast(f, mul(f, q, scales), q.dtype)
        q, k = q.view(b, self.heads, s, self.dim), k.view(b, self.kv, s, self.dim)
        mask = env.state["masks"][kind]
        if env.attention == "eager":
            out, weights = eager_attention(f, q, k, v, mask, self.dropout, fp32_softmax=False)
            env.name(f, weights)
        else:
            out = env.attend(f, q, k, v, mask, self.dropout)
        result: Tensor = self.o(f, out)
        return result

    def rotated(self, f: Tape, q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """apply_rotary_emb: a complex product of the fp32 values, cast back."""
        first, second = cast(f, q, "fp32"), cast(f, k, "fp32")
        first, second = turned(f, first, angles), turned(f, second, angles)
        return cast(f, first, q.dtype), cast(f, second, k.dtype)


def _like_grad(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def turned(f: Tape, x: Tensor, angles: Tensor) -> Tensor:
    """``view_as_complex(x) * angles`` seen as real again: x [B, S, h, D] fp32; saves the angles."""
    recorded = f.needs(x)
    saved = f.save(angles) if recorded else ()
    out = f.like(x)
    return f.record(out, _like_grad, (x,), saved) if recorded else out


def _batched_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # bmm_backward: the weight's gradient is made first.
    grad_weight = f.new(node.shapes[1][0], grad.dtype, GRADIENTS) if node.edges[1] is not None else None
    grad_x = f.new(node.shapes[0][0], grad.dtype) if node.edges[0] is not None else None
    return grad_x, grad_weight


def _one_by_one_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    dense = f.new(node.meta, grad.dtype)
    grad_x = f.new(node.shapes[0][0], grad.dtype)
    del dense
    return (grad_x,)


def batched(f: Tape, x: Tensor, weight: Weight | PackedExperts, *, apart: bool = False) -> Tensor:
    """``torch.bmm(x, weight)``: x [E, T, in], weight [E, in, out]; on autocast's half-precision list.

    ``apart``: a linear module an expert (axolotl 0.19 monkeypatch/models/llama4/modeling.py), of which one at a time is
    dequantised, in the backward again.
    """
    x = to_autocast(f, x)
    if apart:
        one = weight.shape[1:]
        dense = f.new(one, x.dtype)
        out = f.new((*x.shape[:-1], one[-1]), x.dtype)
        del dense
        return f.record(out, _one_by_one_backward, (x,), (), one) if f.needs(x) else out
    held = cast_weight(f, opened(f, weight))
    assert held is not None
    recorded = f.needs(x, held)
    saved = f.save(x if held.node is not None else None, held if x.node is not None else None) if recorded else ()
    out = f.new((*x.shape[:-1], held.shape[-1]), x.dtype)
    return f.record(out, _batched_backward, (x, held), saved) if recorded else out


def _scatter_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)


class TextMoe:
    """Llama4TextMoe."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, width, act = a.hidden_size, int(a.get("intermediate_size")), str(a.get("hidden_act") or "silu")
        self.count, self.k, self.act = int(a.get("num_local_experts")), int(a.get("num_experts_per_tok", 1)), act
        self.up = expert_parameter(b, f"{name}.experts.gate_up_proj", self.count, h, 2 * width)
        self.down = expert_parameter(b, f"{name}.experts.down_proj", self.count, width, h)
        quantization = b.training.quantization
        self.apart = quantization is not None and quantization.experts == "linear"
        self.router = b.linear(f"{name}.router", h, self.count, subclass=True)
        self.shared = GatedMlp(b, f"{name}.shared_expert", h, width, act)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, S, H] -> [T, H] and the router's logits."""
        h, count = x.shape[-1], self.count
        x = x.view(x.shape[0] * x.shape[1], h)
        scores, logits = self.route(f, x)
        tokens = x.shape[0]
        routed = expand_copy(f, x.view(tokens, 1, h), (count, tokens, h)) if count > 1 else x
        if routed.storage is x.storage and count > 1:
            routed = copy(f, x.view(1, tokens, h), (count, tokens, h))
        routed = mul(f, routed, copy(f, scores, (count, tokens, 1)))
        both = batched(f, routed, self.up, apart=self.apart)
        half = (*both.shape[:-1], both.shape[-1] // 2)
        gate, up = split(f, both, half, half)
        outputs = batched(f, mul(f, up, activate(f, gate, self.act)), self.down, apart=self.apart)
        del both, gate, up
        out = self.shared(f, x)
        total = sum_groups(f, outputs.view(tokens * count, h), count)
        if f.needs(out, total):
            out = f.record(Tensor(out.shape, out.dtype, out.storage), _added, (out, total))
        del total, routed, outputs
        return out, logits

    def route(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """Llama4Router: sigmoid of the chosen logits, zero elsewhere, for every expert."""
        logits: Tensor = self.router(f, x)
        values, ids = topk(f, logits, self.k)
        recorded = f.needs(values)
        saved = f.save(ids) if recorded else ()
        scores = f.like(logits)
        if recorded:
            scores = f.record(scores, _scatter_backward, (values,), saved)
        scores = cast(f, saving_output(f, cast(f, scores, "fp32")), logits.dtype)
        return scores, logits


def _added(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grad, grad


class Block:
    """One decoder layer."""

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env) -> None:
        h, name = a.hidden_size, f"model.layers.{index}"
        self.kind, self.sparse = kind
        self.env = env
        self.attention = TextAttention(a, b, f"{name}.self_attn", self.kind != "nope")
        act = str(a.get("hidden_act") or "silu")
        self.mlp: Any
        if self.sparse:
            self.mlp = TextMoe(a, b, f"{name}.feed_forward")
        else:
            self.mlp = GatedMlp(b, f"{name}.feed_forward", h, int(a.get("intermediate_size_mlp")), act)
        self.norms = [Norm(b, f"{name}.{n}", h, SHAPE.norm) for n in ("input_layernorm", "post_attention_layernorm")]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env = self.env
        residual = x
        x = self.norms[0](f, env, x)
        attended = self.attention(f, env, x, self.kind)
        x = add(f, residual, attended)
        residual = x
        x = self.norms[1](f, env, x)
        logits = None
        if self.sparse:
            x, logits = self.mlp(f, x)
        else:
            x = self.mlp(f, x)
        out = add(f, residual, x.view(*residual.shape))
        del attended, logits
        return out


class Model(Body):
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE)
        layers = a.num_hidden_layers
        rope = a.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
        step = int(a.get("interleave_moe_layer_step", 1))
        sparse = a.get("moe_layers")
        sparse = range(step - 1, layers, step) if sparse is None else sparse
        self.kinds = ["full" if uses else "nope" for uses in rope]
        self.layers = Stack(
            b,
            [(kind, i in sparse) for i, kind in enumerate(self.kinds)],
            lambda build, kind, index: Block(a, build, kind, index, env),
        )
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))

    def share(self, f: Tape, x: Tensor) -> None:
        """Masks of layers with and without rotary positions (chunked and full), and the complex rotary table."""
        env = self.env
        rows, length = x.shape[0], x.shape[1]
        chunk = self.a.get("attention_chunk_size")
        env.state["masks"] = masks = {"nope": env.mask(f, rows, length, x.dtype)}
        if chunk and length > chunk and env.attention in ("sdpa", "eager"):
            # create_chunked_causal_mask: a boolean mask for each row of the batch.
            boolean = f.new((rows, 1, length, length), "bool")
            masks["full"] = boolean if env.attention == "sdpa" else f.new(boolean.shape, x.dtype)
            del boolean
        else:
            masks["full"] = env.mask(f, rows, length, x.dtype)
        env.state["rope"] = f.new((1, length, self.rotary // 2), "complex64")
