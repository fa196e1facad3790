"""Parts of Gemma 4's layers: norms, rotary positions, shared keys and values, routed experts.

Source: transformers 5.24 models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from typing import Any, Hashable, Sequence

from memlint.estimate.build import Build
from memlint.estimate.engine.shared import gate, shared
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.engine.whole import Part, describe, whole
from memlint.estimate.env import Env
from memlint.estimate.errors import refuse_kept_graph, required
from memlint.estimate.families.rotary import rotary_tables
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, cat, mean_last, mul, scale, shift, slice_of, square
from memlint.estimate.ops.experts import Experts
from memlint.estimate.ops.gather import index_rows, normalised, topk
from memlint.models.architecture import Architecture


def _power_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # pow_backward: grad * (exponent * self.pow(exponent - 1)), one C++ expression.
    power, scaled = f.like(grad), f.like(grad)
    out = f.like(grad)
    del power, scaled
    return (out,)


def inverse_root(f: Tape, x: Tensor) -> Tensor:
    """``torch.pow(x, -0.5)``: saves its input."""
    if not f.needs(x):
        return f.like(x)
    saved = f.save(x)
    return f.record(f.like(x), _power_backward, (x,), saved)


class Norm:
    """Gemma4RMSNorm: everything in fp32, cast back; ``name`` None: without weight."""

    __slots__ = ("part", "weight")

    def __init__(self, b: Build, name: str | None, width: int, *, often: bool = False) -> None:
        """``often``: many norms of its kind are run."""
        self.weight = None if name is None else b.parameter(f"{name}.weight", width)
        self.part = Part("norm", self) if often else None

    def describe(self, weights: list[Any]) -> Hashable:
        """See :class:`Layer`."""
        return describe(self.weight, weights)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        part = self.part
        return cast(f, self.scaled(f, x) if part is None else whole(f, part, self.scaled, x), x.dtype)

    def scaled(self, f: Tape, x: Tensor) -> Tensor:
        """The norm in fp32."""
        out = self._normed(f, cast(f, x, "fp32"))
        if self.weight is not None:
            out = mul(f, out, cast(f, self.weight, "fp32"))
        return out

    def _normed(self, f: Tape, x: Tensor) -> Tensor:
        return mul(f, x, inverse_root(f, shift(f, mean_last(f, square(f, x)))))


class Rotation:
    """apply_rotary_pos_emb of one tensor."""

    def __init__(self, tables: tuple[Tensor, Tensor]) -> None:
        self.cos, self.sin = tables

    @staticmethod
    def tables(f: Tape, length: int, width: int, dtype: str) -> tuple[Tensor, Tensor]:
        """cos and sin of one sort of layers."""
        return rotary_tables(f, length, width, dtype)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, h, S, D] -> the same shape."""
        straight = mul(f, x, self.cos)
        return add(f, straight, mul(f, self._turned(f, x), self.sin))

    def _turned(self, f: Tape, x: Tensor) -> Tensor:
        half = (*x.shape[:-1], x.shape[-1] // 2)
        first, second = slice_of(f, x, half), slice_of(f, x, half)
        return cat(f, scale(f, second), first)


def _scaled_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def scaled_in_place(f: Tape, x: Tensor) -> Tensor:
    """``x *= layer_scalar``: saves the buffer; the gradient is a new tensor."""
    out = x.detach()
    if not f.needs(x):
        return out
    return f.record(out, _scaled_backward, (x,), f.save(Tensor((1,), x.dtype, None)))


def sharing(types: Sequence[str], count: int) -> list[str | None]:
    """kv_sharing_modes: the last ``count`` layers reuse what the last layer of their sort before them stores."""
    first = len(types) - count
    modes: list[str | None] = [None if i < first else "reuse" for i in range(len(types))]
    for kind in set(types):
        before = [i for i in range(first) if types[i] == kind]
        if before:
            modes[before[-1]] = "store"
    return modes


def _joined_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # Gradients of the layers that reuse the tensor have come together in its node; this one is added in place.
    gate: Node = node.meta
    held, gate.grad = gate.grad, None
    f.pending.discard(gate)
    return (grad if held is None else held,)


def _joined(f: Tape, x: Tensor, gate: Node | None) -> Tensor:
    if gate is None or not f.needs(x):
        return x
    return f.record(Tensor(x.shape, x.dtype, x.storage), _joined_backward, (x,), (), gate)


def summed(f: Tape, x: Tensor) -> Tensor:
    """What several layers use; inductor adds up their gradients itself."""
    return shared(f, x) if f.alike else x


def stored(f: Tape, env: Env, layer: Any, source: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Put keys and values where later layers find them; ``source`` is the layer's input.

    A checkpointed layer's graph is made in its recomputation; until then the gradients of those layers wait in a node
    that stands for it (without reentry: what CheckpointFunction gives out inside its forward has no graph at all).
    """
    kept = env.state["kv"]
    reentrant = env.checkpointing.reentrant
    if not env.checkpointed(layer.number) or not f.grad_enabled:
        refuse_kept_graph(f, env, (k, v), layer.model_type)
        k, v = kept[layer.kind] = summed(f, k), summed(f, v)
    elif f.hollow:
        layer.gates = [gate(f) if f.needs(t) and not reentrant else None for t in (k, v)]
        kept[layer.kind] = tuple([Tensor(t.shape, t.dtype, t.storage, gate) for t, gate in zip((k, v), layer.gates)])
    else:
        gates, layer.gates = layer.gates or (None, None), None
        # The recomputation puts its own there: they live as long as any layer's closure, and so does the graph behind
        # them. With reentry it is run, but holds the arguments and the gradient of the input; without, it never runs.
        nodes = _behind(k, v)
        held: list[Any]
        if reentrant:
            held = [source.detach(), *[node for node in nodes if not node.edges]]
            held += [env.state[f"mask:{layer.kind}"], env.state[f"rope:{layer.kind}"]]
        else:
            held = [None if t is None else t.detach() for node in nodes for t in node.saved]
        k, v = _joined(f, k, gates[0]), _joined(f, v, gates[1])
        kept[layer.kind] = (k.detach(), v.detach(), held)
    return k, v


def _behind(*tensors: Tensor) -> list[Node]:
    found: dict[int, Node] = {}
    waiting = [t.node for t in tensors]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Node) and id(node) not in found:
            found[id(node)] = node
            waiting.extend(node.edges)
    return list(found.values())


class Router:
    """Gemma4TextRouter: x [T, H] -> weights and ids [T, k]."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, experts = a.hidden_size, required(a, "num_experts")
        self.k = required(a, "top_k_experts")
        self.norm = Norm(b, None, h)
        self.proj = b.linear(f"{name}.proj", h, experts)
        self.scale = b.parameter(f"{name}.scale", h)
        self.expert_scale = b.parameter(f"{name}.per_expert_scale", experts)

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities (which the layer's ``_`` keeps), weights, ids."""
        x = self.norm(f, x)
        x = scale(f, mul(f, x, self.scale))
        scores = self.proj(f, x)
        probabilities = softmax(f, scores, "fp32")
        values, ids = topk(f, probabilities, self.k)
        values = normalised(f, values)
        values = mul(f, values, index_rows(f, self.expert_scale, ids))
        return probabilities, values, ids


class Moe:
    """The sparse branch beside the MLP."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.router = Router(a, b, f"{name}.router")
        act = str(a.get("hidden_activation", "gelu_pytorch_tanh"))
        width = required(a, "moe_intermediate_size")
        self.experts = Experts(b, f"{name}.experts", required(a, "num_experts"), h, width, act)
        names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        self.dense_norm, self.after, self.before = (Norm(b, f"{name}.{n}", h, often=True) for n in names)

    def __call__(self, f: Tape, dense: Tensor, residual: Tensor) -> Tensor:
        """The dense branch's result and what both branches start from, [B, S, H] each -> their sum."""
        rows, length, h = residual.shape
        first = self.dense_norm(f, dense)
        flat = residual.view(rows * length, h)
        _, weights, ids = self.router(f, flat)
        second = self.before(f, flat)
        second = self.experts(f, second, ids, weights).view(rows, length, h)
        second = self.after(f, second)
        return add(f, first, second)
