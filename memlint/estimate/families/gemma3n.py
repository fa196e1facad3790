"""Gemma 3n's language model: four streams that predict and correct one another, per-layer inputs, shared keys and
values, feed-forwards that keep the largest few activations.

Source: transformers 5.24 models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.engine.whole import Part, whole
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import gemma4
from memlint.estimate.families.gemma3n_parts import AltUp, Laurel, add_behind, deviation, magnitude, mean_first, stack
from memlint.estimate.families.gemma4_parts import Norm, Rotation, summed
from memlint.estimate.families.products import Product
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, copy, mul, saving_output, scale, slice_of
from memlint.estimate.ops.gather import divide, subtract
from memlint.estimate.ops.views import scale_in_place
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

Kind = tuple[gemma4.Kind, int, bool]
"""Attention as in Gemma 4; width of the feed-forward; whether it keeps only the largest activations."""

SPARSE_LAYERS = 10
"""Without activation_sparsity_pattern so many first layers are sparse, where there are more (Gemma3nTextConfig)."""


def kinds_of(a: Architecture, b: Build) -> list[Kind]:
    """The kind of each layer."""
    depth = a.num_hidden_layers
    widths = a.get("intermediate_size")
    widths = list(widths) if isinstance(widths, (list, tuple)) else [widths] * depth
    shares = a.get("activation_sparsity_pattern")
    if not isinstance(shares, (list, tuple)):
        shares = [float(i < SPARSE_LAYERS < depth) for i in range(depth)]
    kinds = gemma4.kinds_of(a, b)
    if not a.get("num_kv_shared_layers", 0):
        # Unlike Gemma 4, a layer stores nothing that no other reuses.
        kinds = [(kind, None, False) for kind, _, _ in kinds]
    return [(kind, int(w), s > 0) for kind, w, s in zip(kinds, widths, shares)]


class Attention(gemma4.Attention):
    """Gemma3nTextAttention: heads of one width, values made after keys are turned."""

    def __init__(self, a: Architecture, b: Build, name: str, kind: gemma4.Kind, index: int) -> None:
        super().__init__(a, b, name, kind, index)
        self.o = Product(self.o)
        self.queries = Part("queries", Product(self.q), self.q_norm)
        if self.mode != "reuse":
            self.keys = Part("keys", Product(self.k), self.k_norm)
            self.values = Part("values", Product(self.v), self.v_norm)

    def widths(self, a: Architecture) -> tuple[int, int]:
        """See Gemma 4's."""
        return int(a.get("num_key_value_heads")), int(a.get("head_dim"))

    def pair(self, f: Tape, x: Tensor, turn: Rotation) -> tuple[Tensor, Tensor]:
        """See Gemma 4's."""
        k = whole(f, self.keys, self._key, x, turn.cos, turn.sin)
        v = whole(f, self.values, self._value, x)
        return k, v

    def query(self, f: Tape, x: Tensor, turn: Rotation) -> Tensor:
        """See Gemma 4's."""
        return whole(f, self.queries, self._query, x, turn.cos, turn.sin)

    def _query(self, f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().query(f, x, Rotation((cos, sin)))

    def _key(self, f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        k = self.k(f, x).view(*x.shape[:1], self.kv, x.shape[1], self.dim)
        k = self.k_norm(f, k)
        return Rotation((cos, sin))(f, k)

    def _value(self, f: Tape, x: Tensor) -> Tensor:
        v = self.v(f, x).view(*x.shape[:1], self.kv, x.shape[1], self.dim)
        return self.v_norm(f, v)


class Mlp:
    """Gemma3nTextMLP."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int, sparse: bool) -> None:
        self.act, self.sparse = str(a.get("hidden_activation", "gelu_pytorch_tanh")), sparse
        self.gate = Product(b.linear(f"{name}.gate_proj", a.hidden_size, width))
        self.up = Product(b.linear(f"{name}.up_proj", a.hidden_size, width))
        self.down = Product(b.linear(f"{name}.down_proj", width, a.hidden_size))
        self.part = Part((self.act, sparse), self.gate, self.up, self.down)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        return whole(f, self.part, self.fed, x)

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """The same, operation by operation."""
        gate = self.gate(f, x)
        if self.sparse:
            gate = self._largest(f, gate)
        activations = activate(f, gate, self.act)
        up = self.up(f, x)
        return self.down(f, mul(f, activations, up))

    def _largest(self, f: Tape, x: Tensor) -> Tensor:
        """_gaussian_topk."""
        mean, spread = deviation(f, x)
        cutoff = add(f, mean, scale(f, spread))
        return saving_output(f, subtract(f, x, cutoff))


class Block:
    """Gemma3nTextDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, kind: Kind, index: int, env: Env) -> None:
        name, h, width = f"model.layers.{index}", a.hidden_size, int(a.get("hidden_size_per_layer_input"))
        inner, wide, sparse = kind
        self.env = env
        self.uses = (f"rope:{inner[0]}", f"mask:{inner[0]}", "kv", "positions")
        self.act = str(a.get("hidden_activation", "gelu_pytorch_tanh"))
        self.scaled = bool(a.get("altup_correct_scale", True))
        self.attention = Attention(a, b, f"{name}.self_attn", inner, index)
        self.mlp = Mlp(a, b, f"{name}.mlp", wide, sparse)
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self.norms = [Norm(b, f"{name}.{n}_layernorm", h, often=True) for n in names]
        self.altup = AltUp(a, b, f"{name}.altup")
        self.laurel = Laurel(a, b, f"{name}.laurel")
        self.gate = Product(b.linear(f"{name}.per_layer_input_gate", h, width))
        self.project = Product(b.linear(f"{name}.per_layer_projection", width, h))
        self.last_norm = Norm(b, f"{name}.post_per_layer_input_norm", h, often=True)
        self.part = Part(("own", self.act, self.scaled), self.altup, self.gate, self.project)

    def __call__(self, f: Tape, x: Tensor, given: Tensor) -> Tensor:
        """x [N, B, S, H] and the layer's own input [B, S, P] -> [N, B, S, H]; all locals live until the end."""
        before, after, second, last = self.norms
        f.node_by_node = self.attention.mode == "store"
        predictions = self.altup.predict(f, x)
        active = self.altup.active(f, predictions)
        normed = before(f, active)
        laurel = self.laurel(f, normed)
        attended = self.attention(f, self.env, normed, x)
        f.node_by_node = False
        attended = after(f, attended)
        gated = add(f, active, attended)
        joined = scale(f, add(f, gated, laurel))
        inner = second(f, joined)
        fed = self.mlp(f, inner)
        fed_normed = last(f, fed)
        activated = add(f, joined, fed_normed)
        corrected = self.altup.correct(f, predictions, activated)
        first = whole(f, self.part, self.own, corrected, given)
        first = self.last_norm(f, first)
        return add_behind(f, corrected, first)

    def own(self, f: Tape, corrected: Tensor, given: Tensor) -> Tensor:
        """What the layer's own input adds, before it is normed."""
        first = copy(f, self.altup.active(f, corrected))
        if self.scaled:
            first = self.altup.scaled(f, first)
        first = self.gate(f, first)
        first = activate(f, first, self.act)
        first = mul(f, first, given)
        return self.project(f, first)


class Model(gemma4.Model):
    """Gemma3nTextModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.a, self.env = a, env
        h, depth = a.hidden_size, a.num_hidden_layers
        rows = b.training.vocab_size or a.vocab_size
        self.blocks = False
        self.embed = b.embedding("model.embed_tokens", rows, h, entry=True, scaled=True)
        self.layer_kinds = kinds_of(a, b)
        self.kinds = [kind for kind, _, _ in self.layer_kinds]
        self.layers = Stack(b, self.layer_kinds, lambda build, kind, index: Block(a, build, kind, index, env))
        self.norm = Norm(b, "model.norm", h)
        self.width = int(a.get("hidden_size_per_layer_input"))
        packed = depth * self.width
        table = int(a.get("vocab_size_per_layer_input", rows))
        self.own_embed = b.embedding("model.embed_tokens_per_layer", table, packed)
        self.own_project = b.linear("model.per_layer_model_projection", h, packed)
        self.own_norm = Norm(b, "model.per_layer_projection_norm", self.width)
        streams = range(int(a.get("altup_num_inputs", 4)) - 1)
        self.spread: list[Any] = [b.linear(f"model.altup_projections.{i}", h, h) for i in streams]
        self.gather: list[Any] = [b.linear(f"model.altup_unembed_projections.{i}", h, h) for i in streams]
        for _ in range(4):
            b.buffer(4)
        for _ in range(2 * len(self.types)):
            b.buffer(int(a.get("head_dim")) // 2 * 4)

    def rotary(self, kind: str) -> int:
        """See Gemma 4's."""
        return int(self.a.get("head_dim"))

    def inputs(self, f: Tape, x: Tensor, ids: Tensor, own: Tensor | None = None) -> Tensor:
        """get_per_layer_inputs and project_per_layer_inputs: [B, S, L, P]."""
        rows, length, _ = x.shape
        shape = (rows, length, self.a.num_hidden_layers, self.width)
        looked_up = self._looked_up(f, ids).view(*shape)
        projected = scale_in_place(f, self.own_project(f, x)).view(*shape)
        projected = self.own_norm(f, projected)
        return scale(f, add(f, projected, looked_up))

    def _looked_up(self, f: Tape, ids: Tensor) -> Tensor:
        within = f.new(ids.shape, "bool")
        ids = f.like(ids)
        out = scale(f, self.own_embed(f, ids))
        del within
        return out

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Streams, layers, their mean and final norm over embedded inputs x [B, S, H]."""
        env, (rows, length, h) = self.env, x.shape
        given = self.inputs(f, x, batch.ids)
        state = env.state
        state["positions"] = f.new((1, length), "int64")
        state["kv"] = {}
        window = int(self.a.get("sliding_window"))
        for kind in self.types:
            local = window if kind == "sliding" else None
            state[f"mask:{kind}"] = env.mask(f, rows, length, x.dtype, local, blocks=self.blocks)
        target = magnitude(f, x)
        streams = [x]
        for project in self.spread:
            projected = cast(f, project(f, x), x.dtype)
            new = magnitude(f, projected, clamped=True)
            projected = divide(f, mul(f, projected, target), new)
            streams.append(projected)
        hidden = stack(f, streams)
        for kind in self.types:
            state[f"rope:{kind}"] = Rotation.tables(f, length, self.rotary(kind), x.dtype)
        del state
        self.layers.before = gemma4.parts_of(summed(f, given))
        hidden = self.layers(f, env, hidden)
        self.layers.before = None
        first = slice_of(f, hidden, (rows, length, h))
        target = magnitude(f, slice_of(f, hidden, (rows, length, h)))
        streams = [first]
        for project in self.gather:
            projected = cast(f, project(f, slice_of(f, hidden, (rows, length, h))), x.dtype)
            new = magnitude(f, projected, clamped=True)
            projected = divide(f, mul(f, projected, target), new)
            streams.append(projected)
        hidden = stack(f, streams)
        hidden = mean_first(f, hidden)
        out = self.norm(f, hidden)
        del given, new, projected
        env.release()
        return out
