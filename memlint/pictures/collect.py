"""What the pictures show of each job: its estimate, a map over batch and sequence, and the plans."""

from __future__ import annotations

import os
from typing import Any

from memlint.engine.source import Source, open_source
from memlint.errors import UserError
from memlint.estimate.result import Estimate
from memlint.job import TrainingJob, replace_fields
from memlint.records import dataclass

_NO_JOBS = ("neither a training config", "checked with the training file")
"""What is no gap in a folder: other files, and companions that are drawn with the job that names them."""

BATCHES = (1, 2, 4, 8, 16, 32)
"""Micro batches of the heat map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One prediction of the heat map."""

    batch: int
    sequence: int
    device_bytes: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One plan in the table."""

    words: str
    edit: str | None
    device_bytes: int
    verdict: str
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One job with everything that is drawn. Sizes in bytes per GPU."""

    name: str
    model: str
    dialect: str
    estimate: Estimate
    verdict: str
    target: str | None
    usable: int | None
    batch: int
    sequence: int
    cells: tuple[Cell, ...]
    plans: tuple[PlanRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A file without a picture, and why."""

    name: str
    reason: str


def collect(
    paths: tuple[str, ...], *, target: str | None, offline: bool, isolated: bool = False
) -> tuple[list[Picture], list[Missing]]:
    """Read every job below ``paths``. Files that are no training configs are left out silently."""
    from memlint.engine.discover import discover

    pictures: list[Picture] = []
    missing: list[Missing] = []
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"{path} does not exist")
    for found in discover(paths, isolated=isolated, force_exclude=False):
        name = found.path
        try:
            source = open_source(name, target=target, offline=offline, isolated=isolated)
        except UserError as error:
            reason = str(error)
            if name in paths or not any(words in reason for words in _NO_JOBS):
                missing.append(Missing(name=name, reason=reason.removeprefix(f"{name}: ")))
            continue
        for index in range(source.jobs):
            if index:
                source = open_source(name, target=target, offline=offline, isolated=isolated, index=index)
            label = f"{name} ({index + 1})" if source.jobs > 1 else name
            picture = _picture(label, source)
            if isinstance(picture, Picture):
                pictures.append(picture)
            else:
                missing.append(Missing(name=label, reason=picture))
    return pictures, missing


def _picture(name: str, source: Source) -> Picture | str:
    from memlint.engine.predict import judge, predict, usable_bytes

    job, target = source.job, source.target
    estimate, reason = predict(job, target)
    if estimate is None:
        return reason or "no prediction"

    def verdict(other: Estimate) -> str:
        return judge(other, job, target, source.margin)

    cells = []
    for batch, sequence in _grid(job):
        changes = {"training.micro_batch_size": batch, "training.sequence_length": sequence}
        other, _ = predict(replace_fields(job, changes), target)
        if other is not None:
            cells.append(Cell(batch=batch, sequence=sequence, device_bytes=other.device_bytes, verdict=verdict(other)))
    return Picture(
        name=name,
        model=job.architecture.id or job.architecture.model_type if job.architecture is not None else "",
        dialect=source.dialect_name,
        estimate=estimate,
        verdict=verdict(estimate),
        target=target.spec if target is not None else None,
        usable=usable_bytes(job, target),
        batch=job.training.micro_batch_size,
        sequence=job.training.sequence_length,
        cells=tuple(cells),
        plans=tuple(_plans(source, estimate)) if target is not None else (),
    )


def _grid(job: TrainingJob) -> list[tuple[int, int]]:
    """Micro batches and sequences around the job's own."""
    training = job.training
    batches = sorted({*BATCHES, training.micro_batch_size})
    lengths = {training.sequence_length}
    shorter = training.sequence_length
    longer = training.sequence_length
    for _ in range(3):
        shorter = max(128, shorter // 2)
        longer *= 2
        lengths |= {shorter}
        if len(lengths) < 6:
            lengths |= {longer}
    return [(batch, length) for length in sorted(lengths)[:6] for batch in batches]


def _plans(source: Source, estimate: Estimate) -> list[PlanRow]:
    from memlint.plan.planner import Planner
    from memlint.plan.question import from_source

    report: Any = Planner(from_source(source, estimate, hypothetical=False)).report()
    return [
        PlanRow(
            words=plan.words,
            edit=plan.text,
            device_bytes=plan.estimate.device_bytes,
            verdict=plan.verdict,
            compute=plan.compute,
        )
        for plan in (*report.plans, *report.offers)
    ][:6]
