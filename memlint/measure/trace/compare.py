"""A trace beside the simulated figures: by component, by phase, by layer, with the first tensor that differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from memlint.estimate.result import COMPONENTS, Estimate
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.measure.trace.recorder import rounded
from memlint.measure.trace.result import TraceResult
from memlint.measure.trace.simulation import Kept, simulated_kept

TRIFLE = 65536
"""Bytes below which a tensor that one side alone keeps (shifted labels, position ids) is not named."""


CLOSE = 0.001
"""Relative difference within which two blocks count as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both methods, in bytes."""

    name: str
    traced: int
    simulated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """What one layer (or a run of equal ones) keeps for backward, in bytes each, and the first tensor that differs."""

    name: str
    traced: int
    simulated: int
    only_traced: str | None
    only_simulated: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both methods side by side."""

    simulated_phase: str
    peak: Row
    components: tuple[Row, ...]
    phases: tuple[Row, ...]
    forward_end: Row
    layers: tuple[LayerRow, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists."""
        return asdict(self)


def compare(
    job: TrainingJob, target: Target | None, traced: Estimate, simulated: Estimate, result: TraceResult
) -> Comparison:
    """Set a trace beside the simulated estimate of the same job."""
    ours = {p.phase: p.peak_bytes for p in traced.timeline}
    theirs = {p.phase: p.peak_bytes for p in simulated.timeline}
    return Comparison(
        simulated_phase=simulated.phase,
        peak=Row(name="allocated", traced=traced.allocated_bytes, simulated=simulated.allocated_bytes),
        components=tuple(
            Row(name=name, traced=traced.components.get(name, 0), simulated=simulated.components.get(name, 0))
            for name in COMPONENTS
        ),
        phases=tuple(
            Row(name=name, traced=ours.get(name, 0), simulated=theirs.get(name, 0)) for name in {**ours, **theirs}
        ),
        forward_end=Row(
            name="kept for backward",
            traced=traced.forward_end_activation_bytes,
            simulated=simulated.forward_end_activation_bytes,
        ),
        layers=tuple(_layers(traced_kept(result), simulated_kept(job, target), result)),
    )


def traced_kept(result: TraceResult) -> list[Kept]:
    """What the traced forward keeps, by layer; of a trace carried on from fewer layers, those that were run."""
    stacks: dict[str, int] = {}
    kept = []
    for storage in result.saved:
        layer, stack = None, 0
        parts = storage.module.split(".")
        for index, part in enumerate(parts):
            if part.isdigit():
                layer = int(part)
                stack = stacks.setdefault(".".join(parts[:index]), len(stacks))
                break
        operator = storage.op.removeprefix("aten::")
        words = f"{list(storage.shape)} {storage.dtype} of {operator} in {storage.module or 'model'}"
        kept.append(Kept(storage.bytes, stack, layer, words))
    return kept


def _layers(traced: list[Kept], simulated: list[Kept], result: TraceResult) -> Iterable[LayerRow]:
    """Compare place by place; equal neighbours become one row."""
    ours, theirs = _by_place(traced), _by_place(simulated)
    depth = max((layer for _, layer in ours if layer is not None), default=-1) + 1
    full = max((layer for _, layer in theirs if layer is not None), default=-1) + 1
    rows: list[tuple[str, LayerRow, tuple[int, int | None]]] = []
    for place, kept in ours.items():
        stack, layer = place
        counterpart = place
        if layer is not None and result.extended_from is not None and layer >= depth // 2:
            counterpart = (stack, full - depth + layer)
        others = theirs.get(counterpart, [])
        ours_first, theirs_first = _first_differences(kept, others)
        name = "outside the layers" if layer is None else f"layer {counterpart[1]}"
        row = LayerRow(
            name=name if not stack else f"{name} of stack {stack + 1}",
            traced=sum(item.bytes for item in kept),
            simulated=sum(item.bytes for item in others),
            only_traced=ours_first,
            only_simulated=theirs_first,
        )
        rows.append((name, row, counterpart))
    return _grouped(rows)


def _grouped(rows: list[tuple[str, LayerRow, tuple[int, int | None]]]) -> Iterable[LayerRow]:
    start = 0
    while start < len(rows):
        end = start
        first = rows[start][1]
        while (
            end + 1 < len(rows)
            and rows[end + 1][2][1] is not None
            and rows[start][2][1] is not None
            and rows[end + 1][2][0] == rows[start][2][0]
            and (rows[end + 1][1].traced, rows[end + 1][1].simulated) == (first.traced, first.simulated)
        ):
            end += 1
        if end > start:
            last = rows[end][2][1]
            name = first.name.replace("layer ", "layers ", 1)
            head, _, tail = name.partition(" of ")
            yield LayerRow(
                name=f"{head} to {last}" + (f" of {tail}" if tail else ""),
                traced=first.traced,
                simulated=first.simulated,
                only_traced=first.only_traced,
                only_simulated=first.only_simulated,
            )
        else:
            yield first
        start = end + 1


def _by_place(kept: list[Kept]) -> dict[tuple[int, int | None], list[Kept]]:
    places: dict[tuple[int, int | None], list[Kept]] = {}
    for item in kept:
        places.setdefault((item.stack if item.layer is not None else 0, item.layer), []).append(item)
    return places


def _first_differences(traced: list[Kept], simulated: list[Kept]) -> tuple[str | None, str | None]:
    """The first tensor of each side, beyond trifles, that has no counterpart of its size on the other."""
    ours, theirs = _unmatched(traced, simulated), _unmatched(simulated, traced)
    # A block that one side counts in two parts, or with a rounding between, is the same block.
    for item in list(ours):
        close = next((other for other in theirs if abs(other.bytes - item.bytes) <= CLOSE * item.bytes), None)
        if close is not None:
            ours.remove(item)
            theirs.remove(close)
    return _named(ours), _named(theirs)


def _unmatched(mine: list[Kept], others: list[Kept]) -> list[Kept]:
    left = Counter(rounded(item.bytes) for item in others)
    result = []
    for item in mine:
        if left[rounded(item.bytes)]:
            left[rounded(item.bytes)] -= 1
        elif item.bytes >= TRIFLE:
            result.append(item)
    return result


def _named(items: list[Kept]) -> str | None:
    return f"{items[0].bytes} bytes: {items[0].words}" if items else None
