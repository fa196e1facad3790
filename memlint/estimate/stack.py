"""A stack of layers, of which only the least number that reaches the steady state is really run."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Sequence

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.units import Unit

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


def _last_apart(start: int, period: int, count: int) -> list[tuple[int, int, int]]:
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
        self.after: Callable[[Tape, Env, int, Tensor], Tensor] | None = None
        """What the model does with the output of a layer, outside its checkpoint; for layers below ``build.apart``."""
        self.apart = build.apart
        self.before: Callable[[Tape, int], tuple[Tensor, ...]] | None = None
        """Further inputs of a layer, made outside its checkpoint (its part of a tensor that holds all layers')."""
        self.keeps = False
        """The model keeps every layer's output (output_hidden_states) until :meth:`forget`."""
        self.kept: list[tuple[Tensor, int]] = []
        every = build.training.checkpointing.every
        total = len(kinds)
        trained = build.training.trainable_layers
        keys: list[Hashable] = [
            (kind, index % every == 0, trained is None or _trains(index, total, trained), min(index, build.apart))
            for index, kind in enumerate(kinds)
        ]
        runs = [(i, 1, 1) for i in range(total)] if full or build.run_all_layers else groups_of(keys)
        if self.sharding.fully is not None:
            runs = [part for run in runs for part in _last_apart(*run)]
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
        _settle((env.state, others))
        fully = self.sharding.fully
        if fully is not None:
            x = fully.before_layers(f, x)
        for count, layers in self.groups:
            repeat = f.repeat_begin(count, (x,))
            for index, layer, unit in layers:
                given = others if self.before is None else (*others, *self.before(f, index))
                if unit is None:
                    x = env.call(f, layer, index, x, *given)
                else:
                    x = self.sharding.run(f, unit, _Call(env, layer, index), x, *given)
                del given
                held, env.left = env.left, None
                if index < self.apart and self.after is not None:
                    x = self.after(f, env, index, x)
                if self.keeps:
                    self.kept.append((x, count if layer is layers[-1][1] else 1))
            f.repeat_end(repeat, (x,) if held is None else (x, held))
        return x if fully is None else fully.after_layers(f, x)

    def forget(self, f: Tape) -> None:
        """Let the kept outputs go; one that was handed from copy to copy of a repeated block stands for all of them."""
        while self.kept:
            x, count = self.kept.pop()
            component = x.storage.component if x.storage is not None else TEMPORARIES
            before = f.pool.live
            del x
            f.pool.add((count - 1) * (f.pool.live - before), component)


def _settle(shared: Any) -> None:
    """Count what all layers share (masks, rotary tables, encoder states) as activations before the first one saves it.

    A label that changed inside a repeated block would count once for each of its copies.
    """
    if isinstance(shared, Tensor):
        if shared.storage is not None and shared.storage.component == TEMPORARIES:
            shared.storage.relabel(ACTIVATIONS)
    elif isinstance(shared, dict):
        for value in shared.values():
            _settle(value)
    elif isinstance(shared, (tuple, list)):
        for value in shared:
            _settle(value)


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
