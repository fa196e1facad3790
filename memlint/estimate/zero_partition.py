"""Where the parts of the ranks begin and end in the order of the parameters, for all stages of ZeRO: plain arithmetic.

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py and stage3.py, functions that the docstrings name. Sizes are
elements.
"""

from __future__ import annotations

from typing import Sequence

from memlint.estimate.records import Slot
from memlint.estimate.zero_settings import Forms


def in_order(groups: Sequence[tuple[int, Sequence[int]]], slots: Sequence[Slot]) -> list[int]:
    """Elements of every trained parameter in the order of the model, equal layers each at its place.

    ``groups``: how often a period of layers repeats, and its parameters; ``slots``: all that take part in the step.
    """
    left: dict[int, int] = {}
    for slot in slots:
        left[slot.numel] = left.get(slot.numel, 0) + slot.count
    sizes: list[int] = []
    for count, period in groups:
        # What takes no part (a tower without images) has no gradient.
        present = []
        for elements in period:
            if left.get(elements, 0) >= count:
                left[elements] -= count
                present.append(elements)
        sizes += present * count
    return sizes


class Parts:
    """The flat order of stages 1 and 2 cut into equal parts, which end anywhere inside a parameter."""

    def __init__(self, sizes: Sequence[int], world: int) -> None:
        self.sizes = sizes
        self.total = sum(sizes)
        # flatten_dense_tensors_aligned: nccl_start_alignment_factor (2) times the ranks.
        self.share = max(1, -(-self.total // (2 * world)) * 2)
        self.owned: list[tuple[int, int]] = []
        """Of each rank: elements of all parameters that it owns something of, and the most that it owns of one.

        copy_grads_in_partition makes room for ``numel`` of each, not for the rank's own share of it.
        """
        begin = whole = most = 0
        end = self.share
        for size in sizes:
            place, begin = begin, begin + size
            whole += size
            while begin >= end:
                self.owned.append((whole, max(most, end - max(place, end - self.share))))
                end += self.share
                whole, most = (size if begin > end - self.share else 0), 0
            most = max(most, begin - max(place, end - self.share))
        if whole:
            self.owned.append((whole, most))
        # All ranks that own something of the first parameter make room once that is reduced.
        beginning = self.owned[: -(-sizes[0] // self.share)] if sizes else []
        self.first = max([0, *[whole for whole, _ in beginning]])
        self.last = self.owned[-1][0] if self.owned else 0
        self.largest = max([0, *[whole for whole, _ in self.owned]])
        self.last_begin = self.share * (len(self.owned) - 1)

    def crosses(self, begin: int, end: int) -> bool:
        """Whether ``begin`` to ``end`` in the flat order belongs to more than one rank."""
        return end > begin and begin // self.share != (end - 1) // self.share

    def transferred(
        self,
        bucket: Sequence[tuple[int, int]],
        capacity: int,
        size: int,
        forms: Forms,
        rank: int | None,
        *,
        apart: bool,
    ) -> int:
        """Bytes that allreduce_bucket copies of a bucket's parameters, (place in the flat order, elements).

        It flattens, at ``size`` bytes an element, the slices of several ranks, neighbours of one rank taken together,
        in calls that close with the slice that exceeds the bucket; one slice alone is not copied. What the wire has in
        another dtype is cast. ``rank`` keeps its slices apart and adds them to its part; None: it copies them later.
        ``apart``: whole gradients go instead, in one call (buffered_reduce_fallback).
        """
        calls: list[list[int]] = [[]]
        added = filled = 0
        before = -1
        for begin, elements in bucket:
            end = begin + elements
            while begin < end:
                owner = begin // self.share
                part = min(end, (owner + 1) * self.share) - begin
                if owner == rank:
                    added = max(added, part)
                joins = begin > end - elements if apart else owner == before and owner != rank and bool(calls[-1])
                if joins:
                    calls[-1][-1] += part
                else:
                    if not apart and filled > capacity:
                        calls.append([])
                        filled = 0
                    calls[-1].append(part)
                filled += part
                before = owner
                begin += part
        most = 0
        for call in calls:
            flat = sum(call) * size if len(call) > 1 else 0
            cast = sum(call) * forms.wire_bytes
            most = max(most, flat + cast, (cast or flat) + added * forms.summed_bytes)
        return most

    def unowned(self, capacity: int) -> list[int]:
        """Of each rank: elements of the parameters larger than ``capacity`` that it owns nothing of."""
        owned = [0] * len(self.owned)
        begin = total = 0
        for elements in self.sizes:
            if elements > capacity:
                total += elements
                for rank in range(begin // self.share, (begin + elements - 1) // self.share + 1):
                    owned[rank] += elements
            begin += elements
        return [total - elements for elements in owned]

    def norm_bytes(self, size: int, norm: int) -> int:
        """The most of a rank's gradients, of ``size`` bytes an element, and a copy of one of them, of ``norm``."""
        return max([0, *[whole * size + most * norm for whole, most in self.owned]])


def reduced_at_once(parts: Parts, capacity: int, size: int, forms: Forms, *, buffered: bool, kept: int) -> int:
    """Bytes that reduce_gradients has more at its peak than all gradients and its buckets take: stage 1, at the last
    micro batch, without overlap_comm. ``size``: of an element; ``kept``: bytes of the first rank's own part.

    The parameters go through the bucket in the order of the model, and their gradients become views of it; once it is
    full, what this rank owns is copied on into its part. Without buffers they stay where they are and are flattened.
    """
    more = highest = begin = place = members = 0
    allotted = False
    own = min(parts.share, parts.total)
    rank = 0 if forms.compact else None
    bucket: list[tuple[int, int]] = []
    for elements in (*parts.sizes, 0):
        filled = place - begin
        if members and (filled + elements > capacity or not elements):
            if forms.compact and begin < own and not allotted:
                allotted = True
                more += kept
            highest = max(highest, more + parts.transferred(bucket, capacity, size, forms, rank, apart=not buffered))
            if buffered and begin < own:
                if not allotted:
                    allotted = True
                    more += kept
                    highest = max(highest, more)
                if filled > capacity:
                    more -= filled * size
            begin, members = place, 0
            bucket.clear()
        bucket.append((place, elements))
        place += elements
        members += 1
        if buffered and elements <= capacity:
            more -= elements * size
    return highest


def largest_sub_group(sizes: Sequence[int], most: int, world: int) -> int:
    """Elements of the largest part of a sub group, each of which closes with the parameter that fills it
    (stage3.py _create_fp16_sub_groups, Parameter.partition_numel).
    """
    shares = [-(-elements // world) for elements in sizes]
    if most >= sum(shares):
        return sum(shares)
    largest = filled = 0
    for share in shares:
        filled += share
        if filled >= most:
            largest = max(largest, filled)
            filled = 0
    return max(largest, filled)
