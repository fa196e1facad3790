"""From a job to its plans: the Pareto front of memory against cost, offers of other methods, limits and hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Mapping

from memlint.job import replace_fields
from memlint.plan import options_scale
from memlint.plan.evaluate import Choice, Evaluator, Outcome
from memlint.plan.goal import HEADROOM, ORDERS, Question
from memlint.plan.limits import hardware_of, limits_of
from memlint.plan.paged import paged_outcome
from memlint.plan.remedy import Remedy
from memlint.plan.result import HardwareNeed, Limits, Plan, PlanReport, Step
from memlint.plan.search import Accept, Search
from memlint.plan.space import Dimension, Setting, remedy_space
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.job import TrainingJob
    from memlint.rules.context import Trial

FRONT_STEP = 0.05
"""A further plan of the front must need at least 5 % less than the one before: less is within the interval."""

MOST_PLANS = 4

SHORTEST = 128
"""Tokens: no shorter sequence is offered."""


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

    def _dimensions(self, job: TrainingJob, *, wide: bool) -> tuple[Dimension, ...]:
        question, target = self._question, self._question.target
        return remedy_space(
            Setting(
                job=job,
                target=target,
                gpus=question.gpus,
                gpus_of_node=max(1, target.gpus // target.nodes) if target is not None else question.gpus,
                parameters=question.estimate.parameters,
                evaluation=question.estimate.evaluation is not None and self._evaluation_matters(),
                wide=wide,
                faster=question.goal == "speed",
            )
        )

    def _evaluation_matters(self) -> bool:
        evaluation, usable = self._question.estimate.evaluation, self._question.usable
        room = None if usable is None else usable * (1 - self._question.margin)
        return evaluation is not None and (room is None or evaluation.high_bytes > room)

    def _host_holds(self, estimate: Estimate) -> bool:
        """Whether a node's main memory holds what a change moves there; what the job itself moves is its own affair."""
        limit = self._question.host_bytes
        return limit is None or estimate.host_bytes <= max(limit, self._question.estimate.host_bytes)

    def _search(self, method: Remedy | None = None, *, wide: bool = False) -> Search:
        """The search over the job's remedies, on top of a change of method where one is given.

        ``wide`` adds tensor parallelism, the dearest of all, so a plan with it is only made where none without it is.
        """
        key = ("wide " if wide else "") + (method.name if method is not None else "")
        if key not in self._searches:
            question = self._question
            job, base = question.job, dict(method.changes) if method is not None else {}
            if base:
                trial = self._try(base)
                job = trial.job if trial is not None and trial.job is not None else replace_fields(job, base)
            evaluator = Evaluator(
                dimensions=self._dimensions(job, wide=wide),
                job=job,
                dialect=question.dialect,
                try_changes=self._try,
                writable=question.writable,
                base=base,
                allowed=self._host_holds,
            )
            same = wide and not any(dimension.name == "tensor" for dimension in evaluator.dimensions)
            self._searches[key] = self._search(method) if same else Search(evaluator, ORDERS[question.goal])
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
        accepts: list[Accept] = [self._fits]
        if question.goal == "headroom":
            accepts.append(lambda estimate: question.judge(estimate) == "fits")
        accepts.append(lambda estimate: question.judge(estimate) in ("fits", "tight"))
        for accept in accepts:
            found = self._cheapest(accept)
            if found is not None:
                return self._plan(*found)
        lowest = self._lowest()
        paged = paged_outcome(question, self._try, lowest[1].remedies) if lowest is not None else None
        return self._plan((), paged) if paged is not None else None

    def _cheapest(self, accept: Accept) -> tuple[Choice, Outcome] | None:
        found = self._search().cheapest(accept)
        return found if found is not None else self._search(wide=True).cheapest(accept)

    def _lowest(self) -> tuple[Choice, Outcome] | None:
        found = [one for wide in (False, True) if (one := self._search(wide=wide).lowest()) is not None]
        return min(found, key=lambda one: one[1].estimate.highest_bytes, default=None)

    def front(self) -> tuple[Plan, ...]:
        """Return the best plan and those that need less at a higher price; without a target, from the job down."""
        question = self._question
        plans: list[Plan] = []
        best = self.best()
        if best is not None:
            plans.append(best)
        elif question.target is not None:
            return ()
        search = self._search(wide=best is not None and any(one.dimension == "tensor" for one in best.remedies))
        lowest = search.lowest()
        if best is not None and lowest is not None and question.judge(lowest[1].estimate) == "oom":
            return (best,)  # paged states: what needs less without them does not fit
        while lowest is not None and len(plans) < MOST_PLANS:
            last = plans[-1].estimate.highest_bytes if plans else question.estimate.highest_bytes
            floor = lowest[1].estimate.highest_bytes
            if floor > last * (1 - FRONT_STEP):
                break
            # Even steps down to the floor, so that a front of many points is shown in a few.
            left = MOST_PLANS - len(plans)
            wanted = max(floor, int(min(last * (1 - FRONT_STEP), last - (last - floor) / left)))
            found = search.cheapest(_below(wanted))
            if found is None:
                break
            plans.append(self._plan(*found))
        return tuple(plans)

    def floor(self) -> Plan | None:
        """Return the plan of the smallest peak."""
        found = self._lowest()
        return self._plan(*found) if found is not None else None

    def offers(self) -> tuple[Plan, ...]:
        """Return what trains something else: LoRA and QLoRA, each with the cheapest other changes it needs to fit, and
        shorter or packed rows that are enough alone.
        """
        plans = list(self._other_rows())
        for method in options_scale.adapters(self._question.job):
            if not self._question.writable(method.changes):
                continue
            search = self._search(method)
            found = search.cheapest(self._fits) if self._question.target is not None else None
            if found is None:
                found = search.lowest()
            if found is not None:
                plans.append(self._plan(*found, method=method))
        return tuple(plans)

    def _other_rows(self) -> Iterator[Plan]:
        """The longest half, quarter, ... of the sequence that fits, and packing where that does."""
        job = self._question.job
        if self._question.target is None:
            return
        lengths = [job.training.sequence_length >> places for places in range(1, 6)]
        shorter = [options_scale.sequence(length) for length in lengths if length >= SHORTEST]
        for remedies in (shorter, options_scale.packed(job)):
            for remedy in remedies:
                trial = self._try(remedy.changes) if self._question.writable(remedy.changes) else None
                if trial is not None and trial.text is not None and self._fits(trial.estimate):
                    outcome = Outcome(remedies=(), changes=remedy.changes, trial=trial)
                    yield self._plan((), outcome, method=remedy)
                    break

    def _plan(self, choice: Choice, outcome: Outcome, method: Remedy | None = None) -> Plan:
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
                    evaluation_bytes=_evaluation_bytes(together) if remedy.dimension == "evaluation" else None,
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
        from memlint.engine.whole_run import judge_run

        question = self._question
        return hardware_of(
            job,
            question.target,
            predict=question.predict,
            judge=lambda estimate, target: judge_run(estimate, job, target, question.margin),
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


def _evaluation_bytes(trial: Trial | None) -> int | None:
    evaluation = trial.estimate.evaluation if trial is not None else None
    return evaluation.device_bytes if evaluation is not None else None


def _below(size: int) -> Accept:
    return lambda estimate: estimate.highest_bytes <= size
