"""The JSON report (schemas/report.schema.json)."""

from __future__ import annotations

import json
from typing import Any

from memlint.engine.result import CheckResult, FileReport
from memlint.findings import Finding, Fix

VERSION = 1


def json_report(result: CheckResult) -> str:
    """Return the report of CONTRACT.md, `check --output-format json`. Sizes in bytes, places count from 1."""
    return json.dumps(report_object(result), indent=2, ensure_ascii=False) + "\n"


def report_object(result: CheckResult) -> dict[str, Any]:
    """Return the report as plain data."""
    summary = result.summary
    return {
        "version": VERSION,
        "summary": {
            "checked": summary.checked,
            "skipped": summary.skipped,
            "errors": summary.errors,
            "warnings": summary.warnings,
            "infos": summary.infos,
            "ignored": summary.ignored,
            "baselined": summary.baselined,
            "fixed": summary.fixed,
        },
        "files": [_file(report) for report in result.reports if report.skipped is None],
    }


def _file(report: FileReport) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": report.path, "dialect": report.dialect}
    if report.label is not None:
        entry["label"] = report.label
    if report.no_prediction is not None:
        entry["no_prediction"] = report.no_prediction
    entry["estimate"] = report.estimate
    entry["findings"] = [_finding(finding, report) for finding in report.findings]
    return entry


def _finding(finding: Finding, report: FileReport) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.label,
        "message": finding.message,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "key": dotted(finding.key),
        "saves_bytes": finding.saves_bytes,
        "fits_after": finding.fits_after,
        "fix": _fix(finding.fix),
    }
    if finding.file is not None and finding.file != report.path:
        entry["file"] = finding.file
    if finding.label is not None:
        entry["label"] = finding.label
    if finding.breakdown is not None:
        entry["breakdown"] = finding.breakdown
    if finding.notes:
        entry["notes"] = list(finding.notes)
    if finding.helps:
        entry["help"] = [
            {
                "text": line.text,
                "saves_bytes": line.saves_bytes,
                "fits_after": line.fits_after,
                "fix": _fix(line.fix),
            }
            for line in finding.helps
        ]
    return entry


def _fix(fix: Fix | None) -> dict[str, Any] | None:
    if fix is None:
        return None
    edits = []
    for edit in fix.edits:
        entry: dict[str, Any] = {"path": list(edit.path)}
        if edit.delete:
            entry["delete"] = True
        else:
            entry["value"] = edit.value
        if edit.file is not None:
            entry["file"] = edit.file
        edits.append(entry)
    return {"safe": fix.safe, "edits": edits}


def dotted(key: tuple[str | int, ...] | None) -> str | None:
    """Return a key path as text: ``training.micro_batch_size``; None stays None."""
    return None if key is None else ".".join(str(step) for step in key)
