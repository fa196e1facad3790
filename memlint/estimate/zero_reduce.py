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


class Reduction:
    """Gradients of one backward on their way into a rank's part."""

    def __init__(self, stage: int, world: int, capacity: int, dtype: str) -> None:
        """``capacity``: elements of a bucket; ``dtype``: in which gradients are reduced."""
        self.stage = stage
        self.world = world
        self.capacity = capacity
        self.dtype = dtype
        self.size = 0
        """Bytes of a gradient's element."""
        self.buffers = 1
        """Buckets that are made whole; 0: without contiguous_gradients."""
        self.overlaps = False
        self.keeps_nothing = False
        """The optimizer is on the host."""
        self.accumulates = False
        self.parts = Parts((), world)
        self.sinks: list[Leaf] = []
        self.places: dict[int, int] = {}
        """id of a leaf -> where it begins in the flat order (the first of equal ones)."""
        self.layers: dict[int, list[int]] = {}
        """id of a unit -> where it begins, and elements of it that train."""
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
        self.copies = False
        """Whether a bucket that is full in one of the equal layers belongs to several ranks."""
        self.filled = self.copied = self.resting = 0
        """Elements in the bucket, those that the last reduction copied, and bytes of earlier micro batches' gradients
        that have gone into buckets.
        """

    @property
    def on_the_way(self) -> bool:
        """Whether gradients are reduced while the backward runs (process_gradients)."""
        return self.stage == 2 or self.overlaps

    @property
    def whole(self) -> bool:
        """Whether every layer must be run: what stays of it depends on its place."""
        return self.on_the_way and not self.buffers

    def watch(self, leaf: Leaf, unit: Unit | None, place: int, elements: int) -> None:
        """Note a parameter that trains; ``unit``: its layer; ``place``: where it begins in the flat order."""
        self.sinks.append(leaf)
        self.places[id(leaf)] = place
        if unit is not None:
            self.layers.setdefault(id(unit), [place, 0])[1] += elements

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
        more = (self.parts.largest - self.parts.last) * self.size
        if more and (self.partition is not None or (self.stage == 2 and not self.buffers)):
            self.staying.append(f.new((more,), "uint8", GRADIENTS))

    def _make_buckets(self, f: Tape) -> None:
        if self.bucket is None and self.buffers and f.pool.repeat is None:
            self.bucket = f.new((self.buffers * self.capacity,), self.dtype, COMMUNICATION)

    def _make_partition(self, f: Tape) -> None:
        """copy_grads_in_partition, at the first gradient of its own that a rank has reduced."""
        if self.partition is None and not self.keeps_nothing and f.pool.repeat is None:
            self.partition = f.new((self.parts.last * self.size,), "uint8", GRADIENTS)

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
        begin, span = self.layers[id(unit)]
        span *= unit.count
        if self.inside is not unit:
            self.inside = unit
            self.copies = self.filled + span > self.capacity and self.parts.crosses(begin, begin + span)
        if self.copies:
            f.pool.touch(min(self.capacity, self.parts.total) * self.size, COMMUNICATION)
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
        if self.buffers:
            copied = parts.copied(self.members, self.capacity)
        else:
            copied = self.filled if len(self.members) > 1 else 0
        f.pool.touch(copied * self.size, COMMUNICATION)
        self.copied = copied
        if self.buffers and max(map(sum, self.members)) > parts.last_begin:
            self._make_partition(f)
        for grad, elements, owned in self.waiting:
            if self.buffers and (owned or self.stage == 2):
                if owned:
                    self._leave_rest(f, elements, 1)
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
        here += self.parts.last * self.size if self.partition is not None else 0
        begin = there = 0
        for place, elements in enumerate(self.parts.sizes):
            if elements > self.capacity and (begin >= self.parts.share or not place):
                there += elements * self.size
            begin += elements
        there += self.parts.first * self.size + (self.copied * self.size if self.waiting else 0)
        f.pool.touch(max(0, there - here), COMMUNICATION)

    def finish(self, f: Tape, leaves: Sequence[Leaf], resting: int) -> None:
        """The epilogue; ``resting``: bytes of gradients that were there before the backward."""
        kept = self.parts.largest * self.size
        if self.on_the_way:
            self._on_the_first_rank(f)
            if self.members:
                self._reduce(f)
        else:
            own = 0 if self.keeps_nothing else self.parts.first * self.size
            buffered = bool(self.buffers)
            more = reduced_at_once(self.parts, self.capacity, self.size, buffered=buffered, kept=own)
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


class Scatter:
    """Stage 3: gradients go through one bucket, which lives as long as the optimizer, into a rank's flat shares.

    Source: runtime/zero/stage3.py, __add_grad_to_ipg_bucket and __reduce_and_partition_ipg_grads, and runtime/comm/
    coalesced_collectives.py, reduce_scatter_coalesced.
    """

    def __init__(self, world: int, capacity: int, *, buffered: bool) -> None:
        """``capacity``: elements of the bucket; ``buffered``: contiguous_gradients."""
        self.world = world
        self.capacity = capacity
        self.whole = not buffered
        """Every layer must be run: gradients wait where they are."""
        self.size = self.total = 0
        self.layers: dict[int, int] = {}
        """id of a unit -> elements of it that train."""
        self.waiting: list[Tensor] = []
        self.members: list[int] = []
        self.filled = 0
        self.inside: Unit | None = None
        self.copies = False

    def watch(self, unit: Unit | None, elements: int) -> None:
        """Note a parameter that trains; ``unit``: its layer."""
        if unit is not None:
            self.layers[id(unit)] = self.layers.get(id(unit), 0) + elements

    def take(self, f: Tape, leaf: Leaf, grad: Tensor, unit: Unit | None) -> None:
        """reduce_independent_p_g_buckets_and_remove_grads: a parameter's gradient is complete."""
        elements = prod(leaf.shape)
        many = unit is not None and f.pool.repeat is not None
        if many and unit is not None:
            span = self.layers[id(unit)] * unit.count
            if self.inside is not unit:
                self.inside = unit
                self.copies = self.filled + span > self.capacity
            if self.copies and elements <= self.capacity:
                # One layer is run for several, and the bucket may be full at any parameter of any of them.
                f.pool.touch(min(self.capacity, span) * self.size, COMMUNICATION)
            self.waiting.clear()
            self.filled = (self.filled + elements * unit.count) % self.capacity if self.capacity else 0
            self.members = [self.filled] if self.filled else []
        else:
            if self.members and self.filled + elements > self.capacity:
                self.reduce(f)
            self.filled += elements
            self.members.append(elements)
        if elements <= self.capacity and not self.whole:
            return
        if grad.storage is not None:
            grad.storage.relabel(GRADIENTS)
            if many:
                f.pool.hand_over(grad.storage)
        self.waiting.append(grad)

    def reduce(self, f: Tape) -> None:
        """The ranks' shares of what the bucket holds are interleaved in a copy, but of one gradient that divides."""
        if len(self.members) > 1 or self.filled % self.world:
            # A parameter that many layers share comes here for each of them.
            f.pool.touch(min(self.filled, self.total) * self.size, COMMUNICATION)
        self.waiting.clear()
        self.members.clear()
        self.filled = 0
