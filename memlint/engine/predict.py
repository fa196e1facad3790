"""From a job to a prediction and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.result import Estimate
from memlint.job import TrainingJob
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.hardware.target import Target
    from memlint.models.architecture import Architecture


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

    Falls back on the textbook formulas where the model's code is not known, or its config is one that code cannot use,
    and says so. The estimate is None where the job has no architecture, or one that not even those formulas can use.
    """
    architecture = job.architecture
    if architecture is None:
        return None, None
    from memlint.estimate.errors import Unsupported
    from memlint.models.fill import UNREADABLE

    why = ""
    if method != "first-order":
        from memlint.estimate.float8 import allowed_for
        from memlint.estimate.nearest import widened
        from memlint.estimate.simulate import simulate

        try:
            estimate = allowed_for(widened(simulate(job, target), architecture), job)
            return _against(estimate, target), architecture.approximate or _ends_at_once(job)
        except Unsupported as reason:
            why = f"{reason}"
        except UNREADABLE as error:
            # The config is untrusted: the model's own code would fail on this one too.
            why = _unusable(architecture, error)
    from memlint.estimate.first_order import estimate_first_order

    try:
        estimate = estimate_first_order(job, target)
    except UNREADABLE as error:
        return None, why or _unusable(architecture, error)
    estimate = _against(estimate, target)
    return estimate, f"{why}; the prediction comes from textbook formulas, with a wide interval" if why else None


def _against(estimate: Estimate, target: Target | None) -> Estimate:
    """Return the estimate with what was taken for granted of the target."""
    if target is None or target.assumption is None:
        return estimate
    return replace(estimate, assumptions=(*estimate.assumptions, target.assumption))


def _ends_at_once(job: TrainingJob) -> str | None:
    """Return why the run ends before its first step, where it does."""
    training = job.training
    if training.attention == "flash":
        from memlint.estimate.flash_refused import refused as refused_flash

        if why := refused_flash(job):
            return why
    if training.quantization is not None and training.quantization.type == "int8":
        from memlint.estimate.int8_refused import refused as refused_int8

        return refused_int8(job)
    return None


def _unusable(architecture: Architecture, error: Exception) -> str:
    """Return why a model cannot be built from its config: a list where its code takes one number, or another value."""
    from memlint.models.fields import FIELDS

    lists = [
        name
        for name, value in architecture.config.items()
        if isinstance(value, (list, tuple)) and name in FIELDS and FIELDS[name].lists
    ]
    if architecture.approximate is not None:
        return f"no memory model for this `{architecture.model_type}` config: {architecture.approximate}"
    what = f"cannot be built from this config ({error!r:.80})"
    if lists:
        what = f"cannot be built with a list, one entry a layer, for `{lists[0]}`"
    return f"a `{architecture.model_type}` {what}: correct config.json"
