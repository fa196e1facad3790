"""What a part of a model does to the live bytes, stretch by stretch: see engine/whole.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlint.estimate.engine.pool import Pool
    from memlint.estimate.engine.twice import Second

SAVE, STOP, CACHE, RELEASE, GRAD, HAND, PASS, LET, CAST, END = range(10)
"""What happens after a segment: a given tensor is saved, something of the part's own is, autocast caches a copy of a
parameter, a saved given tensor goes, the incoming gradient goes, a gradient for an input or a parameter is there, the
incoming one is it, the part lets go of one that it has handed out, the node of a cached copy runs, or all is done."""

Note = tuple[tuple[int, list[int]], list[int], Any]
"""Peak until an event, components then, and the event."""


class Segment:
    """A stretch of the part's run: its highest point and its end, counted from where it begins."""

    __slots__ = ("delta", "event", "growth", "highest", "rise")

    def __init__(self, before: list[int], peak: tuple[int, list[int]], now: list[int], event: Any) -> None:
        self.rise = peak[0] - sum(before)
        self.highest = [high - first for high, first in zip(peak[1], before)]
        self.delta = [(place, last - first) for place, (last, first) in enumerate(zip(now, before)) if last != first]
        self.growth = sum([size for _, size in self.delta])
        self.event = event

    def count(self, pool: Pool | Second) -> None:
        """Count it in live bytes."""
        live = pool.live
        if live + self.rise > pool.peak:
            pool.peak = live + self.rise
            pool.peak_components = [now + more for now, more in zip(pool.components, self.highest)]
        pool.live = live + self.growth
        components = pool.components
        for place, size in self.delta:
            components[place] += size


def segments(notes: list[Note], before: list[int]) -> list[Segment]:
    """What has been noted since ``before``; of saves of the part's own only the last matters."""
    last = max([n for n, (_, _, event) in enumerate(notes) if event[0] in (STOP, SAVE)], default=-1)
    made = []
    highest: tuple[int, list[int]] | None = None
    for number, (peak, now, event) in enumerate(notes):
        if highest is None or peak[0] > highest[0]:
            highest = peak
        if event[0] == STOP and number != last:
            continue
        made.append(Segment(before, highest, now, event))
        before, highest = now, None
    return made
