"""How many parameters ZeRO-3 has gathered at a time: DeepSpeed's own bookkeeping, run over the order of one step.

Source: DeepSpeed 0.19.8 runtime/zero/partitioned_param_coordinator.py, fetch_sub_module and release_sub_module. Each
module of the second or later step gathers its own parameters, then gathers ahead ``stage3_prefetch_bucket_size``
elements of those that follow, as long as fewer than ``stage3_max_live_parameters`` are there; so with prefetching that
limit is where it settles, however large the model is. A module lets its parameters go unless they were prefetched for
a later use or are used again within ``stage3_max_reuse_distance`` elements, which keeps the last layers from their
forward to their backward. ``stage3_max_live_parameters`` releases nothing by itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Iterator, Sequence

from memlint.records import dataclass

LIVE_ELEMENTS = 1_000_000_000
"""stage3_max_live_parameters: runtime/zero/config.py, DeepSpeed 0.19.8."""
REUSE_ELEMENTS = 1_000_000_000
"""stage3_max_reuse_distance, same file."""
PREFETCH_ELEMENTS = 50_000_000
"""stage3_prefetch_bucket_size, same file."""
MOST_LAYERS = 512
"""A bound on the work for a job of strange limits."""

Item = tuple[int, int]
"""Elements and bytes of one parameter."""
Sizes = tuple[int, int, int]
"""Bytes that are gathered in three parts of a step."""
Block = tuple[tuple[Item, ...], int, bool]
"""Parameters that are used together, how often that repeats, and whether they are a layer (which may be run again)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """DeepSpeed's three limits, in elements."""

    prefetch: int = PREFETCH_ELEMENTS
    live: int = LIVE_ELEMENTS
    reuse: int = REUSE_ELEMENTS


@lru_cache(maxsize=256)
def gathered_bytes(blocks: tuple[Block, ...], limits: Limits, *, recompute: bool, tied: bool) -> Sizes:
    """Return the most bytes gathered up to the backward of the output head, after it, and after the layers' backward.

    ``blocks``: the model's parameters in the order of its forward. ``tied``: the first parameter is used once more as
    the head. ``recompute``: the forward of each layer runs again before its backward.
    """
    items: list[Item] = []
    order: list[tuple[list[int], bool]] = []
    for members, repeats, is_layer in _within_reach(blocks, limits):
        for _ in range(repeats):
            order.append((list(range(len(items), len(items) + len(members))), is_layer))
            items += members
    if not items:
        return 0, 0, 0
    forward = [place for places, _ in order for place in places] + ([0] if tied else [])
    backward = [0] if tied else []
    turn = end = 0
    for places, is_layer in reversed(order):
        if is_layer and not turn:
            turn = len(forward) + len(backward)
        backward += (places if recompute and is_layer else []) + places[::-1]
        if is_layer:
            end = len(forward) + len(backward)
    return _run(items, forward + backward, limits, turn or len(forward), end or len(forward))


def _within_reach(blocks: Sequence[Block], limits: Limits) -> Iterator[Block]:
    """The blocks; of a long run of equal ones only as many as any of the limits can reach over."""
    reach = 3 * max(limits.live, limits.reuse, limits.prefetch)
    for members, repeats, is_layer in blocks:
        size = sum([elements for elements, _ in members])
        yield members, min(repeats, MOST_LAYERS, max(3, reach // max(1, size) + 2)), is_layer


def _run(items: list[Item], trace: list[int], limits: Limits, turn: int, end: int) -> Sizes:
    """The highest bytes before step ``turn`` of the trace, from it on, and from step ``end`` on."""
    passed = [0]
    for place in trace:
        passed.append(passed[-1] + items[place][0])
    following = [len(trace)] * len(trace)
    last: dict[int, int] = {}
    for step in range(len(trace) - 1, -1, -1):
        following[step] = last.get(trace[step], len(trace))
        last[trace[step]] = step
    available: set[int] = set()
    wanted = [-1] * len(items)
    """Step for which a parameter was fetched last (__most_recent_step_id_param_fetched_for)."""
    arriving: dict[int, tuple[int, list[int]]] = {}
    """Parameter -> bytes and members of the collective that brings it and has not been waited for."""
    live = size = queue = 0
    peaks = [0, 0, 0]
    for step, place in enumerate(trace):
        elements, weight = items[place]
        if place not in available:
            available.add(place)
            live += elements
            size += weight
        copied, members = arriving.get(place, (0, []))
        for member in members:
            del arriving[member]
        half = int(step >= turn) + int(step >= end)
        # AllGatherCoalescedHandle.wait: the flat output is copied out into all its parameters before it is freed.
        peaks[half] = max(peaks[half], size + (copied if len(members) > 1 else 0))
        queue = max(queue, step + 1)
        wanted[place] = max(wanted[place], step)
        most = min(limits.live - live, limits.prefetch) if limits.prefetch > 0 else 0
        ahead = ahead_bytes = 0
        members = []
        while queue < len(trace) and ahead < most:
            other = trace[queue]
            wanted[other] = max(wanted[other], queue)
            queue += 1
            if other not in available:
                available.add(other)
                ahead += items[other][0]
                ahead_bytes += items[other][1]
                members.append(other)
        live += ahead
        size += ahead_bytes
        arriving.update(dict.fromkeys(members, (ahead_bytes, members)))
        peaks[half] = max(peaks[half], size)
        after = following[step]
        reused = after < len(trace) and passed[after] - passed[step + 1] < limits.reuse
        if not reused and wanted[place] <= step:
            available.discard(place)
            live -= elements
            size -= weight
    return peaks[0], peaks[1], peaks[2]
