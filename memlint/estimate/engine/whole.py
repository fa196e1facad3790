"""Parts of a layer that are counted as a whole: each is measured once on a tape of its own, and becomes one node.

Layers of different kinds are made of equal parts: a norm, an adapted product, a feed-forward. What such a part does to
the live bytes depends on the shapes it is given alone. So it is run once, forward and backward, on a scratch tape, and
what it does is noted as segments between the places where it touches what is not its own: a given tensor is saved or
let go, a gradient is handed out. Wherever the part stands, these segments are counted and the places gone through.

A part must make one output, hold nothing but what its nodes save, and be followed by something that saves (what
follows the last save of a checkpointed block runs ahead of the recomputation, node by node).
"""

from __future__ import annotations

from typing import Any, Callable, Hashable, Protocol

from memlint.estimate.engine.graph import Node, Shape, Tensor
from memlint.estimate.engine.pool import Pool, Storage
from memlint.estimate.engine.profile import Profile
from memlint.estimate.engine.segments import CACHE, CAST, GRAD, HAND, LET, PASS, RELEASE, SAVE, STOP
from memlint.estimate.engine.tape import Tape
from memlint.estimate.engine.twice import Double, Second
from memlint.estimate.engine.unwinding import cast_backward, deliver


class Whole(Node):
    """The one node of a part; ``edges`` lead to its inputs, its parameters, and their copies in autocast's cache."""

    __slots__ = ()

    def unwind(self, tape: Tape) -> list[Tensor | None]:
        """Count the part's backward, and hand out its gradients."""
        profile: Profile = self.meta
        pool, edges, saved, grad = tape.pool, self.edges, list(self.saved), self.grad
        self.saved, self.grad = (), None
        held: dict[int, Tensor] = {}
        for tensor in saved[profile.saves :]:
            # Its bytes go segment by segment.
            tensor.storage.size = 0  # type: ignore[union-attr]
        tensor = None
        del saved[profile.saves :]
        for segment in profile.backward:
            segment.count(pool)
            what, place, *given = segment.event
            if what == RELEASE:
                saved[place] = None
            elif what == GRAD:
                grad = None
            elif what == HAND:
                handed(tape, held, edges[place], *given)
            elif what == PASS:
                assert grad is not None
                cast, itself, shape, dtype = given
                deliver(tape, edges[place], [grad if itself else Tensor(shape, dtype, grad.storage)], cast)
            elif what == LET:
                del held[place]
            elif what == CAST:
                _cast_back(tape, edges[place])
        return []


def _cast_back(tape: Tape, node: Any) -> None:
    """Run the node of a copy in autocast's cache: :meth:`Unwinding.execute` for a cast to a parameter's dtype."""
    grad = node.grad
    if grad is None:
        return
    leaf, ((shape, dtype),) = node.edges[0], node.shapes
    if grad.shape != shape or grad.dtype == dtype:
        grad = None
        tape.execute(node)
        return
    node.grad = None
    tape.pending.discard(node)
    made = tape.new(shape, dtype)
    grad = None
    tape._accumulate(leaf, made, True)


def handed(
    tape: Tape,
    held: dict[int, Tensor],
    edge: Any,
    cast: bool,
    number: int,
    kind: type[Tensor],
    shape: Shape,
    dtype: str,
    size: int,
    label: int,
) -> None:
    """Hand out a gradient, whose bytes have been counted; those with a number the part holds as well."""
    storage = Storage.counted(tape.pool, size, label)
    storage.repeat = tape.pool.repeat
    made = [kind(shape, dtype, storage)]
    if number:
        held[number] = Tensor(shape, dtype, storage)
    del storage
    deliver(tape, edge, made, cast)


class Layer(Protocol):
    """A module that a part is made of."""

    def describe(self, weights: list[Any]) -> Hashable:
        """Everything that its bytes depend on beside the inputs and the tape's modes, None if that cannot be said; its
        parameters go to ``weights``, in the same order for equal modules."""


class Part:
    """What a part is, whatever it is given."""

    __slots__ = ("key", "layers", "name", "trained", "weights")

    key: Hashable
    """Everything that its bytes depend on beside the inputs and the tape's modes; None: it is run as it is."""
    trained: bool

    def __init__(self, name: Hashable, *layers: Layer) -> None:
        self.name = name
        self.layers = layers
        self.weights: list[Any] | None = None

    def look(self) -> list[Any]:
        """Its parameters, read with its key when it first runs."""
        weights: list[Any] = []
        keys = [layer.describe(weights) for layer in self.layers]
        self.key = None if None in keys else (self.name, *keys)
        self.trained = any(w.node is not None for w in weights)
        self.weights = weights
        return weights


def describe(weight: Any, weights: list[Any]) -> Hashable:
    """What matters of one parameter, where there is one."""
    if weight is None:
        return False
    weights.append(weight)
    node = weight.node
    return weight.shape, weight.dtype, weight.cached, None if node is None else node.grad_dtype


