"""What checking gives: one report for each job, and the totals."""

from __future__ import annotations

from typing import Any

from memlint.findings import Finding, Severity
from memlint.records import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The peak of one job against its target, in bytes per GPU."""

    device_bytes: int
    low_bytes: int
    high_bytes: int
    method: str
    verdict: str
    """fits, tight, oom or unknown."""
    target_name: str | None = None
    usable_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class FileReport:
    """One job of one file, or a file without a job."""

    path: str
    """Relative to the working directory where possible, slash-separated."""
    dialect: str | None = None
    label: str | None = None
    """Tells the jobs of one file apart: ``document 2``, ``jobs[0]``; None where there is one."""
    document_index: int | None = None
    """Number of the YAML document that fixes edit; None where the job does not stand in the file as it is read."""
    prediction: Prediction | None = None
    no_prediction: str | None = None
    """Why a recognised training config has no prediction."""
    estimate: dict[str, Any] | None = None
    """The contract's `estimate` object, where details were asked for."""
    findings: list[Finding] = field(default_factory=list)
    """Placed on lines, in order of line, column, code."""
    ignored: int = 0
    baselined: int = 0
    skipped: str | None = None
    """Why nothing was checked in this file."""
    fail_on: Severity = Severity.ERROR
    sources: dict[str, str] = field(default_factory=dict)
    """Text of every file that a finding points into, for excerpts."""
    crash: str | None = None
    """An internal error, as one line; exits 2."""


@dataclass(slots=True, kw_only=True)
class Summary:
    """Totals of a run."""

    checked: int = 0
    """Files in which a training job was found (or that should have been one but are unreadable)."""
    skipped: int = 0
    errors: int = 0
    warnings: int = 0
    infos: int = 0
    ignored: int = 0
    baselined: int = 0
    fixed: int = 0


@dataclass(slots=True, kw_only=True)
class CheckResult:
    """All reports of a run, in order of path."""

    reports: list[FileReport]
    summary: Summary

    @property
    def failed(self) -> bool:
        """Whether a finding stands at or above its file's ``fail-on``."""
        return any(finding.severity >= report.fail_on for report in self.reports for finding in report.findings)

    @property
    def crashes(self) -> list[str]:
        """Internal errors, one line each."""
        return [report.crash for report in self.reports if report.crash is not None]


def summarise(reports: list[FileReport]) -> Summary:
    """Count everything, what was ignored, baselined and skipped included."""
    summary = Summary()
    checked: set[str] = set()
    skipped: set[str] = set()
    for report in reports:
        (checked if report.skipped is None else skipped).add(report.path)
        summary.ignored += report.ignored
        summary.baselined += report.baselined
        for finding in report.findings:
            if finding.severity is Severity.ERROR:
                summary.errors += 1
            elif finding.severity is Severity.WARNING:
                summary.warnings += 1
            else:
                summary.infos += 1
    summary.checked = len(checked)
    summary.skipped = len(skipped - checked)
    return summary
