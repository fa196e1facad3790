"""Gradients that equal blocks add to one tensor from before them: encoder states, a position bias, a tower's states.

The block whose backward runs, the last of the forward, makes the first gradient, which stays; its equals add theirs to
it in place and let it go. So what the first one makes is the run's own: nothing of it is counted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Node, Tensor

if TYPE_CHECKING:
    from memlint.estimate.engine.pool import Pool
    from memlint.estimate.engine.tape import Tape


def _passes(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def shared(f: Tape, tensor: Tensor) -> Tensor:
    """``tensor`` as a stack's layers share it, none of which need be run apart for its first gradient."""
    if not f.grad_enabled or not isinstance(tensor.node, Node):
        # AccumulateGrad adds in a way of its own.
        return tensor
    node = Shared(_passes, (tensor.node,), ((tensor.shape, tensor.dtype),), (), None, f.component)
    node.pool = f.pool
    f.nodes.append(node)
    return Tensor(tensor.shape, tensor.dtype, tensor.storage, node)


def gate(f: Tape) -> Node:
    """A node on no tape, in which the gradients of what layers share wait for what has made it."""
    node = Shared(None, (), (), (), None, f.component)
    node.pool = f.pool
    return node


def make_own(pool: Pool, size: int, component: int) -> bool:
    """Count ``size`` bytes that the block under way makes (negative: lets go), and none of its equals.

    Whether a block is under way; the caller makes them and calls :meth:`Pool.restart`.
    """
    return pool.cut(pool.mark(), ((component, size),))


class Shared(Node):
    """The last node of the backward of a tensor that layers share: its gradient is their sum."""

    __slots__ = ("pool", "total")

    pool: Pool
    total: Tensor | None

    @property
    def grad(self) -> Tensor | None:
        """The sum so far."""
        return self.total

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            self.total = None
            return
        pool = self.pool
        if pool.repeat is None:
            self.total = value
            return
        storage = value.storage
        assert storage is not None
        old = getattr(self, "total", None)
        if old is None:
            # made already, as any of the equal blocks makes one
            make_own(pool, storage.size, storage.component)
            pool.hand_over(storage)
        else:
            assert old.storage is not None
            make_own(pool, -old.storage.size, old.storage.component)
        self.total = value
        del old, storage
        pool.restart()

    def summed(self, tape: Tape) -> Tensor:
        """A new tensor for the sum of what is there and another gradient."""
        old, pool = self.total, self.pool
        assert old is not None
        if pool.repeat is None:
            return tape.like(old)
        assert old.storage is not None
        make_own(pool, old.storage.size, tape.component)
        new = tape.like(old)
        assert new.storage is not None
        pool.hand_over(new.storage)
        pool.restart()
        return new
