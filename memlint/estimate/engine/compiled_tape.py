"""A tape that keeps what inductor's partitioner saves of a compiled model instead of what eager derivatives save.

The rule is that of torch 2.13 _functorch/partitioners.py (min_cut_rematerialization_partition with its defaults, memory
budget 1.0), read there and held to its own choice on transformers 5.24 in tests/measure/test_compiled_saves.py:

* products, attention, lookups and whatever else is not on its list of recomputable operators are never done again
  (``ban_if_not_in_allowlist``): those of their operands that backward needs are laid down
  (``ban_if_materialized_backward``), once for all who use them (``cse``);
* elementwise work, casts, norms and softmax are done again from the nearest tensors that are laid down, or from their
  own result where that is smaller: the cut weighs bytes, twice where a tensor lives inside a fused kernel only, and 1.1
  times more for each operation further from the backward (``get_node_weight``);
* a row's mean or sum is kept (``ban_if_reduction``), and so is an elementwise result of a tensor that has already been
  used before a product: the sums of the residual stream (``ban_if_used_far_apart``);
* random numbers are drawn once: a dropout keeps its mask;
* a checkpointed block keeps its inputs, whatever form of checkpoint was asked for: dynamo makes one operator of both,
  whose inside is marked to be done again (``cleanup_recompute_tags``).

Inductor lays down what a product reads or what is kept, forward and back; all else lives inside its kernels, which may
write over a buffer that they read last. The one graph gives all gradients back together, so where they are accumulated
old and new ones stand side by side (_functorch/_aot_autograd/runtime_wrappers.py: one autograd node for the graph).
"""

from __future__ import annotations

from typing import Any, Callable, Iterable
from weakref import ref

from memlint.estimate.engine.graph import Backward, Block, Leaf, Node, Shape, Tensor
from memlint.estimate.engine.pool import ACTIVATIONS, GRADIENTS, LOGITS, TEMPORARIES, Storage
from memlint.estimate.engine.repeat import Opened
from memlint.estimate.engine.tape import Tape, cast_backward
from memlint.estimate.engine.traced import Ghost, Traced, lay_down, origins
from memlint.estimate.ops import activations, attention, basic, linear, loss, norm

CAT = basic._cat_backward
FUSED: frozenset[Backward] = frozenset(
    [
        *[value for name, value in vars(basic).items() if name.endswith("_backward") and value is not CAT],
        basic._one_like_grad,
        activations._cube_backward,
        norm._layer_norm_backward,
        attention._softmax_backward,
        loss._log_softmax_backward,
        loss._nll_backward,
    ]
)
"""Backwards of operations that inductor fuses and may do again."""


