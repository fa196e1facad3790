"""The backward pass, in the order in which PyTorch's engine runs the nodes (engine.cpp, input_buffer.cpp)."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from memlint.estimate.engine.gradients import validated
from memlint.estimate.engine.graph import Leaf, Node, Tensor, View, Visit
from memlint.estimate.engine.pool import TEMPORARIES
from memlint.estimate.engine.recompute import replay
from memlint.estimate.engine.repeat import revisit


def cast_backward(f: Any, node: Node, grad: Tensor) -> tuple[Tensor]:
    """ToCopyBackward0: the gradient in the dtype it had before the cast (``node.meta``)."""
    dtype: str = node.meta
    return (grad if grad.dtype == dtype else f.new(grad.shape, dtype),)


def deliver(tape: Any, edge: Any, made: list[Tensor], cast: bool) -> None:
    """Give a gradient, which the list gives away, to what it is for: the end of :meth:`Unwinding.execute`."""
    result = made.pop()
    if isinstance(edge, Leaf):
        tape._accumulate(edge, result, cast)
    elif edge.grad is None:
        edge.grad = result
        tape.pending.add(edge)
    elif type(edge.grad) is View or getrefcount(edge.grad) > 2 or getrefcount(edge.grad.storage) > 2:
        edge.grad = edge.summed(tape)


class Unwinding:
    """What a tape does in backward."""

    component: int
    ends: list[Tensor]
    nodes: list[Node]
    pending: set[Node]
    unpacked: bool

    def _accumulate(self, leaf: Leaf, grad: Tensor, cast: bool = False) -> None:
        raise NotImplementedError

    def like(self, other: Tensor, dtype: str | None = None) -> Tensor:
        """Allocate a tensor of ``other``'s shape."""
        raise NotImplementedError

    def run_backward(self, root: Tensor, grad: Tensor) -> None:
        """Run the whole tape backwards from ``root``; the tape is empty afterwards."""
        node = root.node
        if isinstance(node, Node):
            node.grad = grad
            self.pending.add(node)
        root = grad = None  # type: ignore[assignment]
        node = None
        self.unwind(0)
        self.ends.clear()

    def unwind(self, floor: int) -> None:
        """Run the nodes above ``floor`` backwards, the last first."""
        nodes = self.nodes
        while len(nodes) > floor:
            node = nodes.pop()
            if node.grad is not None or isinstance(node, Visit):
                self.execute(node)
            else:
                node.saved = ()
        self.component = TEMPORARIES

    def execute(self, node: Node) -> None:
        """Run one node on its gradient and pass the results on."""
        self.pending.discard(node)
        self.component = node.component
        backward = node.backward
        edges, shapes = node.edges, node.shapes
        tape: Any = self
        results: Any
        if backward is None:
            unwind = getattr(node, "unwind", None)
            if unwind is not None:
                results = unwind(tape)
            else:
                results = revisit(tape, node) if isinstance(node, Visit) else replay(tape, node)
        else:
            grad = node.grad
            node.grad = None
            results = backward(tape, node, grad)  # type: ignore[arg-type]
            if self.unpacked:
                node.saved = ()
            if len(results) == 1:
                # Most have one input. What follows is done for it alone, as below.
                result, edge = results[0], edges[0]
                results = None
                if result is None or edge is None:
                    edge = None
                else:
                    shape, dtype = shapes[0]
                    if result.dtype != dtype or result.shape != shape:
                        result = validated(tape, result, shape, dtype)
                grad = None
                node.saved, node.backward = (), None
                if edge is None:
                    return
                if edge.grad is None and not isinstance(edge, Leaf):
                    edge.grad = result
                    self.pending.add(edge)
                    return
                results = [result]
                result = None
                deliver(tape, edge, results, backward is cast_backward)
                return
            results = list(results)
        for index, result in enumerate(results):
            if result is None or edges[index] is None:
                results[index] = None
            else:
                shape, dtype = shapes[index]
                if result.dtype != dtype or result.shape != shape:
                    results[index] = validated(tape, result, shape, dtype)
        # call_function owns the incoming gradient and validates the outputs: it dies after that, unless it is passed
        # on.
        result = grad = None
        node.saved = ()
        node.backward = None
        for index in range(len(results)):
            result = results[index]
            results[index] = None
            edge = edges[index]
            if result is None or edge is None:
                continue
            if isinstance(edge, Leaf):
                self._accumulate(edge, result, backward is cast_backward)
            elif edge.grad is None:
                edge.grad = result
                self.pending.add(edge)
            else:
                # InputBuffer::accumulate adds in place when it holds the last reference to the gradient and its
                # storage; else the old and the new gradient and their sum are alive together.
                if type(edge.grad) is View or getrefcount(edge.grad) > 2 or getrefcount(edge.grad.storage) > 2:
                    edge.grad = edge.summed(tape)
            result = None
