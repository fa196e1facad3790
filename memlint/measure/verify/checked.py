"""`memlint check --verify`: one real run for each job that is checked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

from memlint.errors import UserError
from memlint.measure.verify.request import Request
from memlint.records import dataclass
from memlint.rules.context import Measured
from memlint.units import gib

if TYPE_CHECKING:
    from memlint.engine.result import FileReport
    from memlint.job import TrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a run gave: nothing where the job could not be run here."""

    measured: Measured | None = None
    report: dict[str, Any] | None = None


def verify_checked(job: TrainingJob, checked: FileReport, dialect: str, device: str, gpus: int = 1) -> Verified:
    """Run a job on ``gpus`` GPUs, or as many of them as are here; one that cannot run here is said on stderr and is no
    finding.
    """
    name = checked.path + (f" ({checked.label})" if checked.label else "")

    def say(text: str) -> None:
        print(f"memlint: {name}: {text}", file=sys.stderr)

    request = Request(job=job, file=checked.path, dialect=checked.dialect or dialect, device=device)
    try:
        report = _run(request, processes(job, device, gpus, say), say)
    except UserError as error:
        print(f"memlint: {name}: not verified: {error}", file=sys.stderr)
        return Verified()
    if report is None:
        return Verified()
    print(f"memlint: {name}: {summary(report)}", file=sys.stderr)
    return Verified(measured=measured_of(report), report=report)


def _run(request: Request, count: int, say: Callable[[str], None]) -> dict[str, Any] | None:
    if count > 1:
        from memlint.measure.verify.launch import launch

        say(f"running in {count} processes")
        return launch(request, count)
    from memlint.measure.verify.run import verify_job

    return verify_job(request, say)


def processes(job: TrainingJob, device: str, gpus: int, say: Callable[[str], None]) -> int:
    """Return how many processes to start: one for each GPU of the job, no more than this machine has.

    Under torchrun or srun the launcher has decided, and a job that is not divided needs one.
    """
    import os

    from memlint.measure.verify.ranks import ranks_from

    if gpus < 2 or job.parallelism.strategy in ("none", "device-map") or ranks_from(os.environ).launcher is not None:
        return 1
    if device == "cuda":
        import torch

        here = int(torch.cuda.device_count())
    else:
        here = os.cpu_count() or 1
    if here < gpus:
        kind = "GPU" if device == "cuda" else "CPU core"
        say(f"the job runs on {gpus} GPUs, and this machine has {here} {kind}{'' if here == 1 else 's'}")
    return max(1, min(gpus, here))


def summary(report: dict[str, Any]) -> str:
    """Return the outcome of a run in a few words."""
    result = report["result"]
    interval = f"{gib(result['low_bytes'])}-{gib(result['high_bytes'])} GiB predicted"
    if result["verdict"] == "out-of-memory":
        return f"ran out of memory, {interval}"
    if result["measured_bytes"] is None:
        return "ran; memory was not compared"
    return f"measured {gib(result['measured_bytes'])} GiB, {interval}"


def measured_of(report: dict[str, Any]) -> Measured | None:
    """Return what rules compare; None where no memory was measured."""
    result, machine = report["result"], report["machine"]
    if result["verdict"] == "not-compared":
        return None
    layers = report["layers"]
    rows = [
        f"measured {row['name'].replace('_', ' ')} {gib(row['measured_bytes'], 2)} GiB,"
        f" predicted {gib(row['predicted_bytes'], 2)}"
        for row in report["comparison"]
        if row["error"] is not None and abs(row["error"]) > _NOTABLE
    ]
    if layers is not None:
        rows.append(f"measured with {layers['run'][1]} of {layers['of']} layers, carried on to all of them")
    where = f"on {machine['name']}"
    if result["figure"] == "reserved":
        where = f"(reserved by PyTorch) {where}"
    return Measured(
        measured_bytes=result["measured_bytes"],
        low_bytes=result["low_bytes"],
        expected_bytes=report["prediction"][f"{result['figure']}_bytes"],
        high_bytes=result["high_bytes"],
        usable_bytes=machine["usable_bytes"],
        where=where,
        notes=tuple(rows),
    )


_NOTABLE = 0.03
"""The estimator's own bar for its worst case (DESIGN.md): parts that are further off are named."""
