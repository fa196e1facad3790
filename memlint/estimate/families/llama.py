"""Decoder-only models of the Llama shape: pre-norm (or post-norm) blocks, rotary positions, gated MLP.

Sources: transformers 5.24 models/<type>/modeling_<type>.py for each type of ``SHAPES`` (families/shapes.py).
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.shapes import SHAPES as SHAPES
from memlint.estimate.families.shapes import Shape as Shape
from memlint.estimate.families.shapes import flag, shape_of
from memlint.estimate.families.xielu import Xielu
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, dropout, mul, scale, shift, slice_of
from memlint.estimate.ops.norm import fused_rms_norm, layer_norm, rms_norm
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Norm:
    """A normalisation layer of one of the styles above."""

    __slots__ = ("bias", "style", "weight")

    def __init__(self, b: Build, name: str, width: int, style: str) -> None:
        self.style = style
        self.weight = None if style == "plain" else b.parameter(f"{name}.weight", width)
        self.bias = b.parameter(f"{name}.bias", width) if style in ("layer", "layer1p") else None

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        if self.style == "plain":
            # OlmoLayerNorm: F.layer_norm in fp32, cast back
            return cast(f, layer_norm(f, cast(f, x, "fp32"), None, None), x.dtype)
        if self.style == "layer":
            return layer_norm(f, x, self.weight, self.bias)
        if self.style == "layer1p":
            return self._one_plus(f, x)
        if "rms_norm" in env.liger:
            return fused_rms_norm(f, x, self.weight)
        return rms_norm(f, x, self.weight, style=self.style)

    def _one_plus(self, f: Tape, x: Tensor) -> Tensor:
        """NemotronLayerNorm1P: ``weight + 1``, everything in autocast's dtype and the norm outside autocast."""
        assert self.weight is not None and self.bias is not None
        weight, bias = shift(f, self.weight), self.bias.view(*self.bias.shape)
        outer = f.autocast
        if outer is not None:
            x, weight, bias = cast(f, x, outer), cast(f, weight, outer), cast(f, bias, outer)
            f.autocast = None
        out = layer_norm(f, x, weight, bias)
        f.autocast = outer
        return out


def rotate_both(f: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor], s: Shape) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of queries and keys."""
    cos, sin = tables
    if s.rope_pairs:
        # cos[..., : half].repeat_interleave(2, dim=-1)
        cos, sin = f.like(cos), f.like(sin)
    return rotate(f, q, cos, sin, s), rotate(f, k, cos, sin, s)


def rotate(f: Tape, x: Tensor, cos: Tensor, sin: Tensor, s: Shape) -> Tensor:
    """apply_rotary_pos_emb of one tensor: x * cos + rotate_half(x) * sin; a partial rotary width passes the rest on."""
    width, dtype = cos.shape[-1], x.dtype
    if s.rope_float:
        straight = mul(f, cast(f, x, "fp32"), cos)
        return cast(f, add(f, straight, mul(f, cast(f, _turned(f, x), "fp32"), sin)), dtype)
    if s.rope_upcast:
        x = cast(f, x, "fp32")
    if width < x.shape[-1] or s.rope_cat:
        turned = slice_of(f, x, (*x.shape[:-1], width))
        rest = slice_of(f, x, (*x.shape[:-1], x.shape[-1] - width))
        del x
        return cat(f, _rotate(f, turned, cos, sin), rest)
    x = _rotate(f, x, cos, sin)
    return cast(f, x, dtype) if s.rope_fp32 or s.rope_upcast else x


def _rotate(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    straight = mul(f, x, cos)
    turned = _turned(f, x)
    return add(f, straight, mul(f, turned, sin))


def _turned(f: Tape, x: Tensor) -> Tensor:
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return cat(f, scale(f, second), first)


def rotary_tables(f: Tape, length: int, width: int, dtype: str, rows: int = 1) -> tuple[Tensor, Tensor]:
    """cos and sin [rows, 1, S, D] in the model's dtype (LlamaRotaryEmbedding.forward computes them in fp32)."""
    shape = (rows, 1, length, width)
    frequencies = f.new(shape, "fp32")
    cos32, sin32 = f.new(shape, "fp32"), f.new(shape, "fp32")
    del frequencies
    if dtype == "fp32":
        return cos32, sin32
    cos, sin = f.new(shape, dtype), f.new(shape, dtype)
    return cos, sin


