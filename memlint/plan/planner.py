"""From a job to its plans: the Pareto front of memory against cost, offers of other methods, limits and hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.job import replace_fields
from memlint.plan import options_scale
from memlint.plan.evaluate import Choice, Evaluator, Outcome
from memlint.plan.limits import hardware_of, limits_of
from memlint.plan.remedy import CATEGORIES, Remedy
from memlint.plan.result import HardwareNeed, Limits, Plan, PlanReport, Step
from memlint.plan.search import Accept, Search
from memlint.plan.space import Dimension, Setting, remedy_space
from memlint.records import dataclass, replace

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.rules.context import Trial

GOALS = ("fit", "speed", "headroom")

ORDERS: dict[str, tuple[str, ...]] = {
    "fit": CATEGORIES,
    "headroom": CATEGORIES,
    # Time decides: recomputing and the host's bus are dearest, a lighter optimizer takes no time at all.
    "speed": ("free", "kernel", "optimizer", "sharding", "batch", "compute", "offload"),
}
"""Categories from cheapest to dearest, by goal."""

HEADROOM = 0.25
"""Share of the usable memory that `--for headroom` keeps free at the high end: room for longer batches, evaluation, and
a second process; a choice of memlint."""

FRONT_STEP = 0.05
"""A further plan of the front must need at least 5 % less than the one before: less is within the interval."""

MOST_PLANS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned for."""

    job: TrainingJob
    """With its architecture."""
    estimate: Estimate
    target: Target | None
    usable: int | None
    """Usable bytes of one GPU less what the job reserves."""
    margin: float
    gpus: int
    dialect: str
    try_changes: Callable[[Mapping[str, Any]], Trial | None]
    """Recompute as the dialect would write and read the change."""
    writable: Callable[[Mapping[str, Any]], bool]
    """Whether the dialect can write a change."""
    judge: Callable[[Estimate], str]
    predict: Callable[[TrainingJob, Target | None], Estimate | None]
    goal: str = "fit"


