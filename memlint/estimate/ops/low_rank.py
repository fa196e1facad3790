"""``lora_B(lora_A(dropout(x)))`` as one operation: what its three do to memory, in their order, with one node.

Adapted models run hardly anything else, and what each node costs is most of an estimate's time.
"""

from __future__ import annotations

from memlint.estimate.engine.pool import GRADIENTS, TEMPORARIES
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor, View
from memlint.estimate.ops.basic import dropout
from memlint.estimate.ops.linear import Weight, linear


def _branch_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, None, None]:
    # The backward of two products and of dropout (ops/linear.py, ops/basic.py), each with what the engine does around
    # it (Unwinding.execute): the incoming gradient goes when the call has returned, then what was saved, then the
    # weight's gradient is accumulated.
    (shape, dtype), (rows, _), (columns, _) = node.shapes
    back, first, second = node.edges
    passed: Tensor | None = f.new((*shape[:-1], rows[0]), dtype, TEMPORARIES)
    weight = f.new(columns, dtype, GRADIENTS)
    _used(f, node, grad)
    f._accumulate(second, weight)  # type: ignore[arg-type]  # a Leaf, see branch
    del weight
    low, passed = passed, None
    if back is not None:
        passed = f.new(shape, dtype, TEMPORARIES)
    weight = f.new(rows, dtype, GRADIENTS)
    assert low is not None
    _used(f, node, low)
    f._accumulate(first, weight)  # type: ignore[arg-type]
    del low, weight
    if passed is None:
        return None, None, None
    if node.meta:
        # a new tensor, after which this function lets the product's go
        return f.new(shape, dtype, node.component), None, None
    return passed if len(shape) < 3 else View(shape, dtype, passed.storage), None, None


def _used(f: Tape, node: Node, grad: Tensor) -> None:
    """Let go of a product's incoming gradient and of what it saved: unpacked, that is the other way round."""
    if f.unpacked:
        node.saved = node.saved[:-2]
        grad.storage = None
    else:
        grad.storage = None
        node.saved = node.saved[:-2]


def branch(f: Tape, x: Tensor, first: Weight, second: Weight, p: float) -> Tensor:
    """x [..., in] -> [..., out] through weights [r, in] and [out, r], all of one dtype."""
    plain = f.alike and f.autocast is None and f.selection is None and f.grad_enabled
    if not plain or type(first.node) is not Leaf or type(second.node) is not Leaf:
        return linear(f, linear(f, dropout(f, x, p), first), second)
    shape, dtype = x.shape, x.dtype
    recorded = x.node is not None
    given = x
    saved: tuple[Tensor | None, ...] = ()
    if p:
        given = f.new(shape, dtype)
        mask = f.new(shape, "bool")
        if recorded:
            saved = f.save(mask)
        del mask
    saved += f.save(given, first if recorded else None)
    low = f.new((*shape[:-1], first.shape[0]), dtype)
    del given
    saved += f.save(low, second)
    out = f.new((*shape[:-1], second.shape[0]), dtype)
    return f.record(out, _branch_backward, (x, first, second), saved, bool(p))
