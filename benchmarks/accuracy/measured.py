"""Published measurements (form of ../shared/measured) beside predictions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.accuracy.measured_jobs import alternatives, job_of
from benchmarks.accuracy.measured_rows import GIB, Row, read_rows
from benchmarks.accuracy.skipped import Inexpressible, Skipped, failure
from memlint.engine.predict import judge
from memlint.errors import UserError
from memlint.estimate.errors import Unsupported
from memlint.estimate.result import Estimate
from memlint.estimate.simulate import simulate
from memlint.hardware.parse import parse_target
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.settings.model import DEFAULT_MARGIN

ALLOCATED = ("max_memory_allocated", "active")
"""Metrics of live tensors: torch.cuda.max_memory_allocated and active_bytes."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What memlint says of one row, in the row's own metric; bytes."""

    row: Row
    job: TrainingJob
    estimate: Estimate
    expected: int
    low: int
    high: int
    verdict: str

    @property
    def error(self) -> float | None:
        """Relative error; None where the row carries no figure."""
        truth = self.row.measured_bytes
        return None if truth is None else self.expected / truth - 1

    @property
    def held(self) -> bool | None:
        """Whether the interval holds the figure."""
        truth = self.row.measured_range
        return None if truth is None else self.low <= truth[1] and truth[0] <= self.high

    @property
    def held_as_printed(self) -> bool | None:
        """Whether the interval holds the published figure itself, with no allowance for its rounding or unit."""
        truth = self.row.measured_bytes
        return None if truth is None else self.low <= truth <= self.high

    @property
    def unknown_gpu(self) -> bool:
        """The row names a GPU that memlint does not know, so that there is no verdict."""
        return self.job.hardware.target is not None and self.verdict == "unknown"

    @property
    def width(self) -> float:
        """Width of the interval, as a share of the figure (of the prediction where there is none)."""
        return (self.high - self.low) / (self.row.measured_bytes or self.expected)


def predict_row(row: Row, known: dict[str, Estimate]) -> Prediction | Skipped:
    """Predict one row, or say why not; ``known`` keeps the estimates of equal jobs."""
    try:
        return _predicted(row, known)
    except (Inexpressible, Unsupported) as reason:
        return Skipped(row.id, str(reason))
    except Exception as problem:  # one row must not take the others' tables away; the table names it
        return Skipped(row.id, failure(problem))


def _predicted(row: Row, known: dict[str, Estimate]) -> Prediction:
    job = job_of(row)
    target = _target(job)
    key = repr((job.model, job.training, job.parallelism, job.versions, job.framework, target))
    if key not in known:
        known[key] = simulate(job, target)
    estimate = known[key]
    if not estimate.trainable_parameters:
        raise Inexpressible(f"nothing of the model is called `{row['lora_targets'][:60]}`")
    expected, low, high = in_metric(row["metric"], job, estimate)
    for other in alternatives(row, job):
        # What the source leaves open and the estimate had to take for granted widens its interval.
        _, least, most = in_metric(row["metric"], other, simulate(other, target))
        low, high = min(low, least), max(high, most)
    return Prediction(row, job, estimate, expected, low, high, judge(estimate, job, target, DEFAULT_MARGIN))


def _target(job: TrainingJob) -> Target | None:
    if job.hardware.target is None:
        return None
    try:
        return parse_target(job.hardware.target)
    except UserError:
        return None


def in_metric(metric: str, job: TrainingJob, estimate: Estimate) -> tuple[int, int, int]:
    """Expected, low and high bytes of an estimate in a source's metric.

    max_memory_allocated counts cuBLAS workspaces, which the estimate keeps apart; what a paged optimizer pages is in
    unified memory, which PyTorch's allocator never sees. A figure without a metric may be the driver's, so its interval
    reaches up to what the driver would show.
    """
    inside = [o for o in estimate.overheads if o.name in ("cublas_workspace", "allocator_slack")]
    outside = [o for o in estimate.overheads if o not in inside]
    workspace = inside[0]
    paged = estimate.paged_bytes
    low = estimate.low_bytes - sum(o.low_bytes for o in outside)
    if metric in ALLOCATED:
        allocated = estimate.allocated_bytes - paged
        # The allocator's slack is reserved, not allocated: no part of this figure at either end.
        low -= sum(o.low_bytes for o in inside) - workspace.low_bytes
        slack = sum(o.high_bytes for o in estimate.overheads) - workspace.high_bytes
        return allocated + workspace.expected_bytes, low, estimate.high_bytes - slack - paged
    if metric == "nvidia_smi":
        return estimate.device_bytes, estimate.low_bytes, estimate.high_bytes
    high = estimate.high_bytes - paged
    if metric == "max_memory_reserved":
        high -= sum(o.high_bytes for o in outside)
    return estimate.reserved_bytes - paged, low, high


def predict_file(path: str, progress: Callable[[str], None] | None = None) -> tuple[list[Prediction], list[Skipped]]:
    """Predict every row of a file."""
    known: dict[str, Estimate] = {}
    predictions: list[Prediction] = []
    skipped: list[Skipped] = []
    for row in read_rows(path):
        if progress is not None:
            progress(row.id)
        found = predict_row(row, known)
        if isinstance(found, Prediction):
            predictions.append(found)
        else:
            skipped.append(found)
    return predictions, skipped


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of a group of rows with figures."""

    name: str
    rows: int
    median: float
    ninetieth: float
    worst: float
    held: float
    held_as_printed: float
    width: float


def summarise(name: str, group: Iterable[Prediction]) -> Summary | None:
    """Absolute relative errors and intervals of a group; None when no row of it carries a figure."""
    measured = [p for p in group if p.error is not None]
    if not measured:
        return None
    errors = sorted(abs(p.error or 0.0) for p in measured)
    return Summary(
        name=name,
        rows=len(errors),
        median=statistics.median(errors),
        ninetieth=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        worst=errors[-1],
        held=sum(bool(p.held) for p in measured) / len(measured),
        held_as_printed=sum(bool(p.held_as_printed) for p in measured) / len(measured),
        width=statistics.median([p.width for p in measured]),
    )


def grouped(predictions: Sequence[Prediction], key: Callable[[Prediction], str]) -> list[Summary]:
    """One summary a group, in the order of the groups' names."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction), []).append(prediction)
    found = [summarise(name, group) for name, group in sorted(groups.items())]
    return [summary for summary in found if summary is not None]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How often a run that worked is called out of memory, and one that did not is called fitting."""

    ran: int
    false_oom: tuple[str, ...]
    failed: int
    false_fits: tuple[str, ...]


def verdicts(predictions: Iterable[Prediction]) -> Verdicts:
    """Compare the verdicts with what happened, on rows that name their GPU."""
    judged = [p for p in predictions if p.verdict != "unknown"]
    ran = [p for p in judged if not p.row.oom and (p.row.measured_bytes is not None or p.row.bound == "upper")]
    failed = [p for p in judged if p.row.oom]
    return Verdicts(
        ran=len(ran),
        false_oom=tuple(p.row.id for p in ran if p.verdict == "oom"),
        failed=len(failed),
        false_fits=tuple(p.row.id for p in failed if p.verdict == "fits"),
    )


def metric_group(prediction: Prediction) -> str:
    """``allocated`` (live tensors), or ``reserved``: reserved, the driver's, or not stated."""
    return "allocated" if prediction.row["metric"] in ALLOCATED else "reserved"


def gib(size: int) -> str:
    """Bytes as GiB with two places."""
    return f"{size / GIB:.2f}"
