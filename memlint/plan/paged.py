"""The last resort: optimizer states that move to the host where the GPU is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.plan.conflicts import contradiction
from memlint.plan.evaluate import Outcome
from memlint.plan.options import paged_states
from memlint.plan.space import DIMENSIONS

if TYPE_CHECKING:
    from memlint.plan.goal import Question
    from memlint.plan.remedy import Remedy
    from memlint.rules.context import Trial

    TryChanges = Callable[[Mapping[str, Any]], Trial | None]


def paged_outcome(question: Question, try_changes: TryChanges, floor: tuple[Remedy, ...]) -> Outcome | None:
    """Return paged states on top of what else of ``floor``, the remedies of the lowest peak, is needed; None where even
    the low end does not fit then.
    """
    paged = paged_states(question.job)
    if paged is None:
        return None

    def outcome(remedies: list[Remedy]) -> Outcome | None:
        changes: dict[str, Any] = {}
        for remedy in remedies:
            changes.update(remedy.changes)
        if contradiction(changes, question.job, question.dialect) is not None or not question.writable(changes):
            return None
        trial = try_changes(changes)
        if trial is None or trial.text is None or question.judge(trial.estimate) == "oom":
            return None
        return Outcome(remedies=tuple(remedies), changes=changes, trial=trial)

    kept = [one for one in floor if one.dimension not in ("optimizer", "step-in-backward")]
    kept = sorted([*kept, paged], key=lambda one: DIMENSIONS.index(one.dimension))
    found = outcome(kept)
    for remedy in reversed(kept):
        less = [one for one in kept if one is not remedy]
        if found is None or remedy is paged:
            continue
        without = outcome(less)
        if without is not None:
            found, kept = without, less
    return found