class Attention:
    """Grouped-query attention with rotary positions."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        h = a.hidden_size
        self.heads = a.get("num_attention_heads")
        self.kv = a.get("num_key_value_heads", self.heads)
        self.dim = a.get("head_dim") or h // self.heads
        self.dropout = float(a.get("attention_dropout", 0.0))
        qkv_bias = flag(a, s.qkv_bias)
        q, kv = self.heads * self.dim, self.kv * self.dim
        self.fused = s.fused_qkv
        if s.fused_qkv:
            self.qkv = b.linear(f"{name}.qkv_proj", h, q + 2 * kv, qkv_bias)
        else:
            self.q = b.linear(f"{name}.q_proj", h, q, qkv_bias)
            self.k = b.linear(f"{name}.k_proj", h, kv, qkv_bias)
            self.v = b.linear(f"{name}.v_proj", h, kv, qkv_bias)
        self.o = b.linear(f"{name}.o_proj", q, h, flag(a, s.o_bias))
        self.shape = s
        self.softcap = s.softcap and a.get("attn_logit_softcapping") is not None
        self.qk_norm = s.qk_norm
        if s.qk_norm is not None:
            head = s.qk_norm == "head"
            q_name, k_name = s.qk_names
            self.q_norm = Norm(b, f"{name}.{q_name}", self.dim if head else q, s.norm)
            self.k_norm = Norm(b, f"{name}.{k_name}", self.dim if head else kv, s.norm)
        self.inner_norm = Norm(b, f"{name}.attn_sub_norm", q, s.norm) if s.inner_norms else None
        self.residual_dropout = float(a.get("residual_dropout", 0.0)) if s.residual_dropout else 0.0

    def project(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, S, H] -> q [B, h, S, D], k and v [B, kv, S, D]."""
        b, s, _ = x.shape
        if self.fused:
            qkv = self.qkv(f, x)
            q = slice_of(f, qkv, (b, self.heads, s, self.dim))
            k = slice_of(f, qkv, (b, self.kv, s, self.dim))
            v = slice_of(f, qkv, (b, self.kv, s, self.dim))
            return q, k, v
        if self.qk_norm == "full":
            q, k = self.q_norm(f, env, self.q(f, x)), self.k_norm(f, env, self.k(f, x))
            v = self.v(f, x)
            return q.view(b, self.heads, s, self.dim), k.view(b, self.kv, s, self.dim), v.view(b, self.kv, s, self.dim)
        if self.qk_norm == "head" and not self.shape.norm_after_rope:
            q = self.q_norm(f, env, self.q(f, x).view(b, self.heads, s, self.dim))
            k = self.k_norm(f, env, self.k(f, x).view(b, self.kv, s, self.dim))
            return q, k, self.v(f, x).view(b, self.kv, s, self.dim)
        q = self.q(f, x).view(b, self.heads, s, self.dim)
        k = self.k(f, x).view(b, self.kv, s, self.dim)
        return q, k, self.v(f, x).view(b, self.kv, s, self.dim)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        q, k, v = self.project(f, env, x)
        rope = env.state.get(f"rope:{kind}") or env.state["rope"]
        if kind != "nope":
            q, k = rotate_both(f, q, k, rope, self.shape)
        if self.shape.norm_after_rope:
            q = self.q_norm(f, env, q)
            k = self.k_norm(f, env, k)
        cache = env.state.get("cache")
        if cache is not None:
            # DynamicCache.update: cat((nothing yet, new)), held until the model's outputs die.
            k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
            cache.append((k.detach(), v.detach()))
        dense = self.shape.rope_cat or rope[0].shape[-1] < self.dim
        mask = env.state["masks"]["full" if kind == "nope" else kind]
        out = env.attend(f, q, k, v, mask, self.dropout, dense=dense, softcap=self.softcap)
        del q, k, v
        if self.inner_norm is not None:
            out = self.inner_norm(f, env, out)
        result: Tensor = self.o(f, out)
        return dropout(f, result, self.residual_dropout)


