"""Predict a job with a set of remedies applied, each set once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.plan.conflicts import contradiction
from memlint.plan.remedy import Remedy
from memlint.plan.space import Dimension
from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.job import TrainingJob
    from memlint.rules.context import Trial

Choice = tuple[int, ...]
"""One number a dimension: 0 leaves it, n takes its n-th remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A set of remedies, predicted."""

    remedies: tuple[Remedy, ...]
    """In the handbook's order."""
    changes: Mapping[str, Any]
    trial: Trial

    @property
    def estimate(self) -> Estimate:
        """The prediction with the remedies applied."""
        return self.trial.estimate


class Evaluator:
    """Turns choices into outcomes.

    A remedy that the dialect cannot write is none: only what has a text of edits counts. ``base`` are changes that
    every choice starts from (the method, where LoRA is offered).
    """

    def __init__(
        self,
        *,
        dimensions: tuple[Dimension, ...],
        job: TrainingJob,
        dialect: str,
        try_changes: Callable[[Mapping[str, Any]], Trial | None],
        writable: Callable[[Mapping[str, Any]], bool],
        base: Mapping[str, Any] | None = None,
        allowed: Callable[[Estimate], bool] = lambda estimate: True,
    ) -> None:
        """``try_changes`` recomputes the job with native fields changed, ``writable`` says whether the dialect can
        write them; ``job`` has ``base`` applied. ``allowed``: whether the host can hold what is moved to it.
        """
        self._job = job
        self._dialect = dialect
        self._try = try_changes
        self._writable = writable
        self._base = dict(base or {})
        self._allowed = allowed
        self._known: dict[Choice, Outcome | None] = {}
        self.dimensions = self._written(dimensions)
        self.nothing: Choice = (0,) * len(self.dimensions)

    def _written(self, dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
        """Leave out what cannot be written alone, nor together with the remedies that come before it for free."""
        kept = []
        free: dict[str, Any] = {}
        for dimension in dimensions:
            remedies = []
            for remedy in dimension.remedies:
                changes = {**self._base, **remedy.changes}
                if self._writable(changes) or (free and self._writable({**self._base, **free, **remedy.changes})):
                    remedies.append(remedy)
                    if remedy.rank.get("free", 0) < 0:
                        free.update(remedy.changes)
            if remedies:
                kept.append(Dimension(name=dimension.name, remedies=tuple(remedies)))
        return tuple(kept)

    def remedies(self, choice: Choice) -> tuple[Remedy, ...]:
        """Return what a choice takes, in the handbook's order."""
        return tuple(
            dimension.remedies[number - 1] for dimension, number in zip(self.dimensions, choice, strict=True) if number
        )

    def __call__(self, choice: Choice) -> Outcome | None:
        """Return the outcome of a choice; None where it is refused, cannot be written, or cannot be predicted."""
        if choice not in self._known:
            self._known[choice] = self._run(choice)
        return self._known[choice]

    def _changes(self, choice: Choice) -> dict[str, Any]:
        changes = dict(self._base)
        for remedy in self.remedies(choice):
            changes.update(remedy.changes)
        return changes

    def possible(self, choice: Choice) -> bool:
        """Whether a choice contradicts nothing and can be written; nothing is predicted."""
        if choice in self._known:
            return self._known[choice] is not None
        changes = self._changes(choice)
        if contradiction(changes, self._job, self._dialect) is not None:
            return False
        return not changes or self._writable(changes)

    def _run(self, choice: Choice) -> Outcome | None:
        remedies, changes = self.remedies(choice), self._changes(choice)
        if contradiction(changes, self._job, self._dialect) is not None:
            return None
        trial = self._try(changes)
        if trial is None or (changes and trial.text is None) or not self._allowed(trial.estimate):
            return None
        return Outcome(remedies=remedies, changes=changes, trial=trial)
