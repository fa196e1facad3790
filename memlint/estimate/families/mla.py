"""Decoder-only models with multi-head latent attention: deepseek_v2, deepseek_v3 (kimi_k2), deepseek_v32,
glm4_moe_lite, glm_moe_dsa, mistral4, minicpm3, youtu, axk1, sarvam_mla.

Source: transformers 5.24 models/{deepseek_v2,deepseek_v3,glm4_moe_lite,mistral4,minicpm3,youtu,axk1}/modeling_*.py.
Keys and values come from a low-rank latent; in training it is expanded to all heads, so activations are those of full
attention with heads of different widths for q and k and for v (which keeps the flash kernel away where they differ).
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.body import Body
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama4 import turned
from memlint.estimate.families.mixtures import Mixture
from memlint.estimate.families.moe import Moe
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotate
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.attention import sdpa, softmax
from memlint.estimate.ops.basic import add, cast, cat, copy, dropout, mul, scale, slice_of
from memlint.estimate.ops.gather import expand, subtract
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(mlp_bias=False)

_EXPERTS: dict[str, Any] = {
    "experts": "n_routed_experts",
    "shared": "after",
    "shared_width": "*n_shared_experts",
}
MIXTURES: dict[str, Mixture | None] = {
    "deepseek_v3": Mixture(router="grouped", **_EXPERTS),
    "deepseek_v32": Mixture(router="grouped", **_EXPERTS),
    "glm_moe_dsa": Mixture(router="grouped", **_EXPERTS),
    "deepseek_v2": Mixture(router="grouped-softmax", **_EXPERTS),
    "glm4_moe_lite": Mixture(router="grouped", **_EXPERTS),
    "axk1": Mixture(router="grouped", **_EXPERTS),
    "sarvam_mla": Mixture(router="grouped", **_EXPERTS),
    "mistral4": Mixture(router="grouped-plain", **_EXPERTS),
    "minicpm3": None,
    "youtu": None,
}
"""model_type -> its mixture of experts; None: dense layers throughout."""


def _interleaved(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """apply_rotary_pos_emb_interleave: even and odd columns turned against each other."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    narrow = (*cos.shape[:-1], cos.shape[-1] // 2)
    cos, sin = cos.view(*narrow), sin.view(*narrow)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return cat(
        f,
        subtract(f, mul(f, first, cos), mul(f, second, sin)),
        add(f, mul(f, second, cos), mul(f, first, sin)),
    )


def _outer_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    # CopySlices: the gradient is copied whole, the part's is cloned out of it and zeroed.
    rest = f.like(grad)
    part = f.new(*node.shapes[1])
    zeros = f.like(part)
    del zeros
    return rest, part


def _inner_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    rest = f.like(grad)
    part = f.new(*node.shapes[0])
    del rest
    return (part,)


def _filled(f: Tape, first: Tensor, second: Tensor) -> Tensor:
    """``new_empty`` filled by two in-place copies: [..., n] and [..., m] -> [..., n + m]."""
    out = f.new((*first.shape[:-1], first.shape[-1] + second.shape[-1]), first.dtype)
    if first.node is not None and f.grad_enabled:
        out = f.record(out, _inner_backward, (first,))
    if f.needs(out, second):
        out = f.record(Tensor(out.shape, out.dtype, out.storage), _outer_backward, (out, second))
    return out


