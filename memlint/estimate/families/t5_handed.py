"""What T5's blocks hand to one another under reentrant checkpointing: biases, whose gradients go back the same way.

Each block takes the biases in and gives them back (transformers 5.24 models/t5/modeling_t5.py, T5Stack.forward), so
that torch.utils.checkpoint's CheckpointFunction has them among its inputs and its outputs: every block's backward is
called with their gradient, adds its own to it, and returns the sum to the block before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES, rounded
from memlint.estimate.engine.shared import make_own
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.families.bias import passed

if TYPE_CHECKING:
    from memlint.estimate.env import Env
    from memlint.estimate.families.t5 import Block
    from memlint.estimate.stack import Stack


class Handed:
    """The self-attention's bias and, in a decoder, the zeros of its cross-attention, as the first block makes them."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()
        self.shapes: list[tuple[tuple[int, ...], str]] = []
        self.ties: list[Node] = []
        """Where the gradients wait for the block before."""

    @staticmethod
    def among(env: Env) -> bool:
        """Whether checkpoints cut the graph."""
        options = env.checkpointing
        return env.checkpointed(0) and options.reentrant and options.mode != "selective"

    @classmethod
    def of(cls, env: Env, f: Tape) -> Handed | None:
        """None where checkpoints do not cut the graph."""
        return cls() if cls.among(env) and f.grad_enabled else None

    def give(self, f: Tape, made: list[Tensor], *, graph: bool) -> None:
        """Take what the first block has made as the outputs they are; ``graph``: it is not checkpointed."""
        self.shapes = [(tensor.shape, tensor.dtype) for tensor in made]
        if graph:
            self.tensors = tuple([_tied(f, tensor) for tensor in made])
            self.ties = [t.node if isinstance(t.node, Node) else _waiting() for t in self.tensors]
        else:
            self.ties = [_waiting() for _ in made]
            self.tensors = tuple([Tensor(t.shape, t.dtype, t.storage, tie) for t, tie in zip(made, self.ties)])
        for tensor in made:
            if tensor.storage is not None and tensor.storage.component == TEMPORARIES:
                tensor.storage.relabel(ACTIVATIONS)

    def run(self, f: Tape, layers: Stack, env: Env, x: Tensor, source: tuple[Tensor, ...]) -> Tensor:
        """Run a stack's blocks on x; the biases stay with the blocks that saved them."""
        layers.before = lambda f, index: self.tensors
        x = layers(f, env, x, *source)
        self.tensors = ()
        return x

    def gradients(self, f: Tape) -> list[Tensor]:
        """What a block's backward is called with; zeros for the last block's, whose biases nobody used."""
        found = []
        for tie, (shape, dtype) in zip(self.ties, self.shapes):
            grad, tie.grad = tie.grad, None
            f.pending.discard(tie)
            found.append(f.new(shape, dtype) if grad is None else grad)
        return found


def _tied_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # The node is known longer than the graph lives; the leaf behind it is not to be.
    node.edges = ()
    return (grad,)


def _tied(f: Tape, x: Tensor) -> Tensor:
    return f.record(x.detach(), _tied_backward, (x,)) if f.needs(x) else x


def _waiting() -> Node:
    return Node(None, (), (), (), None, TEMPORARIES)


def collect(f: Tape, leaf: Leaf, grad: Tensor) -> None:
    """AccumulateGrad of a tensor that is no parameter: the first gradient is kept, others are added in place."""
    if leaf.grad is None:
        own = make_own(f.pool, rounded(grad.size), f.component)
        leaf.grad = f.like(grad)
        if own and leaf.grad.storage is not None:
            f.pool.hand_over(leaf.grad.storage)
            f.pool.restart()


def run_handing(block: Block, f: Tape, x: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    """Run a block that takes in (the source and) the biases; x [B, T, H] -> [B, T, H]."""
    handed, state = block.handed, block.env.state
    assert handed is not None
    source = given[0] if block.cross is not None else None
    biases = list(given if source is None else given[1:])
    again = block.checkpointed and not f.graphless
    anchor: Node | None = None
    grads: list[Tensor] = []
    if again:
        grads = handed.gradients(f)
        x, anchor = passed(f, x, tuple(grads))
    if block.first:

        def bias(q: Tensor) -> Tensor:
            biases.append(block.bias(f, q.shape[2]))
            return biases[-1]

        def zeros(q: Tensor) -> Tensor:
            assert source is not None
            made = f.new((1, block.attention.heads, q.shape[2], source.shape[1]), q.dtype)
            if block.checkpointed:
                made.node = _waiting()
            else:
                made.node = leaf = Leaf(made.shape, made.dtype)
                leaf.sink = collect
                f.ends.append(made)
            biases.append(made)
            return made

        state["bias"], state["cross bias"] = bias, zeros
    else:
        state["bias"], state["cross bias"] = biases[0], biases[-1]
    state["source"] = source
    x = block.layers(f, x)
    for name in ("bias", "cross bias", "source"):
        del state[name]
    if anchor is not None:
        # The call of the backward holds both until it returns.
        for tensor, grad in zip(biases, grads):
            if isinstance(tensor.node, Node):
                tensor.node.grad = grad
        anchor.saved += tuple(biases)
    elif block.first:
        handed.give(f, biases, graph=not block.checkpointed)
    return x
