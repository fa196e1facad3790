"""Find the cheapest choice that is accepted, without predicting every combination.

Choices are compared by price, the dearest category first, so those of one price prefix lie side by side when sorted. A
group is entered only when its strongest member is accepted: what the most saving choice of the group does not reach, no
other choice of it reaches. Tests compare with predicting everything.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Callable, Iterator

from memlint.plan.evaluate import Choice, Evaluator, Outcome
from memlint.plan.remedy import CATEGORIES, price

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate

Accept = Callable[["Estimate"], bool]


class Search:
    """Every choice of an evaluator's dimensions, sorted by price."""

    def __init__(self, evaluator: Evaluator, order: tuple[str, ...] = CATEGORIES) -> None:
        """``order`` names the categories from cheapest to dearest."""
        self._evaluate = evaluator
        self._order = order
        sizes = [range(len(dimension.remedies) + 1) for dimension in evaluator.dimensions]
        names = [dimension.name for dimension in evaluator.dimensions]
        buffers = [place for place, name in enumerate(names) if name in _BUFFERS]
        divided = names.index("sharding") if "sharding" in names else None
        choices = [
            choice
            for choice in product(*sizes)
            # What contradiction() calls the buffers of a replaced config.
            if divided is None or not choice[divided] or not any(choice[place] for place in buffers)
        ]
        priced = [(price(evaluator.remedies(choice), order), choice) for choice in choices]
        priced.sort()
        self._prices = [cost for cost, _ in priced]
        self._choices = [choice for _, choice in priced]
        self._apart = [_apart(evaluator, order[len(order) - depth :]) for depth in range(len(order) + 1)]
        """By depth, which is the number of categories whose price is given, dearest first."""
        self._probed: dict[tuple[int, int], tuple[Choice, ...]] = {}
        self._lowest: tuple[Choice, Outcome] | None = None

    def cheapest(self, accept: Accept) -> tuple[Choice, Outcome] | None:
        """Return the accepted choice of the lowest price, or None."""
        found = self._find(accept, 0, len(self._choices), 0)
        return self._without_harm(found, accept) if found is not None else None

    def _find(self, accept: Accept, low: int, high: int, depth: int) -> Choice | None:
        if self._prices[low] == self._prices[high - 1]:
            return next((choice for choice in self._choices[low:high] if self._accepted(choice, accept)), None)
        if not any(self._accepted(choice, accept) for choice in self._probes(low, high, depth)):
            return None
        start = low
        while start < high:
            value = self._prices[start][depth]
            end = start + 1
            while end < high and self._prices[end][depth] == value:
                end += 1
            found = self._find(accept, start, end, depth + 1)
            if found is not None:
                return found
            start = end
        return None

    def _accepted(self, choice: Choice, accept: Accept) -> bool:
        outcome = self._evaluate(choice)
        return outcome is not None and accept(outcome.estimate)

    def _probes(self, low: int, high: int, depth: int) -> Iterator[Choice]:
        """The members of a group that could save most: near the choice of the smallest peak, and the strongest."""
        key = (low, high)
        if key not in self._probed:
            least = self.lowest()
            near: list[Choice] = []
            if least is not None:
                goal = least[0]
                near = self._possible(
                    self._choices[low:high],
                    lambda choice: (sum(a == b for a, b in zip(choice, goal, strict=True)), sum(choice)),
                )
            self._probed[key] = tuple(dict.fromkeys(near + self._strongest(low, high, depth)))
        yield from self._probed[key]

    def _strongest(self, low: int, high: int, depth: int) -> list[Choice]:
        """The strongest possible members of a group: one for each way to shard and each optimizer in it.

        These two are no ladder: which saves most depends on the model (Adafactor's step holds copies of the largest
        matrix) and on each other. Nor are dimensions that share a category, where one is bought instead of the other,
        nor the first step of a smaller micro batch, which brings accumulation: gradients stay alive in the forward.
        Kernels and buffers are ladders all, so as long as their price is open the strongest takes all of them.
        """
        places = self._apart[depth]
        members: dict[Choice, list[Choice]] = {}
        for choice in self._choices[low:high]:
            members.setdefault(tuple(min(choice[place], most) for place, most in places), []).append(choice)
        found: list[Choice] = []
        for way in sorted(members, key=lambda way: (sum(way), way), reverse=True):
            found += self._possible(members[way], sum)
        return found

    def _possible(self, choices: list[Choice], strength: Callable[[Choice], Any]) -> list[Choice]:
        """The strongest possible one of some choices, as a list of one or none."""
        from heapq import nlargest

        for choice in nlargest(_TRIED, choices, key=strength):
            if self._evaluate.possible(choice):
                return [choice]
        return []

    def _without_harm(self, choice: Choice, accept: Accept) -> tuple[Choice, Outcome] | None:
        """Leave out what is free but raises the peak here (autocast's half copies of fp32 weights may)."""
        outcome = self._evaluate(choice)
        assert outcome is not None
        for place, number in enumerate(choice):
            if not number or self._evaluate.dimensions[place].remedies[number - 1].rank.get("free", 0) >= 0:
                continue
            less = (*choice[:place], 0, *choice[place + 1 :])
            other = self._evaluate(less)
            if other is not None and accept(other.estimate) and _peak(other) < _peak(outcome):
                choice, outcome = less, other
        return choice, outcome

    def lowest(self) -> tuple[Choice, Outcome] | None:
        """Return the choice of the smallest peak: from the strongest, dimension by dimension as long as it helps."""
        if self._lowest is None:
            starts = [
                choice for choice in self._strongest(0, len(self._choices), 0) if self._evaluate(choice) is not None
            ]
            if starts:
                self._lowest = self._descend(min(starts, key=self._size))
        return self._lowest

    def _size(self, choice: Choice) -> int:
        outcome = self._evaluate(choice)
        assert outcome is not None
        return _peak(outcome)

    def _descend(self, choice: Choice) -> tuple[Choice, Outcome]:
        outcome = self._evaluate(choice)
        assert outcome is not None
        improved = True
        while improved:
            improved = False
            for place, dimension in enumerate(self._evaluate.dimensions):
                if dimension.name in _MONOTONE:
                    continue
                for number in (0, 1) if dimension.name == "batch" else range(len(dimension.remedies) + 1):
                    other_choice = (*choice[:place], number, *choice[place + 1 :])
                    other = self._evaluate(other_choice)
                    if other is not None and _peak(other) < _peak(outcome):
                        choice, outcome, improved = other_choice, other, True
        return choice, outcome


