"""From a job to a prediction and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.result import Estimate
from memlint.job import TrainingJob

if TYPE_CHECKING:
    from memlint.hardware.target import Target


def usable_bytes(job: TrainingJob, target: Target | None) -> int | None:
    """Return the bytes of one GPU that the job may take; None without a target."""
    return None if target is None else max(target.usable_bytes - job.hardware.reserve, 0)


def judge(estimate: Estimate, job: TrainingJob, target: Target | None, margin: float) -> str:
    """Return fits, tight, oom or unknown.

    ``oom`` is said only where it is proved: the low end exceeds what the most generous driver reports. ``tight`` is
    everything up to the point where the high end leaves ``margin`` of the usable memory free.
    """
    if target is None:
        return "unknown"
    usable = target.usable_bytes - job.hardware.reserve
    most = target.usable_high_bytes - job.hardware.reserve
    if estimate.low_bytes > most:
        return "oom"
    if estimate.high_bytes > usable * (1 - margin):
        return "tight"
    return "fits"


def predict(job: TrainingJob, target: Target | None, method: str = "simulated") -> tuple[Estimate | None, str | None]:
    """Return the prediction of a resolved job, and why it is only approximate where it is.

    Falls back on the textbook formulas where the model's code is not known, and says so. The estimate is None where the
    job has no architecture.
    """
    architecture = job.architecture
    if architecture is None:
        return None, None
    if method == "first-order":
        from memlint.estimate.first_order import estimate_first_order

        return estimate_first_order(job, target), None
    from memlint.estimate.errors import Unsupported
    from memlint.estimate.simulate import simulate

    try:
        return simulate(job, target), architecture.approximate
    except Unsupported as reason:
        from memlint.estimate.first_order import estimate_first_order

        why = f"{reason}; the prediction comes from textbook formulas, with a wide interval"
        return estimate_first_order(job, target), why