class Planner:
    """Answers one question; every prediction is made once."""

    def __init__(self, question: Question) -> None:
        """Nothing is predicted until asked."""
        self._question = question
        self._searches: dict[str, Search] = {}
        self.tried = 0

    def _try(self, changes: Mapping[str, Any]) -> Trial | None:
        self.tried += 1
        return self._question.try_changes(changes)

    def _dimensions(self, job: TrainingJob) -> tuple[Dimension, ...]:
        question = self._question
        return remedy_space(
            Setting(
                job=job,
                target=question.target,
                gpus=question.gpus,
                parameters=question.estimate.parameters,
                faster=question.goal == "speed",
            )
        )

    def _search(self, method: Remedy | None = None) -> Search:
        """The search over the job's remedies, on top of a change of method where one is given."""
        key = method.name if method is not None else ""
        if key not in self._searches:
            question = self._question
            job, base = question.job, dict(method.changes) if method is not None else {}
            if base:
                trial = self._try(base)
                job = trial.job if trial is not None and trial.job is not None else replace_fields(job, base)
            evaluator = Evaluator(
                dimensions=self._dimensions(job),
                job=job,
                dialect=question.dialect,
                try_changes=self._try,
                writable=question.writable,
                base=base,
            )
            self._searches[key] = Search(evaluator, ORDERS[question.goal])
        return self._searches[key]

    def _fits(self, estimate: Estimate) -> bool:
        if self._question.judge(estimate) != "fits":
            return False
        usable = self._question.usable
        if self._question.goal != "headroom" or usable is None:
            return True
        return estimate.high_bytes <= usable * (1 - HEADROOM)

    def best(self) -> Plan | None:
        """Return the cheapest plan that fits; where none does the cheapest that is tight; None where neither is."""
        question = self._question
        if question.target is None:
            return None
        search = self._search()
        found = search.cheapest(self._fits)
        if found is None and question.goal == "headroom":
            found = search.cheapest(lambda estimate: question.judge(estimate) == "fits")
        if found is None:
            found = search.cheapest(lambda estimate: question.judge(estimate) in ("fits", "tight"))
        return self._plan(search, *found) if found is not None else None

    def front(self) -> tuple[Plan, ...]:
        """Return the best plan and those that need less at a higher price; without a target, from the job down."""
        question, search = self._question, self._search()
        plans: list[Plan] = []
        best = self.best()
        if best is not None:
            plans.append(best)
        elif question.target is not None:
            return ()
        lowest = search.lowest()
        while lowest is not None and len(plans) < MOST_PLANS:
            last = plans[-1].estimate.device_bytes if plans else question.estimate.device_bytes
            floor = lowest[1].estimate.device_bytes
            if floor > last * (1 - FRONT_STEP):
                break
            # Even steps down to the floor, so that a front of many points is shown in a few.
            left = MOST_PLANS - len(plans)
            wanted = max(floor, int(min(last * (1 - FRONT_STEP), last - (last - floor) / left)))
            found = search.cheapest(_below(wanted))
            if found is None:
                break
            plans.append(self._plan(search, *found))
        return tuple(plans)

    def floor(self) -> Plan | None:
        """Return the plan of the smallest peak."""
        search = self._search()
        found = search.lowest()
        return self._plan(search, *found) if found is not None else None

    def offers(self) -> tuple[Plan, ...]:
        """Return LoRA and QLoRA, each with the cheapest other changes it needs to fit."""
        plans = []
        for method in options_scale.adapters(self._question.job):
            if not self._question.writable(method.changes):
                continue
            search = self._search(method)
            found = search.cheapest(self._fits) if self._question.target is not None else None
            if found is None:
                found = search.lowest()
            if found is not None:
                plans.append(self._plan(search, *found, method=method))
        return tuple(plans)

    def _plan(self, search: Search, choice: Choice, outcome: Outcome, method: Remedy | None = None) -> Plan:
        del choice
        remedies = (method, *outcome.remedies) if method is not None else outcome.remedies
        return Plan(
            steps=self._steps(remedies),
            changes=outcome.changes,
            estimate=outcome.estimate,
            verdict=self._question.judge(outcome.estimate),
            text=outcome.trial.text,
            edits=outcome.trial.edits,
            compute=sum(remedy.cost.compute for remedy in remedies),
        )

    def _steps(self, remedies: tuple[Remedy, ...]) -> tuple[Step, ...]:
        steps: list[Step] = []
        changes: dict[str, Any] = {}
        last: int | None = self._question.estimate.device_bytes
        for remedy in remedies:
            changes.update(remedy.changes)
            together, alone = self._try(changes), self._try(remedy.changes)
            size = together.estimate.device_bytes if together is not None and together.text is not None else None
            steps.append(
                Step(
                    remedy=remedy,
                    text=alone.text if alone is not None else None,
                    device_bytes=size,
                    saves_bytes=last - size if last is not None and size is not None else None,
                )
            )
            last = size if size is not None else last
        return tuple(steps)

    def _with_limits(self, plan: Plan) -> Plan:
        trial = self._try(plan.changes) if plan.changes else None
        job = trial.job if trial is not None else self._question.job
        if job is None or plan.verdict != "fits":
            return plan
        return replace(plan, limits=self._limits(job))

    def _limits(self, job: TrainingJob) -> Limits:
        question = self._question
        room = int((question.usable or 0) * (1 - question.margin))
        return limits_of(job, question.target, predict=question.predict, judge=question.judge, room=room)

    def _hardware(self, job: TrainingJob) -> HardwareNeed:
        from memlint.engine.predict import judge

        question = self._question
        return hardware_of(
            job,
            question.target,
            predict=question.predict,
            judge=lambda estimate, target: judge(estimate, job, target, question.margin),
        )

    def report(self) -> PlanReport:
        """Return everything."""
        question = self._question
        plans = self.front()
        verdict = question.judge(question.estimate)
        fitting = bool(plans) and plans[0].verdict == "fits"
        floor = self.floor() if question.target is not None and not fitting else None
        offers = () if verdict == "fits" else self.offers()
        best_job = None
        if plans and plans[0].changes:
            trial = self._try(plans[0].changes)
            best_job = trial.job if trial is not None else None
        if question.target is not None:
            plans = tuple(self._with_limits(plan) for plan in plans)
        return PlanReport(
            estimate=question.estimate,
            verdict=verdict,
            plans=plans,
            offers=offers,
            floor=floor,
            limits=self._limits(question.job) if question.target is not None else None,
            hardware=self._hardware(question.job),
            hardware_of_best=self._hardware(best_job) if best_job is not None else None,
            tried=self.tried,
        )


def _below(size: int) -> Accept:
    return lambda estimate: estimate.device_bytes <= size
