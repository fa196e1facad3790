"""Check the jobs of one document: target, model, prediction, rules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.dialects.base import Problem, Reading
from memlint.document.model import Document
from memlint.engine import targets
from memlint.engine.companions import Companions, repository_root
from memlint.engine.crash import RuleCrash, crash_text
from memlint.engine.predict import judge, predict, usable_bytes
from memlint.engine.result import FileReport, Prediction
from memlint.engine.rules_run import job_findings
from memlint.engine.versions import pinned_versions, version_assumptions
from memlint.estimate.kernels import package
from memlint.findings import Finding
from memlint.job import Origin, replace_fields
from memlint.records import replace
from memlint.rules.context import Context, Measured, Trial
from memlint.units import parse_bytes

if TYPE_CHECKING:
    from memlint.dialects.base import Dialect
    from memlint.document.comments import Pragma
    from memlint.engine.checker import FileCheck
    from memlint.engine.trials import Trials
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob


class _Lazy:
    """Trials of one job, imported when the first change is tried: a good file needs none."""

    def __init__(self, make: Callable[[], Trials]) -> None:
        self._make = make
        self._made: Trials | None = None

    def _trials(self) -> Trials:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __call__(self, changes: Mapping[str, Any]) -> Trial | None:
        return self._trials()(changes)

    def writable(self, changes: Mapping[str, Any]) -> bool:
        return self._trials().writable(changes)


class JobCheck:
    """The jobs of one document, read once."""

    def __init__(self, check: FileCheck, document: Document, dialect: Dialect, pragmas: tuple[Pragma, ...]) -> None:
        """Read ``document`` with ``dialect``."""
        self._check = check
        self._document = document
        self._dialect = dialect
        self.problems: list[Problem] = []
        """Found here rather than by the dialect: a target that does not exist."""
        self._of_job: dict[int, tuple[Problem, ...]] = {}
        self._pragma_target = self._target_of(pragmas)
        outer = (
            check.command_line_target or self._pragma_target or targets.from_settings(check.settings, check.overrides)
        )
        self._gpus_pragma = next((pragma for pragma in pragmas if pragma.kind == "gpus"), None)
        declared = int(self._gpus_pragma.values[0]) if self._gpus_pragma is not None else None
        self._outer_target = outer
        self._measured_pragma = next((pragma for pragma in pragmas if pragma.kind == "measured"), None)
        self._gpus = declared or (outer.gpus if outer is not None else None)
        folder = os.path.dirname(os.path.abspath(document.path))
        root = repository_root(folder)
        self._search_root = check.settings.search_root or root or check.settings.root or _working_folder(folder)
        self._boundary = root or check.settings.root or self._search_root
        self._versions = {**pinned_versions(folder, self._boundary), **check.settings.versions}
        self._companions = self.companions_with({})
        self.reading: Reading = dialect.read(document, self._companions)

    def opened(self) -> Mapping[str, Document]:
        """Companion files read so far, by the path shown to the user."""
        return self._companions.opened

    def problems_of(self, index: int) -> tuple[Problem, ...]:
        """Problems that came up while one job was resolved."""
        return self._of_job.get(index, ())

    def run(self, index: int, report: FileReport) -> list[Finding]:
        """Predict job ``index``, fill in ``report``, and return what the rules say."""
        check = self._check
        job, unresolved = self.resolve(index, self.completed(self.reading.jobs[index]))
        target = self.target_for(index, job)
        try:
            estimate, approximate = predict(job, target)
        except Exception as error:
            raise RuleCrash(f"the prediction failed: {crash_text(error)}") from error
        if estimate is None and unresolved is None and job.architecture is not None:
            unresolved, approximate = approximate, None
        if estimate is not None and not estimate.trainable_parameters:
            from memlint.engine.trained import names_nothing

            problem = names_nothing(job, estimate)
            if problem is not None:
                self._of_job[index] = (*self.problems_of(index), problem)
        usable = usable_bytes(job, target)
        verdict = "unknown" if estimate is None else judge(estimate, job, target, check.margin)
        if estimate is not None:
            report.prediction = Prediction(
                device_bytes=estimate.device_bytes,
                low_bytes=estimate.low_bytes,
                high_bytes=estimate.high_bytes,
                method=estimate.method,
                verdict=verdict,
                target_name=target.name if target else None,
                usable_bytes=usable,
            )
        else:
            report.no_prediction = unresolved or "see the findings"
        trials = self._trials(job, index, target)
        context = Context(
            document=self._document,
            job=job,
            estimate=estimate,
            target=target,
            verdict=verdict,
            usable=usable,
            margin=check.margin,
            named=check.named,
            unresolved=None if self.problems_of(index) else unresolved,
            approximate=approximate,
            try_changes=trials,
            writable=trials.writable,
            judge=lambda other: judge(other, job, target, check.margin),
            measured=self._stated(estimate),
        )
        verified = None
        if check.options.verify and estimate is not None:
            from memlint.measure.verify.checked import verify_checked

            verified = verify_checked(job, report, self._dialect.name, check.options.verify_device, context.gpus)
            context.measured = verified.measured or context.measured
        findings = job_findings(context, check.active)
        if check.options.details and estimate is not None:
            from memlint.engine.estimate_json import estimate_object

            report.estimate = estimate_object(
                document=self._document,
                companions=self.opened(),
                dialect=report.dialect or self._dialect.name,
                job=job,
                estimate=estimate,
                target=target,
                usable=usable,
                verdict=verdict,
                approximate=approximate,
            )
            if verified is not None and verified.report is not None:
                report.estimate["verification"] = verified.report
        return findings

    def _stated(self, estimate: Any) -> Measured | None:
        """The peak of ``# memlint: measured=23.6GiB``, in a file of one job."""
        pragma = self._measured_pragma
        if pragma is None or estimate is None or len(self.reading.jobs) != 1:
            return None
        return Measured(
            measured_bytes=parse_bytes(pragma.values[0]),
            low_bytes=estimate.low_bytes,
            expected_bytes=estimate.device_bytes,
            high_bytes=estimate.high_bytes,
            where="stated in a comment",
            line=pragma.line,
            column=pragma.column,
        )

    def completed(self, job: TrainingJob) -> TrainingJob:
        """The job with what its file's comments and the settings say and the config itself does not."""
        memory = self._check.settings.host_memory
        if memory is not None and job.hardware.host_memory is None:
            job = replace_fields(job, {"hardware.host_memory": memory})
        optional = {name: version for name, version in self._versions.items() if package(name)}
        if optional:
            # No dialect knows them: they change what transformers runs, whichever framework calls it.
            job = replace(job, versions={**optional, **job.versions})
        return self._with_gpus(job)

    def _with_gpus(self, job: TrainingJob) -> TrainingJob:
        """The world size of ``# memlint: gpus=N``, where the config itself states none."""
        pragma = self._gpus_pragma
        if pragma is None or job.parallelism.gpus is not None:
            return job
        origin = Origin(file=self._document.path, line=pragma.line, column=pragma.column)
        changed = replace_fields(job, {"parallelism.gpus": int(pragma.values[0])})
        return replace(changed, origins={**job.origins, "parallelism.gpus": origin})

    def companions_with(self, overlays: Mapping[str, Document]) -> Companions:
        """A reader of companion files in which some, by shown path, are replaced."""
        return Companions(
            search_root=self._search_root,
            boundary=self._boundary,
            gpus=self._gpus,
            versions=self._versions,
            training=self._check.training,
            target=self._outer_target,
            overlays=overlays,
        )

    def _trials(self, job: TrainingJob, index: int, target: Target | None) -> _Lazy:
        """What recomputes a changed job, made when a rule first asks."""

        def make() -> Trials:
            from memlint.engine.trials import Trials

            return Trials(
                document=self._document,
                dialect=self._dialect,
                job=job,
                index=index,
                companions=self.companions_with,
                estimate=lambda changed: predict(changed, target)[0],
                finish=self.completed,
            )

        return _Lazy(make)

    def resolve(self, index: int, job: TrainingJob) -> tuple[TrainingJob, str | None]:
        """Return the job with its architecture, or with None and the reason; releases that it assumes are said."""
        from memlint.engine.bounds import beyond_bounds
        from memlint.engine.models import resolve

        problems = beyond_bounds(job)
        if problems:
            self._of_job[index] = problems
            return replace(job, architecture=None), problems[0].message
        resolved, unresolved, problems = resolve(
            job,
            document=self._document,
            companions=self._companions,
            settings=self._check.settings,
            offline=self._check.options.offline or self._check.settings.offline,
            use_cache=self._check.options.use_cache,
        )
        self._of_job[index] = problems
        assumed = version_assumptions(resolved.versions, self._versions)
        if assumed:
            resolved = replace(resolved, assumptions=(*resolved.assumptions, *assumed))
        return resolved, unresolved

    def _target_of(self, pragmas: tuple[Pragma, ...]) -> Target | None:
        found = None
        for pragma in pragmas:
            if pragma.kind == "target":
                try:
                    found = targets.declared_in_file(pragma.values[0])
                except targets.BadTarget as error:
                    problem = Problem(code="MEM003", key=(), message=str(error), line=pragma.line, column=pragma.column)
                    self.problems.append(problem)
        return found

    def target_for(self, index: int, job: TrainingJob) -> Target | None:
        """Strongest first: command line, comment, ``hardware.target`` of the job, settings."""
        strongest = self._check.command_line_target or self._pragma_target
        if strongest is not None or job.hardware.target is None:
            return strongest or self._outer_target
        try:
            return targets.declared_in_file(job.hardware.target)
        except targets.BadTarget as error:
            origin = job.origin("hardware.target")
            key = origin.key if origin is not None else ()
            if not any(problem.key == key for problem in self.reading.problems):
                self._of_job[index] = (
                    *self.problems_of(index),
                    Problem(code="MEM003", key=key, message=str(error)),
                )
            return self._outer_target


def _working_folder(folder: str) -> str:
    here = os.getcwd()
    return here if folder == here or folder.startswith(here.rstrip(os.sep) + os.sep) else folder
