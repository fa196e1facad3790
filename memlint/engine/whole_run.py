"""A run as a whole: its training step, the evaluations between steps, and what it keeps in host memory.

A verdict of `check` is that of the step; rules speak of the rest. A plan must hold all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.engine.predict import judge
from memlint.hardware.target import host_memory
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob

Memo = dict[Any, Any]

_WORST = ("fits", "tight", "oom")


def with_evaluation(estimate: Estimate, job: TrainingJob, target: Target | None, memo: Memo | None = None) -> Estimate:
    """Return the estimate with the run's evaluation, where the run has one that may need more than the step.

    ``memo`` keeps what jobs that differ in nothing an evaluation depends on share.
    """
    if job.training.eval_micro_batch_size is None:
        return estimate
    from memlint.estimate.evaluation import below_the_step, evaluation_of

    if below_the_step(job):
        return estimate
    return replace(estimate, evaluation=evaluation_of(job, estimate, target, memo))


def judge_run(estimate: Estimate, job: TrainingJob, target: Target | None, margin: float) -> str:
    """Return the worst verdict of step, evaluation (as far as ``estimate`` holds it) and host memory."""
    verdict = judge(estimate, job, target, margin)
    if target is None:
        return verdict
    found = [verdict]
    evaluation = estimate.evaluation
    if evaluation is not None:
        between = replace(estimate, low_bytes=evaluation.low_bytes, high_bytes=evaluation.high_bytes)
        found.append(judge(between, job, target, margin))
    limit = host_memory(job.hardware.host_memory, target) if not job.pages else None
    if limit is not None and estimate.host_bytes > limit:
        found.append("oom")
    return max(found, key=_WORST.index)
