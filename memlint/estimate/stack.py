"""A stack of layers, of which only the least number that reaches the steady state is really run."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Sequence

from memlint.estimate.build import Build
from memlint.estimate.conditions import condition, is_leaf, numbered
from memlint.estimate.engine.graph import Block
from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES
from memlint.estimate.engine.repeat import count_loose
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.known import Known
from memlint.estimate.outputs import Outputs
from memlint.estimate.part import Layer, Part, Place, again
from memlint.estimate.periods import groups_of, last_apart
from memlint.estimate.quantized import keeps_input


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
        loose: Sequence[int] = (),
        numbers: Sequence[int] = (),
    ) -> None:
        """``alone``: indexes of layers that are run themselves: they make the first gradient of a tensor that others
        share, who add to it. ``taps``: those whose output :attr:`after` sees, beside these and the first
        ``build.apart``. ``loose``: those whose input something beside the stack holds longer. ``numbers``: the layers'
        own among the model's, where it has further ones that do not run.
        """
        self.parts: list[tuple[int, Part]] = []
        """The first layer's index and what runs, in order; a part that stands for several is there as often."""
        self.sharding = build.sharding
        self.after: Callable[[Tape, Env, int, Tensor], Tensor] | None = None
        """What the model does with the output of a layer, outside its checkpoint; for those in ``taps``."""
        self.loose = {0, *loose}
        self.alone = {*alone}
        self.taps = {*range(build.apart), *self.alone, *taps, *loose}
        self.before: Callable[[Tape, int], tuple[Tensor, ...]] | None = None
        """Further inputs of a layer, made outside its checkpoint (its part of a tensor that holds all layers')."""
        self.keeps = False
        """The model keeps every layer's output (output_hidden_states) until :meth:`forget`."""
        self.keeps_first = False
        """And with them what the first layer is given; some towers have that under a name of their own."""
        self.outputs = Outputs()
        self.known = Known(build)
        every = build.training.checkpointing.every
        total = len(kinds)
        build.layers += total
        own = numbers or range(total)
        self.numbers = [build.first_layer + number for number in own]
        """The layers' among all of the model's, of which every n-th is checkpointed (transformers 5.24
        modeling_utils.py _set_gradient_checkpointing)."""
        trained = build.training.trainable_layers
        counted = total if build.depth is None else build.depth
        self.keys: list[Hashable] = [
            (kind, self.numbers[index] % every == 0, trained is None or trains_layer(own[index], counted, trained))
            for index, kind in enumerate(kinds)
        ]
        if build.float8 is not None and build.float8.first_layer and total:
            self.keys[0] = self.keys[0], "holds the first linear layer"
        self.mixed = every > 1 and total > 1
        """Only some layers are checkpointed: what one leaves to the next (``Env.left``) is not freed as its equal's."""

        def layer(index: int, count: int = 1) -> Place:
            build.layer_frozen = trained is not None and not trains_layer(own[index], counted, trained)
            unit = self.sharding.unit(count) if self.sharding.wrap == "layer" else None
            made = make(build, kinds[index], index)
            build.layer_frozen = trained is not None
            self.sharding.current = build.root
            return index, made, unit

        # Where the whole model is one unit, all its parameters are gathered together.
        zero = self.sharding.zero
        whole = zero.whole if zero is not None else self.sharding.gathers and self.sharding.wrap != "layer"
        if self.sharding.fully is not None and self.sharding.fully.attention_alone:
            whole = True  # what the root keeps of each layer
        if full or whole or build.run_all_layers:
            self.parts = [(index, Part([layer(index)], 1)) for index in range(total)]
        elif zero is not None:
            self._periods(build, layer)
        else:
            self._alike(build, layer)

    def _alike(self, build: Build, layer: Callable[..., Place]) -> None:
        """Run one layer for all of its kind, or all of its kind among equal neighbours.

        FSDP2 gathers the layer before during a layer's backward, and lets go of what the layer after has reduced.
        """
        parts: dict[Hashable, Part] = {}
        by_number = numbered(build.job)
        fixed = by_number or self.sharding.gathers or keeps_input(build.job)
        first: dict[Hashable, Part] = {}
        for index, key in enumerate(self.keys):
            if key not in first:
                first[key] = self._part(build, layer, index, fixed)
        # To those who gather and reduce, neighbours are what parameters they have.
        held = {key: key if by_number else part.held for key, part in first.items()}
        near = [None, *[held[key] for key in self.keys], None]
        flows = False
        alone = {*self.alone, *self.loose} if fixed else self.alone
        for index, key in enumerate(self.keys):
            like: Hashable = key, index if index in alone else None
            if fixed:
                after = near[index + 2] if self.sharding.fully is not None else None
                # A gradient flows back into every layer after the first one that is trained.
                like = like, near[index], flows, after
                flows = flows or bool(first[key].leaves)
            part = parts.get(like)
            if part is None:
                known = first[key]
                part = parts[like] = self._part(build, layer, index, fixed) if known.count else known
            part.count += 1
            self.parts.append((index, part))
        for part in parts.values():
            build.buffer_bytes += (part.count - 1) * part.buffers
            for record in part.records:
                record.count = part.count

    def _part(self, build: Build, layer: Callable[..., Place], index: int, fixed: bool) -> Part:
        leaves, records, buffers = len(build.leaves), len(build.records), build.buffer_bytes
        part = Part([layer(index)], 0)
        part.leaves = build.leaves[leaves:]
        part.records, part.buffers = build.records[records:], build.buffer_bytes - buffers
        part.anew = None if fixed else again(build, part, layer, index)
        return part

    def _periods(self, build: Build, layer: Callable[..., Place]) -> None:
        """Run one period for all of a periodic run: what is gathered and reduced around a layer is its neighbours'."""
        keys = [(key, index if index in self.taps else None) for index, key in enumerate(self.keys)]
        for start, period, count in [part for run in groups_of(keys) for part in last_apart(*run)]:
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
        before_them = fully or self.sharding.zero
        if before_them is not None:
            x = before_them.before_layers(f, x)
        if self.keeps_first:
            self.outputs.given = x.detach()
        done: dict[Hashable, Block] = {}
        neighbours = self.keeps or not f.alike
        self.known.begin(f, env, plain=not neighbours)
        before: Part | None = None
        runs: dict[Part, int] = {}
        counted = 0
        for place, (first, part) in enumerate(self.parts):
            if place < counted:
                continue
            like: Hashable = part
            loose = first in self.loose
            if part.anew is not None and part.count > 1:
                near = (before, first if loose else None) if neighbours else None
                beside = None if f.alike else (first in self.taps, first - 1 in self.taps)
                like = part, condition(env, x, held, loose=loose and not neighbours), near, beside
            apart = part.anew is not None and (loose or (len(self.loose) > 1 and not neighbours))
            opens = part.count > 1 and (not apart or not (neighbours or is_leaf(f, x)))
            opens = opens and not (self.mixed and held is not None)
            new = opens and self.known.call is not None and part.anew is not None and like not in done
            if new and env.step > 1:
                block = self.known.recall(f, env, like, (env.state, others))
                if block is not None:
                    block.held = self._shared(env, part) if block.recorded else []
                    done[like] = block
            if like in done and loose:
                given_away = [x]
                del x
                x = count_loose(f, done[like], given_away)
            elif like in done:
                times = 1 if neighbours else self._equal(place)
                counted = place + times
                first = self.parts[counted - 1][0]
                x = f.repeat_block(done[like], x, times)
            if like in done:
                if first in self.taps and self.after is not None:
                    x = self.after(f, env, first, x)
                if self.keeps:
                    self.outputs.repeat(part)
                before = part
                continue
            opened, beside_it, before_it = None, None, self.known.before(f, env)
            if new and env.step == 1:
                beside_it = self.known.beside(f, env, x, loose=apart)
            if opens:
                opened, x = f.begin_block(x, loose=apart)
            number = runs[part] = runs.get(part, -1) + 1
            for index, layer, unit in part.copy(number):
                given = others if self.before is None else (*others, *self.before(f, index))
                if unit is None:
                    x = env.call(f, layer, self.numbers[index], x, *given)
                else:
                    x = self.sharding.run(f, unit, _Call(env, layer, self.numbers[index]), x, *given)
                del given
                held, env.left = env.left, None
                if self.keeps and index != part.layers[-1][0]:
                    self.outputs.keep(part, x)
            if opened is not None:
                shared = self._shared(env, part)
                passing = None if fully is None or unit is None else fully.passing(unit)
                block, x = f.end_block(opened, x, () if held is None else (held,), shared, passing)
                if block.steady and not (self.mixed and held is not None):
                    done[like] = block
                    quiet = beside_it is not None and beside_it == self.known.beside(f, env, x, loose=apart)
                    if quiet and held is None:
                        self.known.learn(f, env, like, block, (env.state, others), before_it)
            if first in self.taps and self.after is not None:
                x = self.after(f, env, first, x)
            if self.keeps:
                self.outputs.keep(part, x)
            before = part
        last = fully or self.sharding.zero
        return x if last is None else last.after_layers(f, x)

    def _shared(self, env: Env, part: Part) -> list[Any]:
        """What checkpointed layers' closures hold until their backward (see :meth:`Env.call`)."""
        return [env.closure(layer) for index, layer, _ in part.layers if env.checkpointed(self.numbers[index])]

    def _equal(self, place: int) -> int:
        """How many layers from this place on are the same to a tape, with nothing done between them."""
        part, end = self.parts[place][1], place + 1
        while end < len(self.parts) and self.parts[end][1] is part and self.parts[end][0] not in self.loose:
            if self.after is not None and self.parts[end - 1][0] in self.taps:
                break
            end += 1
        return end - place

    def drop_last(self, f: Tape) -> None:
        """Let the last layer's kept output go."""
        self.outputs.drop_last(f)

    def forget(self, f: Tape) -> None:
        """Let the kept outputs go."""
        self.outputs.forget(f)


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
            if type(value) is not int:  # an image's windows are hundreds
                _settle(value)


class _Call:
    """One layer with its checkpointing, as the sharding wrapper calls it (FSDP wraps outside the checkpoint)."""

    __slots__ = ("env", "index", "layer")

    def __init__(self, env: Env, layer: Callable[..., Tensor], index: int) -> None:
        self.env, self.layer, self.index = env, layer, index

    def __call__(self, f: Tape, *inputs: Tensor) -> Tensor:
        return self.env.call(f, self.layer, self.index, *inputs)


def trains_layer(index: int, depth: int, trained: int) -> bool:
    """method freeze: of ``depth`` layers the last ``trained`` ones train (a negative number: the first ones).

    LLaMA-Factory 0.9.5 model/adapter.py _setup_freeze_tuning numbers by the config's depth, whatever a stack's own is.
    """
    return depth - trained <= index < depth if trained >= 0 else index < min(-trained, depth)
