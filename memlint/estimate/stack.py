"""A stack of layers, of which only the least number that reaches the steady state is really run."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Sequence

from memlint.estimate.build import Build
from memlint.estimate.engine.graph import Block
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.records import Record
from memlint.estimate.units import Unit

Layer = Callable[..., Tensor]
Place = tuple[int, Layer, "Unit | None"]
"""A layer's index in the stack, what runs it, and what is gathered for it."""

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


class Part:
    """Layers that are run together, once for all equal parts of the stack."""

    __slots__ = ("buffers", "count", "layers", "records")

    def __init__(self, layers: list[Place], count: int) -> None:
        self.layers = layers
        self.count = count
        self.records: list[Record] = []
        """Its parameters, and the bytes of its buffers."""
        self.buffers = 0


class Stack:
    """Layers of a model; ``make(build, kind, index)`` constructs one of them."""

    def __init__(
        self,
        build: Build,
        kinds: Sequence[Hashable],
        make: Callable[[Build, Any, int], Layer],
        *,
        full: bool = False,
        alone: Sequence[int] = (),
        taps: Sequence[int] = (),
    ) -> None:
        """``alone``: indexes of layers that are run themselves, beside the first ``build.apart``: something follows
        them, or they make the first gradient of a tensor that others share, who add to it. ``taps``: those whose output
        :attr:`after` sees beside these.
        """
        self.parts: list[tuple[int, Part]] = []
        """The first layer's index and what runs, in order; a part that stands for several is there as often."""
        self.sharding = build.sharding
        self.after: Callable[[Tape, Env, int, Tensor], Tensor] | None = None
        """What the model does with the output of a layer, outside its checkpoint; for those in ``taps``."""
        self.alone = {*range(build.apart), *alone}
        self.taps = {*self.alone, *taps}
        self.before: Callable[[Tape, int], tuple[Tensor, ...]] | None = None
        """Further inputs of a layer, made outside its checkpoint (its part of a tensor that holds all layers')."""
        self.keeps = False
        """The model keeps every layer's output (output_hidden_states) until :meth:`forget`."""
        self.kept: dict[Part, Kept] = {}
        self.latest: Part | None = None
        """Whose output was kept last."""
        every = build.training.checkpointing.every
        total = len(kinds)
        trained = build.training.trainable_layers
        self.keys: list[Hashable] = [
            (kind, index % every == 0, trained is None or _trains(index, total, trained))
            for index, kind in enumerate(kinds)
        ]

        def layer(index: int, count: int = 1) -> Place:
            build.layer_frozen = trained is not None and not _trains(index, total, trained)
            unit = self.sharding.unit(count) if self.sharding.wrap == "layer" else None
            made = make(build, kinds[index], index)
            build.layer_frozen = False
            self.sharding.current = build.root
            return index, made, unit

        # Where the whole model is one unit, all its parameters are gathered together.
        whole = self.sharding.gathers and self.sharding.zero is None and self.sharding.wrap != "layer"
        if full or whole or build.run_all_layers:
            self.parts = [(index, Part([layer(index)], 1)) for index in range(total)]
        elif self.sharding.zero is not None:
            self._periods(build, layer)
        else:
            self._alike(build, layer)

    def _alike(self, build: Build, layer: Callable[..., Place]) -> None:
        """Run one layer for all of its kind that come after one of the same other kind.

        FSDP2 gathers the layer before during a layer's backward, and lets go of what the layer after has reduced.
        """
        parts: dict[Hashable, Part] = {}
        neighbours = [None, *self.keys, None]
        flows = False
        for index, key in enumerate(self.keys):
            # A gradient flows back into every layer after the first one that is trained.
            like = (
                key,
                neighbours[index],
                flows,
                neighbours[index + 2] if self.sharding.fully is not None else None,
                index if index in self.alone else None,
            )
            part = parts.get(like)
            if part is None:
                leaves, records, buffers = len(build.leaves), len(build.records), build.buffer_bytes
                part = parts[like] = Part([layer(index)], 0)
                part.records, part.buffers = build.records[records:], build.buffer_bytes - buffers
                flows = flows or len(build.leaves) > leaves
            part.count += 1
            self.parts.append((index, part))
        for part in parts.values():
            build.buffer_bytes += (part.count - 1) * part.buffers
            for record in part.records:
                record.count = part.count

    def _periods(self, build: Build, layer: Callable[..., Place]) -> None:
        """Run one period for all of a periodic run: what is gathered and reduced around a layer is its neighbours'."""
        keys = [(key, index if index in self.taps else None) for index, key in enumerate(self.keys)]
        for start, period, count in [part for run in groups_of(keys) for part in _last_apart(*run)]:
            build.count = count
            part = Part([layer(index, count) for index in range(start, start + period)], count)
            build.count = 1
            self.parts += [(start + number * period, part) for number in range(count)]

    def __call__(self, f: Tape, env: Env, x: Tensor | list[Tensor], *others: Tensor) -> Tensor:
        """Run the layers on x; ``others`` go to each layer as they are (encoder states, position biases).

        A list gives away the tensor it holds: the caller's own loop variable, not a name that it keeps.
        """
        if isinstance(x, list):
            x = x.pop()
        held = None
        _settle((env.state, others))
        fully = self.sharding.fully
        if fully is not None:
            x = fully.before_layers(f, x)
        done: dict[Part, Block] = {}
        for first, part in self.parts:
            if part in done:
                x = f.repeat_block(done[part], x)
                if first in self.taps and self.after is not None:
                    x = self.after(f, env, first, x)
                self._keep(part)
                continue
            opened = None
            if part.count > 1:
                opened, x = f.begin_block(x)
            for index, layer, unit in part.layers:
                given = others if self.before is None else (*others, *self.before(f, index))
                if unit is None:
                    x = env.call(f, layer, index, x, *given)
                else:
                    x = self.sharding.run(f, unit, _Call(env, layer, index), x, *given)
                del given
                held, env.left = env.left, None
                if index != part.layers[-1][0]:
                    self._keep(part, x)
            if opened is not None:
                shared = [shared_by(env, layer) for index, layer, _ in part.layers if env.checkpointed(index)]
                passing = None if fully is None or unit is None else fully.passing(unit)
                done[part], x = f.end_block(opened, x, () if held is None else (held,), shared, passing)
            if first in self.taps and self.after is not None:
                x = self.after(f, env, first, x)
            self._keep(part, x)
        last = fully or self.sharding.zero
        return x if last is None else last.after_layers(f, x)

    def _keep(self, part: Part, x: Tensor | None = None) -> None:
        if not self.keeps:
            return
        self.latest = part
        if x is not None:
            self.kept.setdefault(part, Kept()).tensors.append(x)
        else:
            self.kept[part].others += 1

    def drop_last(self, f: Tape) -> None:
        """Let the last layer's kept output go."""
        kept = self.kept.get(self.latest) if self.latest is not None else None
        if kept is None:
            return
        if not kept.others:
            kept.tensors.pop()
            return
        kept.others -= 1
        storage = kept.tensors[-1].storage
        if storage is not None:
            f.pool.add(-storage.size, storage.component)

    def forget(self, f: Tape) -> None:
        """Let the kept outputs go; one that was handed from block to equal block stands for all of theirs."""
        for kept in self.kept.values():
            times = kept.others
            while kept.tensors:
                x = kept.tensors.pop()
                component = x.storage.component if x.storage is not None else TEMPORARIES
                before = f.pool.live
                del x
                f.pool.add(times * (f.pool.live - before), component)
                times = 0
        self.kept.clear()


class Kept:
    """Outputs of the layers of one part: of the last one it holds those of ``others`` equal parts too."""

    __slots__ = ("others", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.others = 0


def shared_by(env: Env, layer: Layer) -> Any:
    """What a checkpointed layer's closure holds until its backward (see :meth:`Env.call`)."""
    uses = getattr(layer, "uses", None)
    return env.state if uses is None else [env.state[name] for name in uses]


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
