"""Check one file: documents, dialect, jobs, predictions, rules, ignores, baseline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping

from memlint.document.model import Document
from memlint.engine import bare
from memlint.engine.crash import RuleCrash
from memlint.engine.discover import Found, relative_to
from memlint.engine.job_check import JobCheck
from memlint.engine.options import CheckOptions
from memlint.engine.result import FileReport
from memlint.engine.rules_run import file_findings
from memlint.rules.select import active_codes, named_codes
from memlint.settings.load import settings_for
from memlint.settings.model import Settings

if TYPE_CHECKING:
    from memlint.dialects.base import Dialect, Problem
    from memlint.document.comments import Pragma
    from memlint.hardware.target import Target

NOT_A_CONFIG = "no training config"


class FileCheck:
    """Everything that is decided once for a file: settings, active rules, declared target."""

    def __init__(self, path: str, options: CheckOptions, target: Target | None) -> None:
        """``target`` is the one of the command line."""
        self.path = path
        self.options = options
        folder = os.path.dirname(os.path.abspath(path))
        self.settings = Settings() if options.isolated else settings_for(folder)
        self.relative = relative_to(self.settings.root, path)
        self.overrides = self.settings.overrides_for(self.relative)
        select = options.select or self.settings.select
        ignored = [code for override in self.overrides for code in override.ignore]
        self.active = active_codes(select, (*self.settings.ignore, *ignored, *options.ignore))
        self.named = named_codes(select)
        self.command_line_target = target
        self.margin, self.fail_on, self.training = self._overridden()

    def _overridden(self) -> tuple[float, Any, Mapping[str, Any] | None]:
        margin, fail_on, training = self.settings.margin, self.settings.fail_on, self.settings.training
        for override in self.overrides:
            margin = margin if override.margin is None else override.margin
            fail_on = fail_on if override.fail_on is None else override.fail_on
            training = training if override.training is None else override.training
        return margin, self.options.fail_on or fail_on, training

    def report(self, **values: Any) -> FileReport:
        """Return an empty report of this file."""
        return FileReport(path=self.path, fail_on=self.fail_on, **values)


def check_file(
    found: Found, options: CheckOptions, target: Target | None = None, content: bytes | None = None
) -> list[FileReport]:
    """Return the reports of one file: one for each job in it, at least one. Raises UserError for bad settings."""
    if found.skipped is not None:
        return [FileReport(path=found.path, skipped=found.skipped)]
    if content is None:
        from memlint.document.load import read_bytes

        read = read_bytes(found.path)
        if not isinstance(read, bytes):
            return [_unreadable(found, options, target, read)]
        content = read
    if found.path.endswith(".toml"):
        check = FileCheck(found.path, options, target)
        if check.settings.source is not None and os.path.abspath(found.path) == check.settings.source:
            return _check_settings_jobs(check, content)
        return [check.report(skipped=NOT_A_CONFIG)]
    from memlint.dialects.registry import may_be_config

    # Most files of a repository end here: before its settings are looked up, and before it is parsed.
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if not wide and b'"model_type"' not in content and not may_be_config(content.decode("utf-8", "replace")):
        return [FileReport(path=found.path, skipped=NOT_A_CONFIG)]
    from memlint.document.load import load_documents

    check = FileCheck(found.path, options, target)
    documents = load_documents(content, found.path)
    pragmas, problems = _pragmas(documents[0].text, documents[0].format)
    if problems:
        documents[0].problems = (*documents[0].problems, *problems)
    reports: list[FileReport] = []
    for document in documents:
        name = f"document {document.index + 1}" if len(documents) > 1 else None
        reports += check_document(check, document, pragmas, name)
    return _settle(check, reports, pragmas)


def _pragmas(text: str, kind: str) -> tuple[tuple[Pragma, ...], tuple[Any, ...]]:
    if "memlint:" not in text or kind == "json":
        return (), ()
    from memlint.document.comments import find_pragmas

    return find_pragmas(text, kind)


def _unreadable(found: Found, options: CheckOptions, target: Target | None, problem: Any) -> FileReport:
    """A file that cannot be opened is a finding where the user named it, and no business of ours in a folder."""
    check = FileCheck(found.path, options, target)
    if not found.explicit or found.path.endswith(".json") or "MEM001" not in check.active:
        return check.report(skipped=problem.message)
    document = Document(path=found.path, text="", format="yaml", data=None, problems=(problem,))
    return check.report(findings=list(file_findings(document, (), check.active)), no_prediction="unreadable")


def check_document(
    check: FileCheck, document: Document, pragmas: tuple[Pragma, ...], label: str | None
) -> list[FileReport]:
    """Return the reports of one document, findings not yet silenced."""
    from memlint.dialects.registry import by_name, recognise

    forced = next((pragma.values[0] for pragma in pragmas if pragma.kind == "dialect"), None)
    dialect: Dialect | None = by_name(forced) if forced else None
    misnamed = _unknown_dialect(pragmas) if forced and dialect is None else ()
    if any(problem.fatal for problem in document.problems):
        # Unreadable: ours to report only where what could be read, or the text, is that of a training config.
        known = dialect or (recognise(document) if isinstance(document.data, dict) else None)
        if known is None and not _has_config_key(document):
            return [check.report(label=label, skipped=NOT_A_CONFIG)]
        report = check.report(label=label, dialect=known.name if known else None, no_prediction="unreadable")
        return [_with_findings(report, check, document, misnamed)]
    dialect = dialect or recognise(document)
    if dialect is None and misnamed:
        return [_with_findings(check.report(label=label, no_prediction="see the findings"), check, document, misnamed)]
    if dialect is None:
        if bare.is_model_config(document):
            return _check_model_config(check, document, label)
        return [check.report(label=label, skipped=NOT_A_CONFIG)]
    return check_jobs(check, document, dialect, pragmas, label, misnamed=misnamed)


def _unknown_dialect(pragmas: tuple[Pragma, ...]) -> tuple[Problem, ...]:
    from memlint.dialects.base import Problem
    from memlint.dialects.registry import DIALECTS
    from memlint.dialects.values import did_you_mean, show

    named = next(pragma for pragma in pragmas if pragma.kind == "dialect")
    hint = did_you_mean(named.values[0].lower(), [dialect.name for dialect in DIALECTS])
    message = f"no dialect is called `{show(named.values[0])}`{hint}"
    return (Problem(code="MEM003", key=(), message=message, line=named.line, column=named.column),)


def _has_config_key(document: Document) -> bool:
    """Whether a text that does not parse has a training config's key in the place of a key."""
    import re

    from memlint.dialects.registry import DIALECTS

    # Other programs write DeepSpeed's keys into YAML; DeepSpeed itself reads JSON.
    dialects = [dialect for dialect in DIALECTS if dialect.name != "deepspeed" or document.format == "json"]
    markers = "|".join(re.escape(mark) for dialect in dialects for mark in dialect.markers)
    return re.search(rf'^[ \t]*"?(?:{markers})"?[ \t]*:', document.text, re.M) is not None


