"""When FSDP2's buffers live: gathered parameters, the collectives' own tensors, and what is prefetched.

Source: torch 2.13 distributed/fsdp/_fully_shard, functions of which the comments name.
"""

from __future__ import annotations

import re
from typing import Callable

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.units import Unit

_FINAL_NORM = r"\w+\.(norm|norm_f|ln_f|final_layer_?norm)"
_EMBEDDING = r"(\w+\.)+(embed_tokens|embeddings|wte|embed_in|word_embeddings)"
_TEXT_EMBEDDING = r"(\w+\.)*(language_model|text_model)\.(model\.)?(embed_tokens|embeddings|wte|word_embeddings)"

_BESIDE_ATTENTION = r"model\.vision_(model|tower)\.(transformer\.)?encoder\.layers\.\d+\.(?!(self_attn|attention)\.).*"
ATTENTION_ALONE = ("idefics2", "idefics3", "ovis2", "smolvlm")
"""Types whose ``_no_split_modules`` name the attention of a tower's layers instead of the layers: transformers 5.24."""


class FullyShard:
    """The hooks of ``fully_shard`` around every unit of one model, and the state that they share (FSDPCommContext)."""

    def __init__(self, *, world: int, compute: str | None, reduce: str, reshard: bool, replicated: bool) -> None:
        self.world = world
        self.compute = compute
        """MixedPrecisionPolicy.param_dtype: shards are cast to it into one flat tensor first; None: as they are."""
        self.reduce = reduce
        self.reshard = reshard
        self.replicated = replicated
        """hsdp: the reduced part is held until the end of backward (AllReduceState)."""
        self.keeps_gradients = True
        self.embedding: Unit | None = None
        self.tail: Unit | None = None
        """accelerate's last unit: final norm and output head, with a tied embedding too; never resharded in forward."""
        self.tied = False
        self.head: str | None = None
        """Module name of the output head."""
        self.apart = False
        """A tower runs between the embedding and the layers, and no final norm stands where accelerate looks for one:
        the last unit is the head alone.
        """
        self.attention_alone = False
        """Of a tower's layers only the attention is a unit, see :data:`ATTENTION_ALONE`."""
        self.order: list[Unit] = []
        """post_forward_order."""
        self.last: Tensor | None = None
        """all_gather_state: the output that was copied out last, kept so that the next one is not gathered into it."""
        self.reducing: Tensor | None = None
        """reduce_scatter_states: the input of the last reduce-scatter, held until the next unit reduces."""
        self.reduced: list[Tensor] = []

    def end_of(self, name: str) -> Unit | None:
        """The unit of its own that takes a parameter outside all layers; None: the root keeps it."""
        if self.tail is None:
            return None
        module = name.rpartition(".")[0]
        if module == self.head or (not self.apart and re.fullmatch(_FINAL_NORM, module)):
            return self.tail
        if re.fullmatch(_TEXT_EMBEDDING if self.apart else _EMBEDDING, module):
            return self.embedding or self.tail
        return None

    def rests_in_root(self, name: str) -> bool:
        """Whether a parameter of a layer belongs to no unit of that layer."""
        return self.attention_alone and re.fullmatch(_BESIDE_ATTENTION, name) is not None

    def begin(self, f: Tape, root: Unit) -> None:
        """The forward begins: the root's own parameters, then the embedding's unit."""
        self.order, self.reduced = [], []
        self.last = self.reducing = None
        self.gather(f, root, forward=True)
        first = self.tail if self.tied else self.embedding
        if first is not None:
            self.gather(f, first, forward=True)

    def before_layers(self, f: Tape, x: Tensor) -> Tensor:
        """The embedding is done: its unit is resharded and hooks its output."""
        return x if self.apart else self.after_embedding(f, x)

    def after_embedding(self, f: Tape, x: Tensor) -> Tensor:
        """The embedding is done."""
        return x if self.embedding is None else self.post_forward(f, self.embedding, x)

    def after_layers(self, f: Tape, x: Tensor) -> Tensor:
        """The last unit begins with the final norm; a tied one began with the embedding, whose ids have no gradient."""
        return x if self.apart else self.before_tail(f, x)

    def before_tail(self, f: Tape, x: Tensor) -> Tensor:
        """The last unit begins."""
        tail = self.tail
        if tail is None:
            return x
        self.gather(f, tail, forward=True)
        return x if self.tied else self._hooked(f, x, _leave, tail)

    def after_head(self, f: Tape, x: Tensor) -> Tensor:
        """The output head is done."""
        return x if self.tail is None else self.post_forward(f, self.tail, x, stays=True)

    def run(self, f: Tape, unit: Unit, block: Callable[..., Tensor], x: Tensor, others: tuple[Tensor, ...]) -> Tensor:
        """One unit's forward between its hooks."""
        self.gather(f, unit, forward=True)
        entered = self._hooked(f, x, _leave, unit)
        out = block(f, entered, *others)
        del entered
        return self.post_forward(f, unit, out)

    def post_forward(self, f: Tape, unit: Unit, out: Tensor, *, stays: bool = False) -> Tensor:
        """FSDPParamGroup.post_forward: reshard, note the order, hook the output (_register_pre_backward_hook)."""
        if self.reshard and not stays:
            unit.buffer = None
        unit.place = len(self.order)
        self.order.append(unit)
        return self._hooked(f, out, _enter, unit)

    def end_forward(self) -> None:
        """The root's forward returns (FSDPState._post_forward): nothing is gathered after this."""
        self.last = None

    def gather(self, f: Tape, unit: Unit, *, forward: bool) -> None:
        """FSDPParamGroup.unshard and wait_for_unshard."""
        self.unshard(f, unit)
        if unit.arriving is None:
            return
        # wait_for_unshard forgets the output before, but names it until this one is copied (prev_all_gather_state).
        unit.buffer = f.new((unit.whole_bytes,), "uint8", COMMUNICATION)
        if forward:
            self.last = unit.arriving
        unit.arriving = None

    def unshard(self, f: Tape, unit: Unit) -> None:
        """foreach_all_gather: the output of the collective, beside this rank's cast shards while it is filled."""
        if unit.buffer is not None or unit.arriving is not None or not unit.gathered_bytes:
            return
        shards = None
        if self.compute is not None:
            shards = f.new((unit.gathered_bytes // self.world,), "uint8", COMMUNICATION)
        unit.arriving = _passed_on(f, f.new((unit.gathered_bytes,), "uint8", COMMUNICATION))
        del shards

    def pre_backward(self, f: Tape, unit: Unit) -> None:
        """Gather the unit, and begin to gather the one whose forward ran before it (_backward_prefetch)."""
        self.gather(f, unit, forward=False)
        if unit.place > 0:
            self.unshard(f, self.order[unit.place - 1])

    def post_backward(self, f: Tape, unit: Unit) -> None:
        """Reshard, let go of the reduction before, and reduce: foreach_reduce."""
        unit.buffer = None
        unit.reduced = True
        self.reducing = None
        if not unit.gradients:
            return
        flat = _passed_on(f, f.new((unit.gradient_elements,), self.reduce, COMMUNICATION))
        unit.gradients.clear()
        unit.owners.clear()
        part = f.new((unit.gradient_elements // self.world,), self.reduce, COMMUNICATION)
        dtype = unit.gradient_dtype
        kept = part if dtype == self.reduce else f.new(part.shape, dtype, COMMUNICATION)
        if self.replicated and kept is not part:
            self.reduced.append(part)
        del part
        if unit.keeps and self.keeps_gradients:
            assert kept.storage is not None
            kept.storage.relabel(GRADIENTS)
            f.kept.append(kept)
        unit.reduced_elements, unit.gradient_elements = unit.gradient_elements, 0
        self.reducing = flat

    def passing(self, unit: Unit) -> Passing:
        """What equal layers hand on, of which ``unit`` is the one that runs."""
        return Passing(self, unit)

    def finish(self, f: Tape, units: list[Unit]) -> None:
        """_root_post_backward_final_callback: units whose inputs had no gradient, then everything still held."""
        for unit in units:
            if not unit.reduced:
                self.post_backward(f, unit)
            unit.arriving = None
            unit.reduced = False
        self.reducing = None
        self.reduced.clear()

    def take(self, f: Tape, unit: Unit, leaf: Leaf, grad: Tensor, dtype: str) -> None:
        """A gradient of a whole parameter: held until the unit reduces; a second one (a tied weight) is added."""
        unit.keeps = leaf.grad is not True
        unit.gradient_dtype = dtype
        if grad.storage is not None:
            grad.storage.relabel(GRADIENTS)
        if id(leaf) in unit.owners:
            # As in Tape's own accumulation: the product's gradient is a view, to which nothing is added in place.
            place = unit.owners[id(leaf)]
            unit.gradients[place] = f.new(grad.shape, grad.dtype, GRADIENTS)
            return
        unit.owners[id(leaf)] = len(unit.gradients)
        unit.gradients.append(grad)
        unit.gradient_elements += padded(leaf.shape, self.world)

    def _hooked(self, f: Tape, x: Tensor, hook: Callable[[Tape, Node, Tensor], tuple[Tensor]], unit: Unit) -> Tensor:
        through = Tensor(x.shape, x.dtype, x.storage)
        return f.record(through, hook, (x,), (), (self, unit)) if f.needs(x) else x


class Passing:
    """What FSDP2 hands from layer to layer, around one that is counted like another and not run.

    In forward the output copied out last; in backward the layer's own parameters, which are under way, against those of
    the layer before, and the input of the last reduce-scatter. The unit that runs is the last one of its like in the
    order; others stand in where it was.
    """

    def __init__(self, fully: FullyShard, unit: Unit) -> None:
        self.fully, self.unit = fully, unit

    @property
    def place(self) -> int:
        """The unit's place in the order."""
        return self.unit.place

    def forward(self, tape: Tape) -> None:
        """After a layer's forward."""
        fully, unit = self.fully, self.unit
        other = Unit(gathered_bytes=unit.gathered_bytes, whole_bytes=unit.whole_bytes)
        if unit.buffer is not None:
            other.buffer = Tensor((0,), "uint8", None)
        fully.order[unit.place] = other
        unit.place = len(fully.order)
        fully.order.append(unit)
        if unit.gathered_bytes:
            fully.last = tape.new((unit.gathered_bytes,), "uint8", COMMUNICATION)

    def backward(self, tape: Tape, place: int) -> None:
        """After a layer's backward."""
        fully, unit = self.fully, self.unit
        fully.order[place].arriving = None
        before = fully.order[place - 1] if place else None
        if before is not None and before.buffer is None and before.arriving is None and before.gathered_bytes:
            before.arriving = tape.new((before.gathered_bytes,), "uint8", COMMUNICATION)
        if unit.reduced:
            fully.reducing = None
            if unit.reduced_elements:
                fully.reducing = tape.new((unit.reduced_elements,), fully.reduce, COMMUNICATION)


def padded(shape: tuple[int, ...], world: int) -> int:
    """Elements of a parameter gathered from ``world`` equal shards of its first dimension."""
    rows, rest = (shape[0], shape[1:]) if shape else (1, ())
    elements = -(-rows // world) * world
    for side in rest:
        elements *= side
    return elements


def _passed_on(f: Tape, tensor: Tensor) -> Tensor:
    """A tensor that the next unit lets go: of equal layers, one has it at a time."""
    assert tensor.storage is not None
    f.pool.hand_over(tensor.storage)
    return tensor


def _enter(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    fully, unit = node.meta
    fully.pre_backward(f, unit)
    return (grad,)


def _leave(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    fully, unit = node.meta
    fully.post_backward(f, unit)
    return (grad,)