_BUFFERS = ("buckets", "gathering", "persistence", "sub-group")

_MONOTONE = ("attention", "loss", *_BUFFERS)
"""Dimensions whose last remedy never needs more than the others."""

_NO_LADDER = ("optimizer", "sharding")

_TRIED = 12
"""How many of a group's strongest members are tried for one that is possible."""


def _apart(evaluator: Evaluator, given: tuple[str, ...]) -> list[tuple[int, int]]:
    """Places of the dimensions that are no ladder or not alone in a category, and how many options are told apart.

    One whose stronger option never needs more counts only in a category whose price is ``given``.
    """
    paid: dict[str, set[int]] = {}
    for place, dimension in enumerate(evaluator.dimensions):
        for remedy in dimension.remedies:
            for category in remedy.rank:
                if category != "free":
                    paid.setdefault(category, set()).add(place)
    shared = {
        place
        for category, places in paid.items()
        for place in places
        if len(places) > 1 and (category in given or evaluator.dimensions[place].name not in _MONOTONE)
    }
    named = {place for place, one in enumerate(evaluator.dimensions) if one.name in _NO_LADDER}
    batch = [(place, 1) for place, one in enumerate(evaluator.dimensions) if one.name == "batch"]
    return [(place, len(evaluator.dimensions[place].remedies)) for place in sorted(shared | named)] + batch


def _peak(outcome: Outcome) -> int:
    return outcome.estimate.highest_bytes
