"""Periods in a sequence of layer kinds, of which one copy is run for all."""

from __future__ import annotations

from typing import Hashable, Sequence

MIN_REPEATS = 3
"""Fewer equal periods than this are run as they are."""
MAX_PERIOD = 12
"""Longest pattern of layer kinds that is looked for (hybrid models repeat after 4 to 8 layers)."""


def groups_of(kinds: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Divide a sequence of layer kinds into (start, period, count) runs.

    A periodic run becomes its first layer, then one period from the second layer on that stands for all that follow:
    every copy of that period comes after a layer of the same kind, so the one that is really run is in its steady
    state. What is left over at the end runs as it is.
    """
    result: list[tuple[int, int, int]] = []
    start, total = 0, len(kinds)
    while start < total:
        result.append((start, 1, 1))
        period, length = _longest_run(kinds, start)
        start += 1
        count = (length - 1) // period
        if count >= MIN_REPEATS - 1:
            result.append((start, period, count))
            start += period * count
    return result


def last_apart(start: int, period: int, count: int) -> list[tuple[int, int, int]]:
    """Run the last copy as well: its backward lets go of what another unit reduced, not of an equal one's."""
    if count == 1:
        return [(start, period, count)]
    return [(start, period, count - 1), (start + period * (count - 1), period, 1)]


def _longest_run(kinds: Sequence[Hashable], start: int) -> tuple[int, int]:
    """Period and length of the periodic run at ``start`` that leaves the fewest layers to run."""
    total = len(kinds)
    best = (1, 1)
    saved = 0
    for period in range(1, min(MAX_PERIOD, (total - start) // MIN_REPEATS) + 1):
        end = start + period
        while end < total and kinds[end] == kinds[end - period]:
            end += 1
        length = end - start
        count = (length - 1) // period
        if count >= MIN_REPEATS - 1 and (count - 1) * period > saved:
            saved = (count - 1) * period
            best = (period, length)
    return best
