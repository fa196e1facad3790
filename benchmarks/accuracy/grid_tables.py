"""The tables of the grid: every traced point beside the simulation of the same job."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.oracle import elements
from benchmarks.accuracy.tables import percent, table
from benchmarks.lines import read_lines
from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob
from memlint.measure.trace.settings import CAPABILITY

FIELDS = ("type", "setup", "peak", "phase", "parameters")
"""Of a line of the grid's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One point of the grid."""

    name: str
    """Model type, or the ID of a published model."""
    family: str
    setup: str
    error: float
    """Simulated peak over traced peak, less one."""
    phase: str
    traced_phase: str
    parameters: int
    """Elements simulated less elements traced."""


REENTRANT = """The trace adds a second gradient in place where PyTorch's engine would, which it tells from the references to the
first (input_buffer.cpp): a reentrant checkpoint's call holds its incoming gradient. Traces made before that was counted
were one tensor of a layer's width too low at times."""


def compared(row: dict[str, Any], job: TrainingJob) -> Compared:
    """Simulate the job of a traced point."""
    assert job.architecture is not None
    step = run_step(job, CAPABILITY)
    peak = max(step.timeline, key=lambda phase: phase.peak_bytes)
    return Compared(
        name=row["type"],
        family=job.architecture.family,
        setup=row["setup"],
        error=peak.peak_bytes / row["peak"] - 1,
        phase=peak.phase,
        traced_phase=row["phase"],
        parameters=elements(step) - row["parameters"],
    )


def compare_grid(path: str) -> list[Compared]:
    """Simulate every point of a file that ``benchmarks.accuracy.grid`` wrote.

    Raises OSError, and ValueError for a line that is no point, or a point that the grid no longer has.
    """
    from benchmarks.accuracy.grid import points

    jobs = {(kind, setup): job for kind, setup, job, _ in points(None)}
    return [compared(row, job_in(jobs, row)) for row in read_lines(path, FIELDS)]


def job_in(jobs: Mapping[tuple[str, str], TrainingJob], row: dict[str, Any]) -> TrainingJob:
    """The job of a point that was written. Raises ValueError where the grid has it no longer."""
    found = jobs.get((str(row["type"]), str(row["setup"])))
    if found is None:
        raise ValueError(f"the grid has no point `{row['type']}`, `{row['setup']}`")
    return found


def grid_tables(path: str) -> list[str]:
    """Errors by family, by setup and by model type, and the worst points."""
    found = compare_grid(path)
    lines = by("family", found, lambda point: point.family)
    lines += by("setup", found, lambda point: point.setup.rpartition(" b")[0] or point.setup)
    lines += by("model type", found, lambda point: point.name)
    worst = sorted(found, key=lambda point: -abs(point.error))[:10]
    lines += ["The worst points:", ""]
    rows = [(p.name, p.setup, f"{p.error:+.2%}", f"{p.phase}, {p.traced_phase}") for p in worst]
    lines += table(("model", "setup", "error", "phase simulated, traced"), rows)
    return [*lines, REENTRANT, ""]


def by(head: str, found: list[Compared], key: Callable[[Compared], str]) -> list[str]:
    """A table of errors, all points first, then grouped by ``key``."""
    groups: dict[str, list[Compared]] = {"all": found}
    for point in found:
        groups.setdefault(key(point), []).append(point)
    return table((head, "points", "median error", "worst", "phase right"), [(n, *_cells(g)) for n, g in groups.items()])


def _cells(group: Iterable[Compared]) -> tuple[str, ...]:
    points = list(group)
    errors = [abs(point.error) for point in points]
    right = sum(point.phase == point.traced_phase for point in points)
    return str(len(points)), percent(statistics.median(errors)), percent(max(errors)), f"{right} of {len(points)}"