class Mlp:
    """Gated MLP ``down(act(gate(x)) * up(x))``, or a plain two-layer one."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        h, i = a.hidden_size, a.get("intermediate_size")
        bias = flag(a, s.mlp_bias)
        self.shape = s
        self.width = i
        self.act = str(a.get("hidden_act") or a.get("hidden_activation") or "silu")
        if not s.gated:
            up, down = s.mlp_names
            self.up = b.linear(f"{name}.{up}", h, i, bias)
            self.down = b.linear(f"{name}.{down}", i, h, bias)
            if self.act == "xielu":
                self.xielu = Xielu(b, f"{name}.act_fn")
        elif s.fused_gate:
            self.up = b.linear(f"{name}.gate_up_proj", h, 2 * i, bias)
            self.down = b.linear(f"{name}.down_proj", i, h, bias)
        else:
            self.gate = b.linear(f"{name}.gate_proj", h, i, bias)
            self.up = b.linear(f"{name}.up_proj", h, i, bias)
            self.down = b.linear(f"{name}.down_proj", i, h, bias)
        self.inner_norm = Norm(b, f"{name}.ffn_sub_norm", i, s.norm) if s.inner_norms else None
        self.residual_dropout = float(a.get("residual_dropout", 0.0)) if s.residual_dropout else 0.0

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.branch(f, env, x)
        return dropout(f, x, self.residual_dropout)

    def branch(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """Everything but the dropout."""
        result: Tensor
        if not self.shape.gated:
            if self.act == "xielu":
                result = self.down(f, self.xielu(f, self.up(f, x)))
            else:
                result = self.down(f, activate(f, self.up(f, x), self.act))
            return result
        if self.shape.fused_gate:
            both = self.up(f, x)
            half = (*x.shape[:-1], self.width)
            gate, up = slice_of(f, both, half), slice_of(f, both, half)
            result = self.down(f, mul(f, up, activate(f, gate, self.act)))
        elif self.inner_norm is not None:
            x = mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x))
            result = self.down(f, self.inner_norm(f, env, x))
        elif "swiglu" in env.liger:
            result = self.down(f, fused_swiglu(f, self.gate(f, x), self.up(f, x)))
        else:
            result = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
        return result


def _swiglu_backward(f: Tape, node: Any, grad: Tensor) -> tuple[Tensor, ...]:
    # Liger-Kernel ops/swiglu.py: the gradients overwrite the saved gate and up tensors.
    return tuple(t.detach() for t in node.saved)


def fused_swiglu(f: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """Liger's silu(gate) * up: saves gate and up, writes their gradients over them."""
    recorded = f.needs(gate, up)
    saved = f.save(gate, up) if recorded else ()
    out = f.like(gate)
    return f.record(out, _swiglu_backward, (gate, up), saved) if recorded else out


