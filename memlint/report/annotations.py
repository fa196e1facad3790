"""GitHub workflow commands and GitLab code quality: findings beside the changed lines of a review."""

from __future__ import annotations

import json

from memlint.engine.result import CheckResult, FileReport
from memlint.findings import Finding, Severity
from memlint.report.machine import dotted

_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_GITLAB = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.INFO: "info"}


def github_report(result: CheckResult) -> str:
    """Return one workflow command for each finding, worst first: GitHub shows ten of a kind for each step."""
    pairs = [(finding, report) for report in result.reports for finding in report.findings]
    pairs.sort(key=lambda pair: -pair[0].severity)
    return "".join(_command(finding, report) + "\n" for finding, report in pairs)


def _command(finding: Finding, report: FileReport) -> str:
    line, column = finding.line or 1, finding.column or 1
    properties = {
        "file": finding.file or report.path,
        "line": str(line),
        "endLine": str(finding.end_line or line),
        "col": str(column),
    }
    # GitHub drops an annotation whose endColumn is given while the lines differ.
    if (finding.end_line or line) == line:
        properties["endColumn"] = str(finding.end_column or column)
    properties["title"] = f"{finding.code} {finding.name}"
    text = finding.message
    if finding.breakdown:
        text += f"\nbreakdown: {finding.breakdown}"
    for help_line in finding.helps:
        text += f"\nhelp: {help_line.text}"
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{_GITHUB[finding.severity]} {given}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def gitlab_report(result: CheckResult) -> str:
    """Return a GitLab code quality report: a JSON array with one object for each finding."""
    from hashlib import sha256

    entries = []
    seen: dict[str, int] = {}
    for report in result.reports:
        for finding in report.findings:
            identity = f"{finding.code}:{finding.file or report.path}:{report.label or ''}:{dotted(finding.key) or ''}"
            # GitLab drops entries that share a fingerprint, so the n-th of the same identity gets its own.
            seen[identity] = seen.get(identity, 0) + 1
            entries.append(
                {
                    "description": f"{finding.name}: {finding.message}",
                    "check_name": finding.code,
                    "fingerprint": sha256(
                        f"{identity}:{seen[identity]}".encode("utf-8", "surrogateescape")
                    ).hexdigest(),
                    "severity": _GITLAB[finding.severity],
                    "location": {
                        "path": finding.file or report.path,
                        "lines": {"begin": finding.line or 1, "end": finding.end_line or finding.line or 1},
                    },
                }
            )
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