def check_jobs(
    check: FileCheck,
    document: Document,
    dialect: Dialect,
    pragmas: tuple[Pragma, ...],
    label: str | None,
    shown_dialect: str | None = None,
    misnamed: tuple[Problem, ...] = (),
) -> list[FileReport]:
    """Return a report for each job that ``dialect`` reads from ``document``; ``misnamed``: a comment's dialect."""
    name = shown_dialect or dialect.name
    job_check = JobCheck(check, document, dialect, pragmas)
    reading = job_check.reading
    problems = (*misnamed, *reading.problems, *job_check.problems)
    if not reading.jobs:
        report = check.report(label=label, dialect=name)
        _with_findings(report, check, document, problems, job_check.opened())
        if not report.findings:
            report.skipped = reading.skipped or "no training job in it"
        else:
            report.no_prediction = reading.skipped or "see the findings"
        return [report]
    reports = []
    for index in range(len(reading.jobs)):
        several = f"job {index + 1}" if len(reading.jobs) > 1 else None
        report = check.report(label=", ".join(filter(None, (label, several))) or None, dialect=name)
        if shown_dialect is None and not check.path.endswith(".toml"):
            report.document_index = document.index
        try:
            findings = job_check.run(index, report)
            problems_here = (*problems, *job_check.problems_of(index))
            if index == 0:
                _with_findings(report, check, document, problems_here, job_check.opened())
            elif job_check.problems_of(index):
                _with_findings(report, check, document, job_check.problems_of(index), job_check.opened(), syntax=False)
            _add(report, findings, document, job_check.opened())
        except RuleCrash as crash:
            report.crash = f"{check.path}: {crash}"
        reports.append(report)
    return reports