def is_leaf(f: Tape, x: Tensor) -> bool:
    """Whether autocast caches its cast of a tensor, which is a leaf (see ``to_autocast``)."""
    node = x.node
    return f.autocast is not None and isinstance(node, Node) and not node.edges and node.backward is not None


def whole(f: Tape, part: Part, action: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """``action(f, *inputs)`` counted as a whole."""
    if type(f) is not Tape or not f.counts_twice or f.selection is not None:
        return action(f, *inputs)
    pool = f.pool
    if pool.watch is not None or pool.decomposed or (f.saves_left is not None and f.node_by_node):
        return action(f, *inputs)
    weights = part.look() if part.weights is None else part.weights
    if part.key is None:
        return action(f, *inputs)
    shapes: list[Hashable] = []
    copies = []
    cache = f.cast_cache
    if f.saves_left is not None and cache.shared and any(id(weight) in cache.shared for weight in weights):
        # Gradients of its copies do not end in it.
        return action(f, *inputs)
    if f.autocast is not None and cache:
        for place, weight in enumerate(weights):
            copied = cache.get(id(weight))
            if copied is not None:
                cache.found(id(weight), copied)
                copies.append((place, copied))
                shapes.append(place)
    recorded = f.grad_enabled and part.trained
    for x in inputs:
        node = x.node
        if x.storage is None or is_leaf(f, x):
            return action(f, *inputs)
        if node is not None and f.grad_enabled:
            recorded = True
        shapes.append((x.shape, x.dtype, node is None))
    again = f.second is not None or f.saves_left is not None
    like = (part.key, f.component, f.autocast, f.adapters, recorded, again, *shapes)
    profile = f.wholes.get(like)
    if profile is None:
        profile = f.wholes[like] = Profile(again)
        profile.measure(f, weights, action, inputs, copies, recorded=recorded)
    if profile.spoilt or (f.saves_left is not None and f.saves + profile.saves + profile.own_saves >= f.saves_left):
        # The recomputation may stop inside.
        return action(f, *inputs)
    return _count(f, profile, weights, inputs, [*inputs, *[copied for _, copied in copies]], recorded)


def _count(
    f: Tape, profile: Profile, weights: list[Any], inputs: tuple[Tensor, ...], given: list[Tensor], recorded: bool
) -> Tensor:
    pool, second = f.pool, f.second
    saved: list[Tensor | None] = []
    if not recorded or f._hollow:
        for segment in profile.plain:
            segment.count(pool)
            if segment.event[0] == CACHE:
                given.append(_copy(f, weights, *segment.event[1:]))
    if recorded:
        f.saving = len(f.nodes)
        f.saves += profile.own_saves
    if recorded and (second is not None or not f._hollow):
        counted: Pool | Second = pool if second is None else second
        for segment in profile.forward:
            segment.count(counted)
            what, place, *more = segment.event
            if what == SAVE:
                x = given[place]
                saved += f.save(Tensor(more[0], more[1], x.storage, x.node))
            elif what == STOP and second is not None:
                second.stop = second.peak, second.peak_components
            elif what == CACHE and second is None:
                given.append(_copy(f, weights, place, *more))
        for size, component in profile.kept:
            tensor = Tensor((size,), "uint8", None)
            if second is None:
                tensor.storage = Storage.counted(pool, size, component)
                tensor.storage.repeat = pool.repeat
            else:
                second.keeps.append((size, component, [tensor]))
            saved.append(tensor)
    elif recorded:
        f.saves += profile.saves
    out = _counted(f, *profile.out)
    if recorded:
        edges = (*[x.node for x in inputs], *[w.node for w in weights], *[x.node for x in given[len(inputs) :]])
        out.node = node = Whole(None, edges, (), tuple(saved), profile, f.component)
        f.nodes.append(node)
    return out


def _counted(f: Tape, shape: Shape, dtype: str, size: int) -> Tensor:
    """A tensor whose bytes have been counted."""
    pool, second = f.pool, f.second
    if second is None:
        storage = Storage.counted(pool, size, f.component)
    else:
        storage = Double()
        storage.pool, storage.size, storage.component = pool, size, f.component
        storage.keep, storage.second = None, second
        second.alive += 1
    storage.repeat = pool.repeat
    return Tensor(shape, dtype, storage)


def _copy(f: Tape, weights: list[Any], place: int, shape: Shape, dtype: str, size: int) -> Tensor:
    """A parameter's copy in autocast's cache."""
    weight = weights[place]
    copied = f.cast_cache[id(weight)] = _counted(f, shape, dtype, size)
    if f.grad_enabled and weight.node is not None:
        shapes = ((weight.shape, weight.dtype),)
        copied.node = Node(cast_backward, (weight.node,), shapes, (), weight.dtype, f.component)
    return copied
