"""How stages 1 and 2 of ZeRO reduce gradients: the buckets, what waits for them, and what a rank keeps.

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py, functions that comments name. The backward is that of the last
rank, to which the first gradients belong; what is kept afterwards is the fullest rank's.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.gradients import accumulate
from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.units import Unit
from memlint.estimate.zero_partition import Parts, reduced_at_once
from memlint.estimate.zero_settings import Forms
from memlint.units import DTYPE_BYTES


class Reduction:
    """Gradients of one backward on their way into a rank's part."""

    def __init__(self, stage: int, world: int, capacity: int, forms: Forms) -> None:
        """``capacity``: elements of a bucket."""
        self.stage = stage
        self.world = world
        self.capacity = capacity
        self.forms = forms
        self.size = 0
        """Bytes of a gradient's element."""
        self.buffers = 1
        """Buckets that are made whole; 0: without contiguous_gradients."""
        self.overlaps = False
        self.keeps_nothing = False
        """The optimizer is on the host."""
        self.accumulates = False
        self.parts = Parts((), world)
        self.first = self.last = self.kept = 0
        """Bytes that the first, the last and the fullest rank keep."""
        self.rank: int | None = None
        """The rank whose backward it is, where that makes a difference to what is copied."""
        self.exceeds = False
        """Whether a gradient is larger than a bucket."""
        self.sinks: list[Leaf] = []
        self.places: dict[int, int] = {}
        """id of a leaf -> where it begins in the flat order (the first of equal ones)."""
        self.layers: dict[int, list[int]] = {}
        """id of a unit -> where it begins, elements of it that train, and the most of one parameter."""
        self.bucket: Tensor | None = None
        self.partition: Tensor | None = None
        self.waiting: list[tuple[Tensor | None, int, bool]] = []
        """Gradients that are not in a buffer (None: of an earlier micro batch, added to), their elements, and whether
        this rank owns something of each."""
        self.staying: list[Tensor] = []
        """Reduced gradients that stay with their parameters."""
        self.leaving: list[Tensor] = []
        """Those that the next reduction clears (previous_reduced_grads)."""
        self.members: list[tuple[int, int]] = []
        """Places and elements of what is in the bucket."""
        self.inside: Unit | None = None
        self.full = self.copies = False
        """Whether a bucket is full in one of the equal layers, and whether it then belongs to several ranks."""
        self.filled = self.copied = self.resting = 0
        """Elements in the bucket, bytes that the last reduction copied, and bytes of earlier micro batches' gradients
        that have gone into buckets.
        """

    def settle(self, parts: Parts, size: int) -> None:
        """The model is built; ``size``: bytes of a gradient's element."""
        self.parts, self.size = parts, size
        if self.forms.compact:
            self.first = self.last = self.kept = parts.share * DTYPE_BYTES[self.forms.summed] * bool(parts.total)
            self.rank = len(parts.owned) - 1
        else:
            self.first, self.last, self.kept = parts.first * size, parts.last * size, parts.largest * size

    def norm_bytes(self, norm: int) -> int:
        """A rank's gradients, and the copy of one of them, of ``norm`` bytes an element, of which its norm is taken."""
        if not self.forms.compact:
            return self.parts.norm_bytes(self.size, norm)
        left = [self.parts.total] * len(self.parts.owned) if self.forms.leaves else [0] * len(self.parts.owned)
        held = 0
        if self.forms.leaves and self.buffers:
            # In fp32, of what others own: too large for a bucket, or a view of one. They stay until step has taken the
            # norm (grad_accum; _clear_param_grad_only, free_grad_in_param_list).
            left, held = self.parts.unowned(self.capacity), self.buffers * self.capacity * (self.world > 1)
        ranks = [most * norm + size * self.size for (_, most), size in zip(self.parts.owned, left)]
        return self.kept + rounded(held * self.size) + max([0, *ranks])

    @property
    def on_the_way(self) -> bool:
        """Whether gradients are reduced while the backward runs (process_gradients)."""
        return self.stage == 2 or self.overlaps

    @property
    def whole(self) -> bool:
        """Whether every layer must be run: what stays of it depends on its place."""
        return self.on_the_way and (not self.buffers or (self.forms.compact and self.stage == 2 and self.exceeds))

    def watch(self, leaf: Leaf, unit: Unit | None, place: int, elements: int) -> None:
        """Note a parameter that trains; ``unit``: its layer; ``place``: where it begins in the flat order."""
        self.sinks.append(leaf)
        self.exceeds = self.exceeds or elements > self.capacity
        self.places[id(leaf)] = place
        if unit is not None:
            layer = self.layers.setdefault(id(unit), [place, 0, 0])
            layer[1] += elements
            layer[2] = max(layer[2], elements)

    def begin(self, f: Tape) -> None:
        """The forward: in stage 1 setup_buckets was in the first micro batch's backward, and the buckets are there
        until the last one's is done (independent_gradient_partition_epilogue).
        """
        self.members.clear()
        self.filled = self.copied = self.resting = 0
        if self.stage == 1 and self.accumulates:
            self._make_buckets(f)

    def turned(self, f: Tape) -> None:
        """The head's backward is done. What the layers' first gradient makes is not one layer's own."""
        self._make_buckets(f)
        if self.on_the_way and self.buffers and self.parts.total > self.capacity and self.layers:
            self._make_partition(f)

    def left(self, f: Tape) -> None:
        """The backward is done with the layers: every rank has what it owns of them, the fullest most."""
        more = self.kept - self.last if self.buffers else (self.parts.largest - self.parts.last) * self.size
        if more and (self.partition is not None or (self.stage == 2 and not self.buffers)):
            self.staying.append(f.new((more,), "uint8", GRADIENTS))

    def _make_buckets(self, f: Tape) -> None:
        if self.bucket is None and self.buffers and f.pool.repeat is None:
            self.bucket = f.new((self.buffers * self.capacity,), self.forms.bucket, COMMUNICATION)

    def _make_partition(self, f: Tape) -> None:
        """copy_grads_in_partition, at the first gradient of its own that a rank has reduced."""
        rests = self.forms.compact and self.accumulates and self.stage == 2
        if self.partition is None and not self.keeps_nothing and not rests and f.pool.repeat is None:
            self.partition = f.new((self.last,), "uint8", GRADIENTS)

    def take(self, f: Tape, leaf: Leaf, grad: Tensor, unit: Unit | None) -> None:
        """process_gradients: a parameter's gradient is complete."""
        self._make_buckets(f)
        if not self.on_the_way:
            for other in self.sinks:
                other.sink = None
            accumulate(f, leaf, grad, False)
            return
        elements = prod(leaf.shape)
        if unit is not None and f.pool.repeat is not None:
            self._take_of_many(f, elements, grad, unit)
            return
        if self.members and self.filled + elements > self.capacity:
            self._reduce(f)
        place = self.places[id(leaf)]
        self.filled += elements
        self.members.append((place, elements))
        if self.buffers and elements <= self.capacity:
            self._leave_rest(f, elements, 1)
        else:
            own = place + elements > self.parts.last_begin
            self.waiting.append((self._kept(grad), elements, own))

    def _take_of_many(self, f: Tape, elements: int, grad: Tensor, unit: Unit) -> None:
        """One layer is run for several, and the bucket may be full at any parameter of any of them."""
        begin, span, most = self.layers[id(unit)]
        span *= unit.count
        if self.inside is not unit:
            self.inside = unit
            self.full = self.filled + span > self.capacity
            self.copies = self.forms.compact or self.parts.crosses(begin, begin + span)
        if self.full:
            copied = min(self.capacity, self.parts.total)
            flat, cast = copied * self.size * self.copies, copied * self.forms.wire_bytes
            f.pool.touch(max(flat + cast, (cast or flat) + most * self.forms.summed_bytes), COMMUNICATION)
        self.waiting.clear()
        self.filled = (self.filled + elements * unit.count) % self.capacity if self.capacity else 0
        self.members = [(begin, self.filled)]
        if elements <= self.capacity:
            self._leave_rest(f, elements, unit.count)
            return
        held = self._kept(grad)
        if held is None or held.storage is None:
            return
        if self.stage == 1 and self.world > 1:
            self.staying.append(held)
            return
        f.pool.hand_over(held.storage)
        self.waiting.append((held, elements, True))

    def _kept(self, grad: Tensor) -> Tensor | None:
        if self.stage == 1 and self.accumulates:
            return None
        if grad.storage is not None:
            grad.storage.relabel(GRADIENTS)
        return grad

    def _leave_rest(self, f: Tape, elements: int, count: int) -> None:
        """A gradient that an earlier micro batch left becomes a view of the bucket (stage 1)."""
        if self.stage == 1 and self.accumulates:
            f.pool.add(-rounded(elements * self.size), GRADIENTS)
            self.resting += count * rounded(elements * self.size)

    def _reduce(self, f: Tape) -> None:
        """reduce_ipg_grads: what the bucket holds is reduced, and what this rank owns copied on."""
        parts = self.parts
        if self.overlaps:
            self.leaving.clear()
        own = max(map(sum, self.members)) > parts.last_begin
        if own and self.forms.compact:
            self._make_partition(f)
        self.copied = parts.transferred(
            self.members, self.capacity, self.size, self.forms, self.rank, apart=not self.buffers
        )
        f.pool.touch(self.copied, COMMUNICATION)
        if own and self.buffers:
            self._make_partition(f)
        for grad, elements, owned in self.waiting:
            if self.buffers and (owned or self.stage == 2):
                if owned:
                    self._leave_rest(f, elements, 1)
                if owned and grad is not None and self.forms.compact and not self.forms.leaves:
                    self.staying.append(grad)
            elif grad is not None and (owned or self.stage == 1):
                self.staying.append(grad)
            elif grad is not None and self.overlaps:
                self.leaving.append(grad)
        self.waiting.clear()
        self.members.clear()
        self.filled = 0

    def _on_the_first_rank(self, f: Tape) -> None:
        """Stage 1 with overlap_comm: gradients larger than a bucket stay where a rank owns nothing of them. The first
        rank has most at the end, those of all that follow its own part beside that part.
        """
        if self.stage > 1 or not self.buffers or self.accumulates or self.keeps_nothing or self.world == 1:
            return
        here = sum([held.storage.size for held in self.staying if held.storage is not None])
        here += sum([elements * self.size for _, elements, _ in self.waiting])
        here += self.last if self.partition is not None else 0
        begin = there = 0
        for place, elements in enumerate(self.parts.sizes):
            if elements > self.capacity and (begin >= self.parts.share or not place):
                there += elements * self.size
            begin += elements
        if self.forms.compact:
            there = max([0, *self.parts.unowned(self.capacity)]) * self.size
        there += self.first + (self.copied if self.waiting else 0)
        f.pool.touch(max(0, there - here), COMMUNICATION)

    def finish(self, f: Tape, leaves: Sequence[Leaf], resting: int) -> None:
        """The epilogue; ``resting``: bytes of gradients that were there before the backward."""
        kept = self.kept
        if self.on_the_way:
            self._on_the_first_rank(f)
            if self.members:
                self._reduce(f)
        else:
            own = 0 if self.keeps_nothing else self.first
            buffered = bool(self.buffers)
            more = reduced_at_once(self.parts, self.capacity, self.size, self.forms, buffered=buffered, kept=own)
            f.pool.touch(max(0, more), COMMUNICATION)
            for leaf in leaves:
                leaf.grad = None
        self.waiting.clear()
        self.staying.clear()
        self.leaving.clear()
        self.bucket = self.partition = None
        if self.stage == 1:
            f.pool.add((0 if self.keeps_nothing else kept) - (resting - self.resting), GRADIENTS)
        elif not self.accumulates and not self.keeps_nothing:
            f.pool.add(kept, GRADIENTS)
