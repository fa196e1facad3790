"""Matrix products and lookups: F.linear, matmul of attention, embedding; with autocast as PyTorch applies it."""

from __future__ import annotations

from memlint.estimate.engine.pool import GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor, View
from memlint.estimate.ops.basic import cast, copy

_CAST = ("fp32", "fp16", "bf16")
"""What autocast casts (autocast_mode.h is_eligible: floating point, not fp64)."""


class Weight(Tensor):
    """A parameter: its storage is counted with the static bytes, its node accumulates the gradient."""

    __slots__ = ("cached", "name")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, trainable: bool, grad_dtype: str | None) -> None:
        # What Tensor does when it is made, written out: hundreds are made for an estimate.
        self.shape = shape
        self.dtype = dtype
        self.storage = None
        self.node = Leaf(shape, grad_dtype or dtype) if trainable else None
        self.name = name
        self.cached = trainable
        """Whether autocast caches its half copy: ``requires_grad`` is on, whether or not a gradient is ever made."""

    @property
    def trainable(self) -> bool:
        """Whether the parameter gets a gradient."""
        return self.node is not None


def cast_weight(f: Tape, weight: Tensor | None) -> Tensor | None:
    """autocast's ``cached_cast`` of a parameter (aten/src/ATen/autocast_mode.cpp, torch 2.13).

    The half copy of a leaf that requires a gradient is cached until autocast ends; a frozen one is cast at each use.
    """
    return None if weight is None else _cast_weight(f, weight)


def _cast_weight(f: Tape, weight: Tensor) -> Tensor:
    dtype = f.autocast
    if dtype is None or weight.dtype == dtype or weight.dtype not in _CAST:
        return weight
    cache = f.cast_cache
    cached = cache.get(id(weight))
    if cached is not None:
        cache.found(id(weight), cached)
        return cached
    copied = cast(f, weight, dtype)
    if weight.dtype != "fp32":
        return copied  # can_try_cache asks for fp32
    if weight.cached if isinstance(weight, Weight) else isinstance(weight.node, Leaf):
        cache[id(weight)] = copied
        if cache.shared:
            cache.join(f, id(weight), copied)
    return copied


def to_autocast(f: Tape, x: Tensor) -> Tensor:
    """Cast an activation for an op on autocast's lower-precision list; each use makes its own copy.

    An activation that was made to require gradients (its node leads nowhere) is a leaf, and is cached as parameters
    are. Half precision of the other kind is cast as well.
    """
    if f.autocast is None or x.dtype == f.autocast or x.dtype not in _CAST:
        return x
    if x.dtype != "fp32" or not isinstance(x.node, Node) or x.node.edges or x.node.backward is None:
        return cast(f, x, f.autocast)
    cached = f.cast_cache.get(id(x.node))
    if cached is None:
        cached = f.cast_cache[id(x.node)] = cast(f, x, f.autocast)
    return cached


def _linear_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # MmBackward0 / AddmmBackward0: gradient of the input, then of the weight; the bias gets the gradient itself and
    # validate_outputs sums it.
    grad_x = None
    if node.edges[0] is not None:
        shape = node.shapes[0][0]
        grad_x = f.new(shape, grad.dtype, TEMPORARIES)
        if len(shape) > 2:
            # The product is of [tokens, features]; ViewBackward0 gives it the input's shape.
            grad_x = View(shape, grad_x.dtype, grad_x.storage)
    grad_weight = f.new(node.shapes[1][0], grad.dtype, GRADIENTS) if node.edges[1] is not None else None
    if len(node.edges) == 2:
        return grad_x, grad_weight
    return grad_x, grad_weight, (grad if node.edges[2] is not None else None)


def linear(f: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``: x [..., in], weight [out, in] -> [..., out]; saves x for the weight and the weight for x."""
    # autocast's wrapper casts its arguments from the last to the first; the caller holds the originals meanwhile.
    if f.autocast is None:
        offset, held, given = bias, weight, x
    else:
        offset, held, given = cast_weight(f, bias), _cast_weight(f, weight), to_autocast(f, x)
    shape = (*x.shape[:-1], held.shape[0])
    if not f.grad_enabled or (given.node is None and held.node is None and (offset is None or offset.node is None)):
        return f.output("mm", shape, given.dtype)
    saved = f.save(given if held.node is not None else None, held if given.node is not None else None)
    out = f.output("mm", shape, given.dtype)
    inputs = (given, held) if offset is None else (given, held, offset)
    return f.record(out, _linear_backward, inputs, saved)


def _bmm_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = node.saved
    grad_a = f.new(node.shapes[0][0], grad.dtype) if b is not None else None
    grad_b = f.new(node.shapes[1][0], grad.dtype) if a is not None else None
    return grad_a, grad_b


def matmul(f: Tape, a: Tensor, b: Tensor, columns: int, *, copy_a: bool = False, copy_b: bool = False) -> Tensor:
    """Batched product of a [B, h, S, n] with b: result [B, h, S, columns].

    ``copy_a`` and ``copy_b``: the operand's strides do not let ``matmul`` fold its batch dimensions into one, so it is
    copied first (expand().reshape() in aten/src/ATen/native/LinearAlgebra.cpp).
    """
    # The call holds its arguments until it returns, also those that autocast or a copy has replaced.
    right = to_autocast(f, b)
    left = to_autocast(f, a)
    if copy_a:
        left = copy(f, left)
    if copy_b:
        right = copy(f, right)
    recorded = f.needs(left, right)
    kept = (left if right.node is not None else None, right if left.node is not None else None)
    saved = f.save(*kept) if recorded else ()
    del kept
    out = f.new((*left.shape[:-1], columns), left.dtype)
    return f.record(out, _bmm_backward, (left, right), saved) if recorded else out


def _embedding_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, None]:
    # embedding_dense_backward: a dense gradient of the whole table in the gradient's dtype.
    return f.new(node.shapes[0][0], grad.dtype, GRADIENTS), None


def embedding(f: Tape, weight: Tensor, ids: Tensor) -> Tensor:
    """``F.embedding``: weight [V, H], ids [...] -> [..., H]; saves the ids."""
    recorded = f.needs(weight)
    saved = f.save(ids) if recorded else ()
    out = f.new((*ids.shape, weight.shape[1]), weight.dtype)
    return f.record(out, _embedding_backward, (weight, ids), saved) if recorded else out
