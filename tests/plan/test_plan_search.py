"""The search finds the cheapest accepted choice, wherever remedies save what their order says."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.job import TrainingJob
from memlint.plan.evaluate import Evaluator
from memlint.plan.limits import largest
from memlint.plan.remedy import CATEGORIES, Cost, Remedy, price
from memlint.plan.search import Search
from memlint.plan.space import Dimension

COST = Cost(sentence="none", source="a test")
PLAIN = ("loss", "checkpointing", "optimizer", "batch", "sharding")


def remedy(dimension, number, category, rank):
    return Remedy(
        name=f"{dimension}-{number}",
        dimension=dimension,
        words=dimension,
        changes={f"{dimension}": number},
        cost=COST,
        rank={category: rank},
    )


@st.composite
def worlds(draw):
    """Dimensions with growing prices, and what each remedy saves: more at each step."""
    dimensions, savings = [], {}
    for name in draw(st.lists(st.sampled_from(PLAIN), min_size=1, unique=True)):
        category = draw(st.sampled_from(CATEGORIES[1:]))
        count = draw(st.integers(1, 3))
        steps = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
        dimensions.append(
            Dimension(name=name, remedies=tuple(remedy(name, n, category, n) for n in range(1, count + 1)))
        )
        for number in range(1, count + 1):
            savings[name, number] = sum(steps[:number])
    return tuple(dimensions), savings


def evaluator(dimensions, savings, calls=None):
    def try_changes(changes):
        if calls is not None:
            calls.append(changes)
        size = 200 - sum(savings[item] for item in changes.items())
        estimate = SimpleNamespace(device_bytes=size, highest_bytes=size)
        return SimpleNamespace(estimate=estimate, text="text", edits=(), job=None)

    return Evaluator(
        dimensions=dimensions,
        job=TrainingJob(model="m"),
        dialect="native",
        try_changes=try_changes,
        writable=lambda changes: True,
    )


def every(evaluate):
    return [
        (price(evaluate.remedies(choice)), evaluate(choice).estimate.device_bytes)
        for choice in itertools.product(*[range(len(one.remedies) + 1) for one in evaluate.dimensions])
    ]


@settings(max_examples=200, deadline=None)
@given(worlds(), st.integers(0, 220))
def test_the_cheapest_accepted_choice_is_found(world, limit):
    dimensions, savings = world
    found = Search(evaluator(dimensions, savings)).cheapest(lambda estimate: estimate.device_bytes <= limit)
    wanted = min((cost for cost, size in every(evaluator(dimensions, savings)) if size <= limit), default=None)
    assert (price(found[1].remedies) if found else None) == wanted


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_the_lowest_peak_is_found(world):
    dimensions, savings = world
    _, outcome = Search(evaluator(dimensions, savings)).lowest()
    assert outcome.estimate.device_bytes == min(size for _, size in every(evaluator(dimensions, savings)))


def test_most_combinations_are_never_predicted():
    dimensions = tuple(
        Dimension(name=name, remedies=tuple(remedy(name, n, category, n) for n in range(1, 5)))
        for name, category in zip(PLAIN, CATEGORIES[1:], strict=False)
    )
    savings = {(one.name, n): 8 * n for one in dimensions for n in range(1, 5)}
    calls = []
    Search(evaluator(dimensions, savings, calls)).cheapest(lambda estimate: estimate.device_bytes <= 90)
    assert len(calls) < 100 < 5**5


def test_what_cannot_be_written_is_no_remedy():
    dimension = Dimension(name="loss", remedies=(remedy("loss", 1, "kernel", 1),))
    made = Evaluator(
        dimensions=(dimension,),
        job=TrainingJob(model="m"),
        dialect="native",
        try_changes=lambda changes: None,
        writable=lambda changes: False,
    )
    assert made.dimensions == ()


def test_a_free_remedy_that_raises_the_peak_is_left_out():
    dimensions = (
        Dimension(name="precision", remedies=(remedy("precision", 1, "free", -1),)),
        Dimension(name="loss", remedies=(remedy("loss", 1, "kernel", 1),)),
    )
    harmful = evaluator(dimensions, {("precision", 1): -5, ("loss", 1): 50})
    choice, _ = Search(harmful).cheapest(lambda estimate: estimate.device_bytes <= 160)
    assert choice == (0, 1)
    harmless = evaluator(dimensions, {("precision", 1): 0, ("loss", 1): 50})
    choice, _ = Search(harmless).cheapest(lambda estimate: estimate.device_bytes <= 160)
    assert choice == (1, 1)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 50), st.integers(0, 3000), st.integers(0, 2), st.integers(1, 400), st.integers(0, 2000))
def test_the_largest_value_that_fits_is_exact(slope, fixed, curve, start, room):
    def size(n):
        return fixed + slope * n + curve * n * n // 7

    found = largest(lambda n: size(n) <= room, size, room, start, 400)
    assert found == max((n for n in range(1, 401) if size(n) <= room), default=None)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4096), st.integers(1, 100_000), st.integers(1, 64))
def test_few_tries_are_enough_where_something_else_than_the_size_decides(limit, room, start):
    """An evaluation or the host may be what is full: the secant then points anywhere."""
    tried = set()

    def fits(n):
        tried.add(n)
        return n <= limit

    assert largest(fits, lambda n: 10 * n, room, start, 4096) == limit
    assert len(tried) <= 50