def _with_findings(
    report: FileReport,
    check: FileCheck,
    document: Document,
    problems: tuple[Problem, ...],
    opened: Mapping[str, Document] | None = None,
    *,
    syntax: bool = True,
) -> FileReport:
    if document.problems or problems:
        source = (
            document
            if syntax
            else Document(
                path=document.path,
                text=document.text,
                format=document.format,
                data=document.data,
                _locate=document.spans,
            )
        )
        _add(report, file_findings(source, problems, check.active), document, opened or {})
    return report


def _add(report: FileReport, findings: list[Any], document: Document, opened: Mapping[str, Document]) -> None:
    if not findings:
        return
    from memlint.engine.place import place_finding

    for finding in findings:
        report.findings.append(place_finding(finding, document, opened))
        file = finding.file or document.path
        source = document if file == document.path else opened.get(file)
        if source is not None:
            report.sources[file] = source.text


def _check_model_config(check: FileCheck, document: Document, label: str | None) -> list[FileReport]:
    """A bare config.json: predicted where the settings say how it is trained, else its shape is validated."""
    if check.training is not None:
        native = _native()
        return check_jobs(check, bare.model_job(document, check.training), native, (), label, bare.HF_CONFIG)
    from memlint.dialects.base import Problem
    from memlint.models.config import read_config

    read = read_config(document.mapping, id=document.path, source="path")
    report = check.report(label=label, dialect=bare.HF_CONFIG)
    problems: tuple[Problem, ...] = ()
    if isinstance(read, list):
        problems = tuple(Problem(code=p.code, key=p.key, message=p.message) for p in read if p.code == "MEM003")
    _with_findings(report, check, document, problems)
    if report.findings:
        report.no_prediction = "see the findings"
    else:
        report.skipped = "a model's config; `training` in the settings would predict it"
    return [report]


def _native() -> Dialect:
    from memlint.dialects.registry import by_name

    native = by_name("native")
    assert native is not None
    return native


def _check_settings_jobs(check: FileCheck, content: bytes) -> list[FileReport]:
    """The `jobs` of a settings file, when that file is among those checked."""
    if not check.settings.jobs:
        return [check.report(skipped="settings without jobs")]
    from memlint.document.load import load_documents

    document = load_documents(content, check.path)[0]
    prefix = () if os.path.basename(check.path) == "memlint.toml" else ("tool", "memlint")
    native = _native()
    pragmas, _ = _pragmas(document.text, document.format)
    reports: list[FileReport] = []
    for index, job in enumerate(bare.settings_jobs(document, check.settings.jobs, prefix)):
        reports += check_jobs(check, job, native, pragmas, f"jobs[{index}]")
    return _settle(check, reports, pragmas)


def _settle(check: FileCheck, reports: list[FileReport], pragmas: tuple[Pragma, ...]) -> list[FileReport]:
    """Silence, compare with the baseline, and sort: the one place where this is decided."""
    live = [report for report in reports if report.skipped is None]
    if not live:
        return reports[:1]
    if any(report.findings or report.ignored for report in live) or pragmas:
        from memlint.engine.settle import settle

        settle(check, live, pragmas)
    return live