def _eager(f: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: q and k are contiguous [B, h, S, D]; v is a view of the expanded latent."""
    b, heads, s, _ = q.shape
    weights = scale(f, matmul(f, q, k, s))
    if mask is not None:
        weights = add(f, weights, mask)
    weights = cast(f, softmax(f, weights, "fp32"), q.dtype)
    weights = dropout(f, weights, p)
    out = matmul(f, weights, v, v.shape[-1], copy_b=b > 1)
    out = copy(f, out)
    return out.view(b, s, heads * v.shape[-1]), weights


INDEXED = ("deepseek_v32", "glm_moe_dsa")
"""Types whose attention sees what an indexer chooses (families/deepseek_v32.py)."""


class LatentAttention:
    """Multi-head latent attention."""

    indexes = False
    """An indexer sees the normed latent of the queries, which then has a name."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.nope, self.rope = int(a.get("qk_nope_head_dim")), int(a.get("qk_rope_head_dim"))
        self.value, self.rank = int(a.get("v_head_dim")), int(a.get("kv_lora_rank"))
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.complex = a.model_type == "deepseek_v2"
        self.query_scale = a.model_type == "mistral4"
        self.interleave = bool(a.get("rope_interleave", a.model_type in ("deepseek_v3", *INDEXED)))
        bias = bool(a.get("attention_bias", False))
        rank = a.get("q_lora_rank")
        width = self.heads * (self.nope + self.rope)
        self.q: Any = None
        if rank is None:
            self.q = b.linear(f"{name}.q_proj", h, width)
        else:
            self.q_a = b.linear(f"{name}.q_a_proj", h, rank, bias)
            self.q_norm = Norm(b, f"{name}.q_a_layernorm", rank, "llama")
            self.q_b = b.linear(f"{name}.q_b_proj", rank, width)
        self.kv_a = b.linear(f"{name}.kv_a_proj_with_mqa", h, self.rank + self.rope, bias)
        self.kv_norm = Norm(b, f"{name}.kv_a_layernorm", self.rank, "llama")
        self.kv_b = b.linear(f"{name}.kv_b_proj", self.rank, self.heads * (self.nope + self.value))
        self.o = b.linear(f"{name}.o_proj", self.heads * self.value, h, bias)
        self.held: list[Tensor] = []
        """What the attention's frame holds beside its variables here."""

    def turn(self, f: Tape, env: Env, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate the positional parts of q and k."""
        if self.complex:
            angles = env.state["rope"]
            first, second = cast(f, q, "fp32"), cast(f, k, "fp32")
            return cast(f, turned(f, first, angles), q.dtype), cast(f, turned(f, second, angles), k.dtype)
        cos, sin = env.state["rope"]
        if self.interleave:
            return _interleaved(f, q, cos, sin), _interleaved(f, k, cos, sin)
        return rotate(f, q, cos, sin, SHAPE), rotate(f, k, cos, sin, SHAPE)

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        heads, width = self.heads, self.nope + self.rope
        residual = x if self.q is not None else self.q_norm(f, env, self.q_a(f, x))
        states = self.q(f, x) if self.q is not None else self.q_b(f, residual)
        states = states.view(b, heads, s, width)
        if not self.indexes:
            residual = x
        q_pass, q_rot = split(f, states, (b, heads, s, self.nope), (b, heads, s, self.rope))
        compressed = self.kv_a(f, x)
        latent, k_rot = split(f, compressed, (b, s, self.rank), (b, s, self.rope))
        latent = self.kv_norm(f, env, latent)
        k_rot = k_rot.view(b, 1, s, self.rope)
        q_rot, k_rot = self.turn(f, env, q_rot, k_rot)
        q = cat(f, q_pass, cast(f, q_rot, q_pass.dtype))
        if self.query_scale:
            # get_llama_4_attn_scale: one number for each position.
            q = mul(f, q, f.new((1, 1, s, 1), q.dtype))
        k, v = self.expanded(f, latent, k_rot)
        mask = self.seen(f, env, x, residual)
        if env.attention == "eager":
            out, weights = _eager(f, q, k, v, mask, self.dropout)
            env.name(f, weights)
        else:
            force = "efficient" if env.attention == "sdpa" and width != self.value else None
            if env.attention != "sdpa":
                force = "flash"
            out = sdpa(f, q, k, v, mask, capability=env.capability, dense=True, force=force)
        result: Tensor = self.o(f, out)
        self.held = []
        return result

    def seen(self, f: Tape, env: Env, x: Tensor, residual: Tensor) -> Tensor | None:
        """The mask of this layer; ``residual`` is the normed latent of the queries."""
        mask: Tensor | None = env.state["masks"]["full"]
        return mask

    def expanded(self, f: Tape, latent: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """expand_kv: latent [B, S, r] -> k [B, h, S, nope + rope] and v [B, h, S, value]."""
        b, s, _ = latent.shape
        heads = self.heads
        both = self.kv_b(f, latent).view(b, heads, s, self.nope + self.value)
        k_nope, v = split(f, both, (b, heads, s, self.nope), (b, heads, s, self.value))
        k_rot = expand(f, k_rot, (b, heads, s, self.rope))
        return _filled(f, k_nope, cast(f, k_rot, k_nope.dtype)), v


def _attention(a: Architecture) -> type[LatentAttention]:
    if a.model_type not in INDEXED:
        return LatentAttention
    if int(a.get("index_topk_freq", 1)) != 1 or "shared" in (a.get("indexer_types") or ()):
        raise Unsupported(f"no memory model for a `{a.model_type}` whose layers share an indexer's choice yet")
    from memlint.estimate.families.deepseek_v32 import SparseAttention

    return SparseAttention


class Block:
    """One decoder layer."""

    def __init__(self, a: Architecture, b: Build, sparse: bool, index: int, env: Env) -> None:
        h, name = a.hidden_size, f"model.layers.{index}"
        self.env = env
        self.attention = _attention(a)(a, b, f"{name}.self_attn")
        mixture = MIXTURES.get(a.model_type, MIXTURES["deepseek_v3"])
        act = str(a.get("hidden_act") or "silu")
        self.mlp: Any
        if sparse and mixture is not None:
            self.mlp = Moe(a, b, f"{name}.mlp", mixture)
        else:
            bias = bool(a.get("mlp_bias", False))
            self.mlp = GatedMlp(b, f"{name}.mlp", h, int(a.get("intermediate_size")), act, bias=bias, a=a)
        self.last_norm: Norm | None = None
        if a.model_type == "axk1" and sparse:
            self.last_norm = Norm(b, f"{name}.mlp.post_mlp_layernorm", h, "llama")
        self.scaled = a.model_type == "minicpm3"
        self.norms = [Norm(b, f"{name}.{n}", h, "llama") for n in ("input_layernorm", "post_attention_layernorm")]

    def __call__(self, f: Tape, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        """x [B, S, H] -> [B, S, H]; ``chosen``: the choice of the layer before, which only the closure holds."""
        env = self.env
        residual = x
        x = self.norms[0](f, env, x)
        x = self.attention(f, env, x)
        x = add(f, residual, scale(f, x) if self.scaled else x)
        residual = x
        x = self.norms[1](f, env, x)
        x = self.mlp(f, x)
        if self.last_norm is not None:
            x = self.last_norm(f, env, x)
        return add(f, residual, scale(f, x) if self.scaled else x)


class Model(Body):
    """Embedding, blocks and final norm: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        if a.model_type not in MIXTURES and a.approximate is None:
            raise Unsupported(f"no memory model for `{a.model_type}` yet")
        if not all(a.get(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")):
            raise Unsupported(f"this `{a.model_type}` config has no latent attention (kv_lora_rank)")
        super().__init__(a, b, env, Shape(mlp_bias=False, embed_scale=a.model_type == "minicpm3"))
        mixture = MIXTURES.get(a.model_type, MIXTURES["deepseek_v3"])
        dense = int(a.get("first_k_dense_replace", 0))
        kinds = a.get("mlp_layer_types")
        sparse = [mixture is not None and i >= dense for i in range(a.num_hidden_layers)]
        if isinstance(kinds, (list, tuple)) and len(kinds) == len(sparse):
            sparse = [kind == "sparse" for kind in kinds]
        self.kinds = ["full"]
        # The first layer gets no choice of a layer before.
        first = [0] if a.model_type == "glm_moe_dsa" else []
        self.layers = Stack(b, sparse, lambda build, kind, index: Block(a, build, kind, index, env), alone=first)
        self.finish(b, int(a.get("qk_rope_head_dim")))

    def share(self, f: Tape, x: Tensor) -> None:
        """The mask and the rotary tables; deepseek_v2's is complex."""
        env = self.env
        if self.a.model_type != "deepseek_v2":
            super().share(f, x)
            if self.a.model_type == "glm_moe_dsa":
                # Every layer is given the choice of the one before, whether it uses it or not.
                shape = (*x.shape[:2], min(int(self.a.get("index_topk", 2048)), x.shape[1]))
                self.layers.before = lambda f, index: (f.new(shape, "int32"),) if index else ()
            if self.a.model_type in INDEXED and env.attention == "sdpa" and not env.padding:
                # The indexer needs a mask where sdpa would not.
                rows, length = x.shape[:2]
                env.state["masks"]["full"] = f.new((1, 1, length, length), "bool").view(rows, 1, length, length)
            return
        env.state["masks"] = {"full": env.mask(f, x.shape[0], x.shape[1], x.dtype)}
        env.state["rope"] = f.new((1, 1, x.shape[1], self.rotary // 2), "complex64")
