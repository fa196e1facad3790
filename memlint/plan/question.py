"""Ask for plans: from a source on the command line, or from a job that is being checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from memlint.engine.predict import judge, predict, usable_bytes
from memlint.job import TrainingJob, replace_fields
from memlint.plan.planner import Question

if TYPE_CHECKING:
    from memlint.engine.source import Source
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.rules.context import Context, Trial


def _predict(job: TrainingJob, target: Target | None) -> Estimate | None:
    return predict(job, target)[0]


def from_context(context: Context, goal: str = "fit") -> Question | None:
    """Return the question of a job under check; None where it has no prediction."""
    if context.estimate is None:
        return None
    return Question(
        job=context.job,
        estimate=context.estimate,
        target=context.target,
        usable=context.usable,
        margin=context.margin,
        gpus=context.gpus,
        dialect=dialect_of(context.job),
        try_changes=context.try_changes,
        writable=context.writable,
        judge=context.judge,
        predict=_predict,
        goal=goal,
    )


def from_source(source: Source, estimate: Estimate, *, hypothetical: bool, goal: str = "fit") -> Question:
    """Return the question of a source.

    ``hypothetical``: the job is not what the file says (``--set``, a bare model), so changes are predicted on the job
    rather than through the edited file; the dialect still decides which of them can be written.
    """
    from memlint.engine.trials import Trials, edits_text
    from memlint.rules.context import Trial

    job, target, document = source.job, source.target, source.document
    trials = Trials(
        document=document,
        dialect=source.dialect,
        job=job,
        index=source.index,
        companions=source.check.companions_with,
        estimate=lambda changed: _predict(changed, target),
        finish=source.check.with_gpus,
    )
    known: dict[tuple[tuple[str, Any], ...], Trial | None] = {}

    def on_the_job(changes: Mapping[str, Any]) -> Trial | None:
        key = tuple(sorted(changes.items(), key=lambda item: item[0]))
        if key not in known:
            changed = replace_fields(job, changes)
            made = _predict(changed, target)
            edits = source.dialect.express(changes, document, job)
            text = edits_text(edits, document) if edits else None
            known[key] = Trial(estimate=made, text=text, job=changed) if made is not None else None
        return known[key]

    return Question(
        job=job,
        estimate=estimate,
        target=target,
        usable=usable_bytes(job, target),
        margin=source.margin,
        gpus=job.parallelism.gpus or (target.gpus if target is not None else 1),
        dialect=source.dialect_name,
        try_changes=on_the_job if hypothetical else trials,
        writable=trials.writable,
        judge=lambda other: judge(other, job, target, source.margin),
        predict=_predict,
        goal=goal,
    )


def dialect_of(job: TrainingJob) -> str:
    """Return the name of the dialect that made a job: the first word of its framework, in lower case."""
    return job.framework.partition(" ")[0].lower()
