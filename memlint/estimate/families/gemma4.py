"""Gemma 4's language model: two widths of heads, shared keys and values, per-layer inputs, experts beside an MLP.

Source: transformers 5.24 models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.engine.whole import Part, whole
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.gemma4_parts import Moe, Norm, Rotation, scaled_in_place, sharing, stored, summed
from memlint.estimate.families.products import Product
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, mul, scale, slice_of
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

Kind = tuple[str, str | None, bool]
"""Which tokens a layer sees (full, sliding); whether it stores or reuses keys and values; whether it is like no other.
"""


def kinds_of(a: Architecture, b: Build) -> list[Kind]:
    """The kind of each layer.

    The last of a sort makes the first gradient of what all share, which is its own (engine/shared.py) but under ZeRO
    and where inductor adds it up. A graph that stored keys and values keep alive holds the gradient handed to the layer
    before, where checkpoints are reentrant (see ``stored``).
    """
    checkpointing, apart = b.training.checkpointing, b.sharding.zero is not None or b.training.compile
    reentrant = checkpointing.mode != "none" and checkpointing.reentrant
    types = ["sliding" if t == "sliding_attention" else "full" for t in a.get("layer_types")]
    modes = sharing(types, int(a.get("num_kv_shared_layers", 0)))
    last = {kind: index for index, kind in enumerate(types)}
    following = [*modes[1:], None]
    edges = [(apart and i == last[t]) or (reentrant and following[i] == "store") for i, t in enumerate(types)]
    return [(t, modes[i], edges[i]) for i, t in enumerate(types)]


class Attention:
    """Gemma4TextAttention."""

    def __init__(self, a: Architecture, b: Build, name: str, kind: Kind, index: int) -> None:
        h, bias = a.hidden_size, bool(a.get("attention_bias", False))
        self.kind, self.mode, _ = kind
        self.index, self.number, self.model_type = index, b.first_layer + index, a.model_type
        self.heads = int(a.get("num_attention_heads"))
        self.kv, self.dim = self.widths(a)
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.q = b.linear(f"{name}.q_proj", h, self.heads * self.dim, bias)
        self.q_norm = Norm(b, f"{name}.q_norm", self.dim)
        self.v: Any = None
        if self.mode != "reuse":
            self.k_norm = Norm(b, f"{name}.k_norm", self.dim)
            self.v_norm = Norm(b, None, self.dim)
            self.k = b.linear(f"{name}.k_proj", h, self.kv * self.dim, bias)
            if not (a.get("attention_k_eq_v", False) and self.kind == "full"):
                self.v = b.linear(f"{name}.v_proj", h, self.kv * self.dim, bias)
        self.o = b.linear(f"{name}.o_proj", self.heads * self.dim, h, bias)
        self.gates: Any = None

    def widths(self, a: Architecture) -> tuple[int, int]:
        """Key-value heads and the width of a head."""
        return layer_widths(a, self.kind, self.index)

    def pair(self, f: Tape, x: Tensor, turn: Rotation) -> tuple[Tensor, Tensor]:
        """Keys and values of x [B, S, H]: [B, kv, S, D]."""
        rows, length, _ = x.shape
        k = self.k(f, x).view(rows, self.kv, length, self.dim)
        v = self.v(f, x).view(rows, self.kv, length, self.dim) if self.v is not None else k
        k = self.k_norm(f, k)
        k = turn(f, k)
        v = self.v_norm(f, v)
        return k, v

    def query(self, f: Tape, x: Tensor, turn: Rotation) -> Tensor:
        """Queries of x [B, S, H]: [B, h, S, D]."""
        rows, length, _ = x.shape
        q = self.q(f, x).view(rows, self.heads, length, self.dim)
        q = self.q_norm(f, q)
        return turn(f, q)

    def __call__(self, f: Tape, env: Env, x: Tensor, source: Tensor) -> Tensor:
        """x [B, S, H], which is the norm of ``source`` -> [B, S, H]."""
        state = env.state
        turn = Rotation(state[f"rope:{self.kind}"])
        q = self.query(f, x, turn)
        if self.mode == "reuse":
            k, v = state["kv"][self.kind]
        else:
            k, v = self._cached(f, env, *self.pair(f, x, turn))
        if self.mode == "store":
            k, v = stored(f, env, self, source, k, v)
        out = env.attend(f, q, k, v, state[f"mask:{self.kind}"], self.dropout)
        result: Tensor = self.o(f, out)
        return result

    def _cached(self, f: Tape, env: Env, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        from memlint.estimate.ops.basic import cat

        cache = env.state.get("cache")
        if cache is not None:
            k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
            cache.append((k.detach(), v.detach()))
        return k, v


def layer_widths(a: Architecture, kind: str, index: int) -> tuple[int, int]:
    """Key-value heads and the width of a head of one layer (Gemma4TextConfig.__post_init__)."""
    kv, dim = int(a.get("num_key_value_heads")), int(a.get("head_dim"))
    layers = a.get("per_layer_config")
    if isinstance(layers, dict):
        own = layers.get(str(index), layers.get(index))
        own = own if isinstance(own, dict) else {}
        return int(own.get("num_key_value_heads", kv)), int(own.get("head_dim", dim))
    if kind != "full":
        return kv, dim
    if a.get("attention_k_eq_v", False):
        kv = int(a.get("num_global_key_value_heads", kv))
    return kv, int(a.get("global_head_dim", 512))


class Mlp:
    """Gemma4TextMLP: twice as wide in layers that reuse keys and values, where the config says so."""

    def __init__(self, a: Architecture, b: Build, name: str, kind: Kind) -> None:
        wide = a.get("use_double_wide_mlp", False) and kind[1] == "reuse"
        width = int(a.get("intermediate_size")) * (2 if wide else 1)
        self.act = str(a.get("hidden_activation", "gelu_pytorch_tanh"))
        self.gate = b.linear(f"{name}.gate_proj", a.hidden_size, width)
        self.up = b.linear(f"{name}.up_proj", a.hidden_size, width)
        self.down = b.linear(f"{name}.down_proj", width, a.hidden_size)
        self.part = Part(("mlp", self.act), Product(self.gate), Product(self.up), Product(self.down))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        return whole(f, self.part, self.fed, x)

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """The same, operation by operation."""
        result: Tensor = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
        return result


class Block:
    """Gemma4TextDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: Kind, index: int, env: Env) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env = env
        self.uses = (f"rope:{kind[0]}", f"mask:{kind[0]}", "kv", "positions")
        self.attention = Attention(a, b, f"{name}.self_attn", kind, index)
        self.mlp = Mlp(a, b, f"{name}.mlp", kind)
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self.norms = [Norm(b, f"{name}.{n}_layernorm", h, often=True) for n in names]
        b.buffer(DTYPE_BYTES[b.training.precision.weights])
        self.moe = Moe(a, b, name) if a.get("enable_moe_block", False) else None
        width = int(a.get("hidden_size_per_layer_input") or 0)
        self.act = str(a.get("hidden_activation", "gelu_pytorch_tanh"))
        self.gate: Any = None
        if width:
            self.gate = b.linear(f"{name}.per_layer_input_gate", h, width)
            self.project = b.linear(f"{name}.per_layer_projection", width, h)
            self.last_norm = Norm(b, f"{name}.post_per_layer_input_norm", h)

    def __call__(self, f: Tape, x: Tensor, given: Tensor | None = None) -> Tensor:
        """x [B, S, H] and the layer's own input [B, S, P] -> [B, S, H]."""
        before, after, second, last = self.norms
        residual = x
        f.node_by_node = self.attention.mode == "store"
        x = before(f, x)
        x = self.attention(f, self.env, x, residual)
        f.node_by_node = False
        x = after(f, x)
        x = add(f, residual, x)
        residual = x
        x = second(f, x)
        x = self.mlp(f, x)
        if self.moe is not None:
            self.env.weights = None  # the router's first result takes their name
            x = self.moe(f, x, residual)
        x = last(f, x)
        x = add(f, residual, x)
        if given is not None:
            residual = x
            x = self.gate(f, x)
            x = activate(f, x, self.act)
            x = mul(f, x, given)
            x = self.project(f, x)
            x = self.last_norm(f, x)
            x = add(f, residual, x)
        return scaled_in_place(f, x)


