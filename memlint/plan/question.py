"""Ask for plans: from a source on the command line, or from a job that is being checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.engine.predict import predict, usable_bytes
from memlint.engine.whole_run import judge_run, with_evaluation
from memlint.hardware.target import host_memory
from memlint.job import TrainingJob, replace_fields
from memlint.plan.goal import Question
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.engine.source import Source
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.rules.context import Context, Trial

    TryChanges = Callable[[Mapping[str, Any]], Trial | None]


def _predict(job: TrainingJob, target: Target | None) -> Estimate | None:
    estimate = predict(job, target)[0]
    return with_evaluation(estimate, job, target) if estimate is not None else None


def _whole_run(try_changes: TryChanges, target: Target | None) -> TryChanges:
    """Trials whose estimates hold the run's evaluation too."""
    memo: dict[Any, Any] = {}
    known: dict[tuple[tuple[str, Any], ...], Trial] = {}

    def tried(changes: Mapping[str, Any]) -> Trial | None:
        trial = try_changes(changes)
        if trial is None or trial.job is None or trial.job.training.eval_micro_batch_size is None:
            return trial
        key = tuple(sorted(changes.items(), key=lambda item: item[0]))
        if key not in known:
            known[key] = replace(trial, estimate=with_evaluation(trial.estimate, trial.job, target, memo))
        return known[key]

    return tried


def _question(
    job: TrainingJob, estimate: Estimate, target: Target | None, margin: float, try_changes: TryChanges, **more: Any
) -> Question:
    return Question(
        job=job,
        estimate=with_evaluation(estimate, job, target),
        target=target,
        usable=usable_bytes(job, target),
        margin=margin,
        gpus=job.parallelism.gpus or (target.gpus if target is not None else 1),
        host_bytes=host_memory(job.hardware.host_memory, target) if not job.pages else None,
        try_changes=_whole_run(try_changes, target),
        judge=lambda other: judge_run(other, job, target, margin),
        predict=_predict,
        **more,
    )


def from_context(context: Context, goal: str = "fit") -> Question | None:
    """Return the question of a job under check; None where it has no prediction."""
    if context.estimate is None:
        return None
    return _question(
        context.job,
        context.estimate,
        context.target,
        context.margin,
        context.try_changes,
        dialect=dialect_of(context.job),
        writable=context.writable,
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
        estimate=lambda changed: predict(changed, target)[0],
        finish=source.check.completed,
    )
    known: dict[tuple[tuple[str, Any], ...], Trial | None] = {}

    def on_the_job(changes: Mapping[str, Any]) -> Trial | None:
        key = tuple(sorted(changes.items(), key=lambda item: item[0]))
        if key not in known:
            changed = replace_fields(job, changes)
            made = predict(changed, target)[0]
            edits = source.dialect.express(changes, document, job)
            text = edits_text(edits, document) if edits else None
            known[key] = Trial(estimate=made, text=text, job=changed) if made is not None else None
        return known[key]

    return _question(
        job,
        estimate,
        target,
        source.margin,
        on_the_job if hypothetical else trials,
        dialect=source.dialect_name,
        writable=trials.writable,
        goal=goal,
    )


def dialect_of(job: TrainingJob) -> str:
    """Return the name of the dialect that made a job: the first word of its framework, in lower case."""
    return job.framework.partition(" ")[0].lower()