class Block:
    """One decoder layer."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        s = self.shape = shape_of(a)
        h = a.hidden_size
        name = f"model.layers.{index}"
        self.kind = kind
        self.env = env
        self.attention = Attention(a, b, f"{name}.self_attn", s)
        self.mlp = Mlp(a, b, f"{name}.mlp", s)
        names = s.norm_names or {
            "pre": ("input_layernorm", "post_attention_layernorm"),
            "parallel": ("input_layernorm",),
            "post": ("post_attention_layernorm", "post_feedforward_layernorm"),
            "both": (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ),
        }[s.norms]
        self.norms = [Norm(b, f"{name}.{n}", h, s.norm) for n in names]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env, s, norms = self.env, self.shape, self.norms
        if s.norms == "parallel":
            residual = x
            x = norms[0](f, env, x)
            attended = self.attention(f, env, x, self.kind)
            return add(f, add(f, residual, attended), self.mlp(f, env, x))
        residual = x
        if s.norms != "post":
            x = norms[0](f, env, x)
        x = self.attention(f, env, x, self.kind)
        if s.norms == "both":
            x = norms[1](f, env, x)
        elif s.norms == "post":
            x = norms[0](f, env, x)
        if s.branch_scale:
            x = scale(f, x)
        x = add(f, residual, x)
        residual = x
        if s.norms == "pre":
            x = norms[1](f, env, x)
        elif s.norms == "both":
            x = norms[2](f, env, x)
        x = self.mlp(f, env, x)
        if s.norms == "post":
            x = norms[1](f, env, x)
        elif s.norms == "both":
            x = norms[3](f, env, x)
        if s.branch_scale:
            x = scale(f, x)
        return add(f, residual, x)


def layer_kinds(a: Architecture) -> list[str]:
    """``full``, ``sliding`` or ``nope`` for each layer, from layer_types, sliding_window and no_rope_layers."""
    layers = a.num_hidden_layers
    types = a.get("layer_types")
    window = a.get("sliding_window")
    if isinstance(types, (list, tuple)) and len(types) == layers:
        kinds = ["sliding" if t == "sliding_attention" and window else "full" for t in types]
    elif window and a.get("use_sliding_window", True):
        kinds = ["sliding"] * layers
    else:
        kinds = ["full"] * layers
    if shape_of(a).rope_only_local and (window or a.model_type != "exaone4"):
        kinds = ["nope" if kind == "full" else kind for kind in kinds]
    no_rope = a.get("no_rope_layers")
    if isinstance(no_rope, (list, tuple)) and len(no_rope) == layers:
        kinds = [kind if uses else "nope" for kind, uses in zip(kinds, no_rope)]
    return kinds


class Model:
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.a, self.env = a, env
        s = self.shape = shape_of(a)
        rows = b.training.vocab_size or a.vocab_size
        self.embed = self.embedding(b, rows)
        self.kinds = layer_kinds(a)
        self.blocks = False
        """Tokens of an image see one another (gemma3, paligemma): there is always a mask."""
        self.layers: Any = self.stack(b)
        self.others: tuple[Tensor, ...] = ()
        """What every layer gets beside the hidden states (mllama's image states)."""
        self.norm = Norm(b, "model.norm", a.hidden_size, s.norm)
        self.rotary = int((a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")) * partial_rotary(a))
        b.buffer(self.rotary // 2 * 4)
        b.buffer(self.rotary // 2 * 4)

    def embedding(self, b: Build, rows: int) -> Any:
        """The token embedding."""
        return b.embedding("model.embed_tokens", rows, self.a.hidden_size)

    def stack(self, b: Build) -> Any:
        """The layers."""
        return Stack(b, self.kinds, lambda build, kind, index: Block(self.a, build, kind, index, self.env))

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        x = self.embed(f, batch.ids)
        if self.shape.embed_scale:
            x = scale(f, x)
        return self.body(f, x, batch)

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        env, a = self.env, self.a
        rows, length = x.shape[0], x.shape[1]
        state = env.state
        state["masks"] = {
            kind: env.mask(
                f, rows, length, x.dtype, a.get("sliding_window") if kind == "sliding" else None, blocks=self.blocks
            )
            for kind in dict.fromkeys("full" if kind == "nope" else kind for kind in self.kinds)
        }
        dtype = "fp32" if self.shape.rope_fp32 else x.dtype
        state["rope"] = rotary_tables(f, length, self.rotary, dtype, rows if self.shape.rope_rows else 1)
        if self.shape.local_rope and len(state["masks"]) > 1:
            state["rope:sliding"] = rotary_tables(f, length, self.rotary, dtype)
        del state
        x = self.layers(f, env, x, *self.others)
        x = self.norm(f, env, x)
        env.release()
        return x


def partial_rotary(a: Architecture) -> float:
    """Share of the head that is rotated (partial_rotary_factor, also inside rope_parameters in transformers 5)."""
    rope = a.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return float(inner or a.get("partial_rotary_factor", 1.0))