class Model:
    """Gemma4TextModel: ids [B, S] -> hidden states [B, S, H]."""

    head_bias = False
    shape = Shape(embed_scale=True)

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.a, self.env = a, env
        h = a.hidden_size
        rows = b.training.vocab_size or a.vocab_size
        self.blocks = False
        """Image tokens see one another: there is always a mask."""
        self.dtype = b.training.precision.weights
        self.embed = b.embedding("model.embed_tokens", rows, h, entry=True, scaled=True)
        b.buffer(4)
        self.kinds = kinds_of(a, b)
        self.early: tuple[Tensor | None, Tensor | None] = None, None
        self.layers = Stack(b, self.kinds, lambda build, kind, index: Block(a, build, kind, index, env))
        self.norm = Norm(b, "model.norm", h)
        for kind in self.types:
            for _ in range(2):
                b.buffer(self.rotary(kind) // 2 * 4)
        self.width = int(a.get("hidden_size_per_layer_input") or 0)
        if self.width:
            packed = a.num_hidden_layers * self.width
            table = int(a.get("vocab_size_per_layer_input", rows))
            self.own_embed = b.embedding("model.embed_tokens_per_layer", table, packed)
            b.buffer(4)
            self.own_project = b.linear("model.per_layer_model_projection", h, packed)
            self.own_norm = Norm(b, "model.per_layer_projection_norm", self.width)

    @property
    def types(self) -> list[str]:
        """The sorts of attention that occur."""
        return sorted({kind for kind, _, _ in self.kinds})

    def rotary(self, kind: str) -> int:
        """Width of a head of layers of this sort."""
        index = next(i for i, k in enumerate(self.kinds) if k[0] == kind)
        return layer_widths(self.a, kind, index)[1]

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        return self.body(f, self.embed(f, batch.ids), batch)

    def ahead(self, f: Tape, ids: Tensor, x: Tensor) -> None:
        """What Gemma4Model makes before its towers run: it looks up, and never uses the embeddings that it hands on."""
        if self.width and self.a.model_type == "gemma4_text":
            self.early = (f.like(x), scale(f, self.own_embed(f, ids)))

    def inputs(self, f: Tape, x: Tensor, ids: Tensor, own: Tensor | None = None) -> Tensor:
        """get_per_layer_inputs and project_per_layer_inputs: [B, S, L, P]."""
        rows, length, _ = x.shape
        shape = (rows, length, self.a.num_hidden_layers, self.width)
        looked_up = (scale(f, self.own_embed(f, ids)) if own is None else own).view(*shape)
        projected = scale(f, self.own_project(f, x)).view(*shape)
        projected = self.own_norm(f, projected)
        return scale(f, add(f, projected, looked_up))

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        env, (rows, length, _) = self.env, x.shape
        state = env.state
        (unused, own), self.early = self.early, (None, None)
        given = self.inputs(f, x, batch.ids, own) if self.width else None
        state["positions"] = f.new((1, length), "int64")
        state["kv"] = {}
        window = int(self.a.get("sliding_window"))
        for kind in self.types:
            local = window if kind == "sliding" else None
            state[f"mask:{kind}"] = env.mask(f, rows, length, x.dtype, local, blocks=self.blocks)
        for kind in self.types:
            state[f"rope:{kind}"] = Rotation.tables(f, length, self.rotary(kind), x.dtype)
        del state
        if given is not None:
            self.layers.before = parts_of(summed(f, given))
        embedded = x
        x = self.layers(f, env, x)
        self.layers.before = None
        x = self.norm(f, x)
        del given, embedded, unused, own
        env.release()
        return x


def parts_of(packed: Tensor) -> Callable[[Tape, int], tuple[Tensor, ...]]:
    """Give each layer its part of the inputs [B, S, L, P]."""
    rows, length, _, width = packed.shape
    return lambda f, index: (slice_of(f, packed, (rows, length, width)),)


def body_of(a: Architecture) -> Any:
    """The class that builds a type's body."""
    if a.model_type == "gemma3n_text":
        from memlint.estimate.families import gemma3n

        return gemma3n.Model
    return Model
