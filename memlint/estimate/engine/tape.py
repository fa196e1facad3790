"""The tape of one step and its backward pass, in the order in which PyTorch's engine runs the nodes.

Source: torch/csrc/autograd/engine.cpp, input_buffer.cpp, functions/accumulate_grad.h and python_variable saving rules
of torch 2.13: inputs are saved before the kernel runs, gradients are moved into a node's call and freed when it
returns, saved tensors are released after the call and before the results are accumulated.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Callable, Iterable

from memlint.estimate.engine.casts import Casts
from memlint.estimate.engine.change import Repeat
from memlint.estimate.engine.gradients import accumulate
from memlint.estimate.engine.graph import Backward, Block, Made, Passing, Recorded
from memlint.estimate.engine.graph import Leaf as Leaf
from memlint.estimate.engine.graph import Node as Node
from memlint.estimate.engine.graph import Shape as Shape
from memlint.estimate.engine.graph import Tensor as Tensor
from memlint.estimate.engine.graph import View as View
from memlint.estimate.engine.lingering import linger, release
from memlint.estimate.engine.pool import (
    ACTIVATIONS,
    DECOMPOSED,
    TEMPORARIES,
    Decomposed,
    Pool,
    Storage,
)
from memlint.estimate.engine.recompute import checkpoint
from memlint.estimate.engine.repeat import Opened, count_again
from memlint.estimate.engine.twice import Second
from memlint.estimate.engine.unwinding import Unwinding
from memlint.estimate.engine.unwinding import cast_backward as cast_backward
from memlint.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memlint.estimate.engine.selective import Selection


class Tape(Unwinding):
    """One training step under way: a pool, the graph built so far, and the modes PyTorch would be in."""

    alike = True
    """What a layer does to the live bytes depends on its input alone, not on the layers before."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.nodes: list[Node] = []
        self.grad_enabled = True
        self.evaluating = False
        """The model is in eval mode, which leaves dropout out."""
        self.autocast: str | None = None
        self.cast_cache = Casts()
        """Autocast's weight cache: id of the parameter -> its half-precision copy, alive until autocast ends."""
        self.component = TEMPORARIES
        """Component of tensors made now."""
        self.adapters = True
        """False: PEFT's ``disable_adapter()``, in which an adapted layer is its base layer alone."""
        self.saves_left: int | None = None
        """Non-reentrant recomputation stops after this many saves (early stop); None: no limit."""
        self.dry = False
        """Recomputation has stopped: what follows takes no memory."""
        self.saves = 0
        self.one_kernel_silu = False
        """silu_backward runs as CUDA's one kernel; False: decomposed, as in the reference traces (see ops/basic.py)."""
        self._hollow = self.hollow_asked = False
        self.second: Second | None = None
        """Inside a checkpointed forward that counts its recomputation as well."""
        self.counts_twice = True
        """Whether one may."""
        self.graphless = False
        """Inside the forward of a reentrant checkpoint, which runs without a graph."""
        self.one_mask = False
        """What sdpa makes of a boolean mask is made once, not in every layer: compiled."""
        self.lingering: list[tuple[Tensor, Repeat | None]] = []
        """What Python nodes hold in attributes of their own, and the equal blocks it stands for."""
        self.saving = -1
        """Index of the node whose saves were the last ones."""
        self.unpacked = False
        """Inside the backward of a non-reentrant recomputation: an unpacked tensor has no owner but the call itself,
        while a saved variable is released only after the outputs are validated (utils/checkpoint.py pops it,
        engine.cpp)."""
        self.selection: Selection | None = None
        """Inside a selectively checkpointed block: which outputs are kept."""
        self.pending: set[Node] = set()
        self.beside: list[list[Tensor]] = []
        self.recalled: list[list[Tensor]] = []
        """What checkpoints inside of the one whose forward, or recomputation, is under way hold by keyword."""
        self.around: tuple[int, list[Node]] = 0, []
        """Where the nodes of the innermost recomputation begin, and the gates of its inputs."""
        self.wholes: dict[Any, Any] = {}
        """What parts that are counted as a whole do (engine/whole.py)."""
        self.node_by_node = False
        """Something looks for what each node saves: nothing that is run again is counted as a whole."""
        self.host_bytes = 0
        """Checkpoint inputs kept in host memory."""
        self.ends: list[Tensor] = []
        """Leaves of the graph that are no parameters, with their gradients: alive until backward has returned."""
        self.kept: list[Tensor] = []
        """What lives until the gradients are cleared: a rank's parts of reduced gradients."""

    @property
    def hollow(self) -> bool:
        """Inside a checkpointed forward: saves are counted, not kept. Whoever asks does something else there."""
        self.hollow_asked = True
        return self._hollow

    @hollow.setter
    def hollow(self, value: bool) -> None:
        self._hollow = value

    @property
    def inside(self) -> bool:
        """Inside a checkpoint or a block."""
        return self._hollow or self.saves_left is not None or self.pool.repeat is not None

    def new(self, shape: Shape, dtype: str, component: int | None = None) -> Tensor:
        """Allocate a tensor."""
        size = 0 if self.dry else (prod(shape) * DTYPE_BYTES[dtype] + 511) & ~511
        pool = self.pool
        if component is None:
            component = self.component
        elif component == DECOMPOSED:
            return Tensor(shape, dtype, Decomposed(pool, size))
        if self.second is not None:
            return self.second.new(pool, shape, dtype, size, component)
        # What Storage and Tensor do when they are made, without calling either: this is where an estimate's time goes.
        storage = Storage()
        storage.pool = pool
        storage.size = size
        storage.component = component
        storage.repeat = pool.repeat
        live = pool.live = pool.live + size
        components = pool.components
        components[component] += size
        if live > pool.peak:
            pool.peak = live
            pool.peak_components = components[:]
        if pool.watch is not None:
            pool.watch(storage, size)
        tensor: Tensor = Made()
        tensor.shape = shape
        tensor.dtype = dtype
        tensor.storage = storage
        tensor.node = None
        return tensor

    def buffer(self, size: int, hollow: int) -> Tensor:
        """Allocate a buffer of ``size`` bytes; a checkpointed forward, which keeps nothing, has ``hollow`` of it."""
        if self.second is not None:
            return self.second.uneven(self.pool, hollow, size, self.component)
        return self.new((hollow if self._hollow else size,), "uint8")

    def output(self, op: str, shape: Shape, dtype: str) -> Tensor:
        """Allocate the result of an operation that selective checkpointing may keep (``mm``, ``attention``)."""
        return self.new(shape, dtype) if self.selection is None else self.selection.output(self, op, shape, dtype)

    def like(self, other: Tensor, dtype: str | None = None) -> Tensor:
        """Allocate a tensor of ``other``'s shape."""
        return self.new(other.shape, dtype or other.dtype)

    def save(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Note tensors as saved for backward; call before the output is allocated when the op saves inputs."""
        self.saving = len(self.nodes)
        if self._hollow:
            for tensor in tensors:
                if tensor is not None:
                    self.saves += 1
            return () if self.second is None else self.second.save(tensors)
        for tensor in tensors:
            if tensor is not None:
                self.saves += 1
                storage = tensor.storage
                if storage is not None and storage.component == TEMPORARIES:
                    storage.relabel(ACTIVATIONS)
        if self.saves_left is not None and self.saves >= self.saves_left:
            self.dry = True
        return tensors

    def linger(self, tensor: Tensor) -> None:
        """Hold a tensor as long as the graph lives: an attribute of a Python node (``ctx.tensors = ...``).

        PyTorch frees saved tensors as the backward runs, and checkpoints pack them; it knows nothing of attributes.
        """
        linger(self, tensor)

    def release(self) -> None:
        """Let go what :meth:`linger` holds: the loss is gone, and with it the graph."""
        release(self)

    def record(
        self,
        out: Tensor,
        backward: Backward,
        inputs: tuple[Tensor | None, ...],
        saved: tuple[Tensor | None, ...] = (),
        meta: Any = None,
    ) -> Tensor:
        """Make ``out`` the result of a node whose ``backward(tape, node, grad)`` gives one gradient per input."""
        node = Recorded()
        if len(inputs) == 1 and inputs[0] is not None:
            first = inputs[0]
            node.edges = (first.node,)
            node.shapes = ((first.shape, first.dtype),)
        elif len(inputs) == 2:
            a, b = inputs
            node.edges = (None if a is None else a.node, None if b is None else b.node)
            node.shapes = (
                ((), "") if a is None else (a.shape, a.dtype),
                ((), "") if b is None else (b.shape, b.dtype),
            )
        else:
            node.edges = tuple([None if t is None else t.node for t in inputs])
            node.shapes = tuple([((), "") if t is None else (t.shape, t.dtype) for t in inputs])
        node.backward = backward
        node.saved = saved
        node.meta = meta
        node.grad = None
        node.component = self.component
        self.nodes.append(node)
        out.node = node
        return out

    def needs(self, *tensors: Tensor | None) -> bool:
        """Whether an op over these tensors is recorded."""
        if not self.grad_enabled:
            return False
        for tensor in tensors:  # noqa: SIM110 (asked for every operation: a generator takes twice as long)
            if tensor is not None and tensor.node is not None:
                return True
        return False

    def checkpoint(
        self,
        run: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        *,
        reentrant: bool,
        offload: bool = False,
        custom: bool = False,
        selection: Selection | None = None,
        keywords: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """``torch.utils.checkpoint``, see :func:`memlint.estimate.engine.recompute.checkpoint`."""
        options = {"reentrant": reentrant, "offload": offload, "custom": custom}
        return checkpoint(self, run, inputs, **options, selection=selection, keywords=keywords)

    def _accumulate(self, leaf: Leaf, grad: Tensor, cast: bool = False) -> None:
        accumulate(self, leaf, grad, cast)

    def begin_block(self, x: Tensor, *, loose: bool = False) -> tuple[Opened, Tensor]:
        """Begin a part of the model that is run once and stands for all equal ones; the input to run it on.

        ``loose``: something outside may hold the input of this one longer than the block does.
        """
        opened = Opened(self, x, loose=loose)
        return opened, opened.entry()

    def end_block(
        self,
        opened: Opened,
        out: Tensor,
        others: Iterable[Tensor] = (),
        shared: Iterable[Any] = (),
        passing: Passing | None = None,
    ) -> tuple[Block, Tensor]:
        """End the part begun by :meth:`begin_block`; the block, and its output.

        ``others`` are what else the next block takes over. ``shared`` is what the backward of all equal blocks holds.
        """
        return opened.end(self, out, others, shared, passing)

    def repeat_block(self, block: Block, x: Tensor, times: int = 1) -> Tensor:
        """Count blocks like one that has run, one after the other: their output stands in the place of ``x``."""
        return count_again(self, block, x, times)
