"""A stack of layers, of which only the least number that reaches the steady state is really run."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Sequence

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.sharding import Unit

MIN_REPEATS = 4
"""Fewer equal layers than this are run as they are: first, last, and at least two in between."""


def groups_of(kinds: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Divide a sequence of layer kinds into (start, period, count) runs.

    A run of ``n`` equal periods becomes first, middle (``n - 2`` times) and last, so that the middle one is in its
    steady state: its neighbours on both sides are of its own kind.
    """
    result: list[tuple[int, int, int]] = []
    start, total = 0, len(kinds)
    while start < total:
        period, repeats = _best_period(kinds, start)
        if repeats >= MIN_REPEATS:
            result.append((start, period, 1))
            result.append((start + period, period, repeats - 2))
            result.append((start + period * (repeats - 1), period, 1))
            start += period * repeats
        else:
            result.append((start, 1, 1))
            start += 1
    return result


def _best_period(kinds: Sequence[Hashable], start: int) -> tuple[int, int]:
    best = (1, 1)
    left = len(kinds) - start
    for period in range(1, min(12, left // MIN_REPEATS) + 1):
        pattern = kinds[start : start + period]
        repeats = 1
        while kinds[start + period * repeats : start + period * (repeats + 1)] == pattern:
            repeats += 1
        if repeats >= MIN_REPEATS and repeats * period > best[0] * best[1]:
            best = (period, repeats)
    return best


class Stack:
    """Layers of a model; ``make(build, kind, index)`` constructs one of them."""

    def __init__(
        self,
        build: Build,
        kinds: Sequence[Hashable],
        make: Callable[[Build, Any, int], Callable[..., Tensor]],
        *,
        full: bool = False,
    ) -> None:
        self.groups: list[tuple[int, list[tuple[int, Callable[..., Tensor], Unit | None]]]] = []
        self.sharding = build.sharding
        every = build.training.checkpointing.every
        total = len(kinds)
        trained = build.training.trainable_layers
        keys: list[Hashable] = [
            (kind, index % every == 0, trained is None or _trains(index, total, trained))
            for index, kind in enumerate(kinds)
        ]
        runs = [(i, 1, 1) for i in range(total)] if full or build.run_all_layers else groups_of(keys)
        for start, period, count in runs:
            build.count = count
            layers = []
            for index in range(start, start + period):
                build.layer_frozen = trained is not None and not _trains(index, total, trained)
                unit = self.sharding.unit() if self.sharding.wrap == "layer" else None
                layers.append((index, make(build, kinds[index], index), unit))
            build.layer_frozen = False
            self.sharding.current = build.root
            self.groups.append((count, layers))
        build.count = 1

    def __call__(self, f: Tape, env: Env, x: Tensor, *others: Tensor) -> Tensor:
        """Run the layers on x; ``others`` go to each layer as they are (encoder states, position biases)."""
        held = None
        for count, layers in self.groups:
            repeat = f.repeat_begin(count, (x,))
            for index, layer, unit in layers:
                if unit is None:
                    x = env.call(f, layer, index, x, *others)
                else:
                    x = self.sharding.run(f, unit, _Call(env, layer, index), x, *others)
                held, env.left = env.left, None
            f.repeat_end(repeat, (x,) if held is None else (x, held))
        return x


class _Call:
    """One layer with its checkpointing, as the sharding wrapper calls it (FSDP wraps outside the checkpoint)."""

    __slots__ = ("env", "index", "layer")

    def __init__(self, env: Env, layer: Callable[..., Tensor], index: int) -> None:
        self.env, self.layer, self.index = env, layer, index

    def __call__(self, f: Tape, *inputs: Tensor) -> Tensor:
        return self.env.call(f, self.layer, self.index, *inputs)


def _trains(index: int, total: int, trained: int) -> bool:
    """method freeze: the last ``trained`` layers train (a negative number: the first ones)."""
    return index >= total - trained if trained >= 0 else index < -trained
