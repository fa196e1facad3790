"""SARIF 2.1.0 for code scanning (OASIS, Static Analysis Results Interchange Format, errata 01)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from memlint import __version__
from memlint.engine.result import CheckResult, FileReport
from memlint.findings import Finding, Severity
from memlint.report.machine import dotted
from memlint.rules.registry import BY_CODE

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif_report(result: CheckResult) -> str:
    """Return the report as SARIF; ``results`` is an empty list where there is nothing to say."""
    return json.dumps(sarif_object(result), indent=2, ensure_ascii=False) + "\n"


def sarif_object(result: CheckResult) -> dict[str, Any]:
    """Return the SARIF log as plain data."""
    used = sorted({finding.code for report in result.reports for finding in report.findings})
    index = {code: number for number, code in enumerate(used)}
    driver: dict[str, Any] = {"name": "memlint", "version": __version__, "semanticVersion": __version__}
    if used:
        driver["rules"] = [_rule(code) for code in used]
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, report, index) for report in result.reports for finding in report.findings],
    }
    if result.crashes:
        run["invocations"] = [
            {
                "executionSuccessful": False,
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": crash}} for crash in result.crashes
                ],
            }
        ]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    entry = BY_CODE[code]
    text = (entry.load().__doc__ or "").strip()
    return {
        "id": code,
        "name": entry.name,
        "shortDescription": {"text": entry.summary},
        "fullDescription": {"text": entry.summary},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": _LEVELS[entry.severity]},
    }


def _uri(path: str) -> str:
    """Return a path as a URI reference; a file name that is not UTF-8 keeps its bytes."""
    return quote(path.encode("utf-8", "surrogateescape"))


def _result(finding: Finding, report: FileReport, index: dict[str, int]) -> dict[str, Any]:
    text = finding.message
    if finding.breakdown:
        text += f"\nbreakdown: {finding.breakdown}"
    for help_line in finding.helps:
        text += f"\nhelp: {help_line.text}"
    line, column = finding.line or 1, finding.column or 1
    region: dict[str, Any] = {"startLine": line, "startColumn": column}
    if finding.end_line is not None and finding.end_column is not None:
        region["endLine"] = finding.end_line
        region["endColumn"] = finding.end_column
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.file or report.path)},
                    "region": region,
                }
            }
        ],
        # Survives moved lines: what code scanning matches a result by between two runs.
        "partialFingerprints": {"memlint/v1": f"{finding.code}:{report.path}:{dotted(finding.key) or ''}"},
    }
    return result
