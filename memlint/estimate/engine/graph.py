"""What the tape holds: tensors, gradient accumulators, backward nodes, and repeated blocks."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Callable, Protocol, Sequence

from memlint.estimate.engine.change import Change, Repeat
from memlint.estimate.engine.pool import Storage
from memlint.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape

Shape = tuple[int, ...]
Backward = Callable[["Tape", "Node", "Tensor"], Sequence["Tensor | None"]]


class Tensor:
    """A shape and a dtype over a storage; ``node`` is what made it differentiable (None: no gradient needed)."""

    __slots__ = ("dtype", "node", "shape", "storage")

    def __init__(self, shape: Shape, dtype: str, storage: Storage | None, node: Node | Leaf | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.node = node

    def view(self, *shape: int) -> Tensor:
        """The same storage under another shape, gradient passing through (view, transpose, unsqueeze, expand)."""
        return Tensor(shape, self.dtype, self.storage, self.node)

    def detach(self) -> Tensor:
        """The same storage without history."""
        return Tensor(self.shape, self.dtype, self.storage)

    @property
    def size(self) -> int:
        """Bytes of the elements (not rounded, not shared)."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class Made(Tensor):
    """A tensor whose fields are set by who makes it, see :meth:`Storage.begin`."""

    __slots__ = ()

    __init__ = object.__init__


class View(Tensor):
    """A gradient that in PyTorch is a view: its base holds the storage too, so nothing is added to it in place."""

    __slots__ = ()


class Leaf:
    """AccumulateGrad of one parameter."""

    __slots__ = ("awaited", "dense", "grad", "grad_dtype", "held", "shape", "sink")

    def __init__(self, shape: Shape, grad_dtype: str) -> None:
        self.shape = shape
        self.grad_dtype = grad_dtype
        self.grad: Tensor | bool | None = None
        """The accumulated gradient; True where it exists statically (accumulation) and new ones are added in place."""
        self.dense = False
        """The gradient held is no view, so a second one is added in place."""
        self.awaited = 0
        """Gradients to come before they are accumulated together; told where gradients exist statically."""
        self.held: Tensor | None = None
        """The sum of those that came."""
        self.sink: Callable[[Tape, Leaf, Tensor], None] | None = None
        """What happens to a finished gradient instead of being kept (reduce-scatter, optimizer in backward)."""

    def begin(self) -> None:
        """Forget an earlier step."""
        if self.grad is not True:
            self.grad = None
        self.dense = False
        self.awaited, self.held = 0, None


class Node:
    """One backward function: its edges, saved tensors and pending output gradient."""

    __slots__ = ("backward", "component", "edges", "grad", "meta", "saved", "shapes")

    def __init__(
        self,
        backward: Backward | None,
        edges: tuple[Node | Leaf | None, ...],
        shapes: tuple[tuple[Shape, str], ...],
        saved: tuple[Tensor | None, ...],
        meta: Any,
        component: int,
    ) -> None:
        self.backward: Backward | None = backward
        self.edges = edges
        self.shapes = shapes
        self.saved = saved
        self.meta = meta
        self.grad: Tensor | None = None
        self.component = component

    def summed(self, tape: Tape) -> Tensor:
        """A new tensor for the sum of the gradient that is there and another one."""
        assert self.grad is not None
        return tape.like(self.grad)


class Recorded(Node):
    """A node whose fields are set by who makes it, see :meth:`Storage.begin`."""

    __slots__ = ()

    __init__ = object.__init__


class Block:
    """A part of a model that is run once and stands for all equal ones; see :mod:`memlint.estimate.engine.repeat`."""

    __slots__ = (
        "backward",
        "entry",
        "forward",
        "gate",
        "given",
        "held",
        "host_bytes",
        "input_label",
        "later",
        "made",
        "moved",
        "nodes",
        "out",
        "passing",
        "recorded",
        "root",
        "steady",
        "visits",
    )

    def __init__(self, forward: Change, made: Repeat, gate: Node | None, root: Node | Leaf | None) -> None:
        self.forward = forward
        self.backward: Change | None = None
        self.made = made
        """Storages of the run forward."""
        self.later = Repeat()
        """Storages of the run backward."""
        self.gate = gate
        """Takes the gradient of the block's input; None: the input needs none."""
        self.root = root
        """What made the block's output."""
        self.nodes: list[Node | Visit] = []
        """The nodes of the run forward, until they run backward."""
        self.held: list[Any] = []
        """What checkpoints among the nodes share with the rest of the model: it goes after the last equal block."""
        self.given: list[tuple[int, Storage]] = []
        """What the nodes save of tensors from before the block: each goes during the last of the equal blocks, where
        the run backward has its mark."""
        self.entry = self.moved = 0
        """Marks of the end of the stand-in for the block's input, and of its new label."""
        self.steady = True
        """Other blocks may be counted like it."""
        self.input_label = 0
        """Component of the input at the block's end."""
        self.out: tuple[int, int] = (0, 0)
        """Bytes and component of the output."""
        self.host_bytes = (0, 0)
        """What the runs forward and backward keep in host memory."""
        self.visits = 1
        """Places on the tape whose backward is to come."""
        self.passing: Passing | None = None
        self.recorded = root is not None
        """The run forward left nodes on the tape."""

    def anew(self, *, decomposed: bool) -> Block | None:
        """The same for another step: a block of which none has been counted; None where others are not like it.

        ``decomposed``: with the temporaries that only a trace on fake tensors has.
        """
        back = self.backward
        if self.recorded and (back is None or back.own):
            return None
        forward = self.forward if decomposed else self.forward.without_decomposed()
        root = Node(None, (), (), (), None, 0) if self.recorded else None
        made = Block(forward, Repeat(), self.gate, root)
        made.backward = back if decomposed or back is None else back.without_decomposed()
        made.entry, made.moved, made.input_label, made.out = self.entry, self.moved, self.input_label, self.out
        made.host_bytes, made.visits, made.made.factor, made.later.factor = self.host_bytes, 0, 0, 0
        return made


class Visit(Node):
    """Places of a repeated block on the tape, one after the other; ``edges`` lead to what made its input."""

    __slots__ = ("block", "own", "place", "times")

    def __init__(self, block: Block, x: Tensor, component: int, times: int = 1) -> None:
        super().__init__(None, (x.node,), ((x.shape, x.dtype),), (), None, component)
        self.block = block
        self.times = times
        """How many equal blocks."""
        self.place = 0 if block.passing is None else block.passing.place
        self.own: Storage | None = None
        """The input of this one of the equal blocks, where something else had it too when the forward went on."""


class Passing(Protocol):
    """What equal blocks hand to the next one beside their output, where it differs in size from block to block."""

    @property
    def place(self) -> int:
        """Where the last of the equal blocks is."""

    def forward(self, tape: Tape) -> None:
        """Put what another of the equal blocks hands on in the place of what it was given."""

    def backward(self, tape: Tape, place: int) -> None:
        """The same on the way back, for the one that was at ``place``."""