class CompiledTape(Tape):
    """One training step of a model that torch.compile has taken as one graph, its loss inside."""

    alike = False

    def __init__(self, *, donates: bool = True, together: bool = True) -> None:
        super().__init__()
        self.one_mask = True
        self.counts_twice = False
        self.donates = donates
        """What forward has saved is a buffer that backward may write to."""
        self.together = together
        """One graph gives back all gradients."""
        self.products = 0
        self.returned_logits: Tensor | None = None
        """Logits as the model returns them, then the gradient that nobody gave them."""
        self.returned: dict[int, Tensor] = {}

    def new(self, shape: Shape, dtype: str, component: int | None = None) -> Tensor:
        """Allocate a tensor."""
        size = 0 if self.dry else Tensor(shape, dtype, None).size
        return Tensor(shape, dtype, Traced(self.pool, size, self.component if component is None else component))

    def save(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Note tensors as wanted in backward; :meth:`record` decides what of them is kept."""
        self.saving = len(self.nodes)
        self.saves += sum([t is not None for t in tensors])
        if self.hollow:
            return ()
        if self.saves_left is not None and self.saves >= self.saves_left:
            self.dry = True
        return tensors

    def record(
        self,
        out: Tensor,
        backward: Backward,
        inputs: tuple[Tensor | None, ...],
        saved: tuple[Tensor | None, ...] = (),
        meta: Any = None,
    ) -> Tensor:
        """Make ``out`` the result of a node, which keeps of ``saved`` what the partitioner would."""
        if backward in FUSED:
            kept = [None if t is out else self._wanted(t) for t in saved]
            self._fuse(out, backward, inputs, saved)
            saved = tuple([self._wanted(t) if t is out else k for t, k in zip(saved, kept)])
            return super().record(out, _fused(backward), inputs, saved, meta)
        for tensor in inputs:
            self._use(tensor)
            lay_down(tensor)
        for tensor in saved:
            if tensor is not None and tensor.storage is not None:
                self._keep(tensor.storage)
        self.products += backward is not CAT
        out = super().record(out, _laid_down(backward), inputs, saved, meta)
        if backward is linear._linear_backward and self.component == LOGITS:
            self._return(out)
        return out

    def _return(self, logits: Tensor) -> None:
        """The model returns its logits: in half precision the very buffer that is saved, under autocast accelerate's
        fp32 copy of it."""
        if self.autocast is None and isinstance(logits.storage, Traced):
            logits.storage.fixed = True
            self.returned_logits = Tensor(logits.shape, logits.dtype, None)
        else:
            self.returned_logits = self.new(logits.shape, "fp32")

    def _use(self, tensor: Tensor | None) -> bool:
        # Whether a fused tensor, or a constant, was used before a product already.
        if tensor is None or not isinstance(tensor.storage, Traced):
            return False
        storage, block = tensor.storage, self.pool.repeat
        if storage.used is None:
            # What all layers share, an earlier one has used.
            shared = tensor.node is None and block is not None and storage.repeat is not block
            storage.used = -1 if shared else self.products
        return (storage.fused or tensor.node is None) and storage.used < self.products

    def _fuse(
        self, out: Tensor, backward: Backward, inputs: tuple[Tensor | None, ...], saved: tuple[Tensor | None, ...]
    ) -> None:
        far = max([self._use(tensor) for tensor in inputs])
        used = {id(t.storage): t.storage for t in inputs if t is not None and t.storage is not None}
        storage = out.storage
        if not isinstance(storage, Traced) or id(storage) in used or storage.fused:
            return
        first = inputs[0]
        if backward is cast_backward and first is not None and isinstance(first.storage, Traced):
            earlier = first.storage.casts.get(out.dtype)
            same = None if earlier is None else earlier()
            if same is not None:
                storage.dissolve(())
                out.storage = same
                return
            first.storage.casts[out.dtype] = ref(storage)
        storage.fused = True
        if far or out.size * 4 < sum([t.size for t in inputs if t is not None]):
            return
        used |= {id(t.storage): t.storage for t in saved if t is not None and t.storage not in (None, storage)}
        found = {id(origin): origin for one in used.values() for origin in origins(one)}
        if found:
            storage.dissolve(found.values())

    def _wanted(self, tensor: Tensor | None) -> Tensor | None:
        # A tensor that fused work wants in backward: itself, or what it is made of.
        if tensor is None or not isinstance(tensor.storage, Traced):
            return tensor
        held = origins(tensor.storage)
        for one in held:
            self._keep(one)
        return tensor if held[0] is tensor.storage else Ghost(tensor, held)

    def _keep(self, storage: Storage) -> None:
        if isinstance(storage, Traced):
            storage.kept = True
            storage.fixed |= not self.donates
            storage.lay_down()
        if storage.component == TEMPORARIES:
            storage.relabel(ACTIVATIONS)

    def checkpoint(self, run: Callable[..., Tensor], inputs: tuple[Tensor, ...], **options: Any) -> Tensor:
        """A checkpointed block's inputs are kept; what is inside is done again (cleanup_recompute_tags)."""
        for tensor in inputs:
            if tensor.storage is not None and not options.get("offload"):
                self._keep(tensor.storage)
            lay_down(tensor)
        out = super().checkpoint(run, inputs, **options)
        lay_down(out)
        return out

    def begin_block(self, x: Tensor, *, loose: bool = False) -> tuple[Opened, Tensor]:
        """Begin a block; its input is laid down."""
        lay_down(x)
        return super().begin_block(x, loose=loose)

    def end_block(
        self, opened: Opened, out: Tensor, others: Iterable[Tensor] = (), *shared: Any
    ) -> tuple[Block, Tensor]:
        """End a block; its output is laid down. Of what a loop's variable would hold beside it nothing is left where it
        lives inside a kernel: nobody reads it.
        """
        lay_down(out)
        others = tuple(others)
        for tensor in others:
            if isinstance(tensor.storage, Traced) and tensor.storage.size != tensor.storage.whole:
                tensor.storage = None
        return super().end_block(opened, out, others, *shared)

    def execute(self, node: Node) -> None:
        """Run one node; the gradient of a whole block is laid down."""
        if node.backward is None:
            lay_down(node.grad)
        super().execute(node)

    def unwind(self, floor: int) -> None:
        """Run the nodes above ``floor`` backwards; the gradients that they hand on are laid down."""
        super().unwind(floor)
        for node in self.pending:
            lay_down(node.grad)

    def run_backward(self, root: Tensor, grad: Tensor) -> None:
        """Run the whole tape backwards; what the graph gives back together goes at its end."""
        logits = self.returned_logits
        if logits is not None and logits.storage is None:
            self.returned_logits = self.new(logits.shape, logits.dtype, LOGITS)
        del logits
        super().run_backward(root, grad)
        self.returned.clear()

    def _accumulate(self, leaf: Leaf, grad: Tensor, cast: bool = False) -> None:
        if leaf.sink is not None:
            super()._accumulate(leaf, grad, cast)
            return
        if leaf.grad_dtype != grad.dtype:
            grad = self.new(grad.shape, leaf.grad_dtype)
        lay_down(grad)
        if grad.storage is not None and grad.storage.component != GRADIENTS:
            grad.storage.relabel(GRADIENTS)
        if leaf.grad is True:
            if self.together:
                self.returned.setdefault(id(leaf), grad)
        elif leaf.grad is None:
            leaf.grad = grad


def _fused(backward: Backward) -> Backward:
    """A derivative inside a fused kernel: its gradients are laid down only where a product takes them."""

    def run(f: Tape, node: Node, grad: Tensor) -> Any:
        pool = f.pool
        before = pool.peak, pool.peak_components
        results = backward(f, node, grad)
        held = [s for t in node.saved if t is not None for s in (t.held if isinstance(t, Ghost) else (t.storage,))]
        found = {id(one): one for one in held if one is not None}
        if grad.storage is not None:
            found |= {id(one): one for one in origins(grad.storage)}
        for result in results:
            storage = None if result is None or result.storage is grad.storage else result.storage
            if isinstance(storage, Traced) and storage.size and id(storage) not in found:
                storage.dissolve(found.values())
        pool.peak, pool.peak_components = before
        if pool.live > pool.peak:
            pool.peak, pool.peak_components = pool.live, pool.components[:]
        return results

    return run


def _laid_down(backward: Backward) -> Backward:
    def run(f: Any, node: Node, grad: Tensor) -> Any:
        lay_down(grad)
        # The gradient of the logits that nobody used has been added.
        f.returned_logits = None
        if backward is linear._embedding_backward and grad.dtype != "fp32":
            # embedding_dense_backward (_decomp/decompositions.py): gathered in fp32, then cast.
            wide = f.new(node.shapes[0][0], "fp32", GRADIENTS)
            results = backward(f, node, grad)
            del wide
            return results
        return backward(f, node, grad)

    return run
