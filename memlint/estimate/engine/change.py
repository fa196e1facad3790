"""What one run of a block does to the live bytes, so that it can be counted again for every equal block."""

from __future__ import annotations

from copy import copy


class Repeat:
    """Storages made in the one run of a block, each of which stands for ``factor`` equal ones by now."""

    __slots__ = ("factor", "input")

    def __init__(self) -> None:
        self.factor = 1
        self.input = 0
        """Identity of the storage that the run was given: each of the equal blocks has its own."""


Peak = tuple[int, list[int]]
"""Bytes and their components."""
NONE: Peak = (0, [])
Outside = tuple[list[int], Peak, Peak]
"""What a pool held when a block began, and its peaks until then."""
Shift = tuple[tuple[int, int], ...]
"""Components, and the bytes by which they differ."""
Shifts = dict[int, Shift]
"""By which a run's live bytes differ, for one of the equal blocks, from a mark of the run on."""
Cut = tuple[Peak, Peak, int, Shift]
"""Peaks of a run until a mark, the mark, and what was then labelled anew for good."""


class Stretch:
    """A part of a block's run: each component at its highest point, counted from where the run began."""

    __slots__ = ("highest", "mark", "rise", "traced", "traced_rise")

    def __init__(self, base: list[int], peak: list[int], traced: list[int], mark: int = 0) -> None:
        self.highest = [at_peak - first for at_peak, first in zip(peak, base)]
        self.rise = sum(self.highest)
        self.traced = [at_peak - first for at_peak, first in zip(traced, base)]
        """As ``highest``, while decomposed temporaries are alive; nothing where there were none."""
        self.traced_rise = sum(self.traced)
        self.mark = mark
        """Of what came at its end; 0: the run's own end."""

    def without_decomposed(self) -> Stretch:
        """The same where no decomposed temporaries are made."""
        return Stretch([0] * len(self.highest), self.highest, [], self.mark)


class Change:
    """What one run of a block does to the live bytes: its highest points and its end, counted from the beginning."""

    __slots__ = ("end", "growth", "highest", "own", "stretches", "traced")

    def __init__(self, before: list[int], cuts: list[Cut], peak: Peak, traced: Peak, now: list[int]) -> None:
        self.own: Shifts = {}
        """What the run itself labelled anew, and its equals find so."""
        self.stretches: list[Stretch] = []
        for highest, under, mark, shift in cuts:
            self.stretches.append(Stretch(before, highest[1], under[1], mark))
            if shift:
                self.own[mark] = shift
                before = before[:]
                for component, size in shift:
                    before[component] += size
        self.stretches.append(Stretch(before, peak[1], traced[1]))
        self.highest = self.traced = self.stretches[0]
        for stretch in self.stretches[1:]:
            if stretch.rise > self.highest.rise:
                self.highest = stretch
            if stretch.traced and not (self.traced.traced and self.traced.traced_rise >= stretch.traced_rise):
                self.traced = stretch
        self.end = [last - first for last, first in zip(now, before)]
        self.growth = sum(self.end)

    def without_decomposed(self) -> Change:
        """The same where no decomposed temporaries are made."""
        made = copy(self)
        made.stretches = [stretch.without_decomposed() for stretch in self.stretches]
        made.highest = made.traced = made.stretches[self.stretches.index(self.highest)]
        return made
