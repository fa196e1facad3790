"""After the rules: ignore comments, per-file ignores, baseline, order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.engine.result import FileReport
from memlint.engine.suppress import Ignores, per_file_ignored
from memlint.findings import Finding
from memlint.rules.registry import RULES

if TYPE_CHECKING:
    from memlint.document.comments import Pragma
    from memlint.engine.checker import FileCheck

_NEEDS_NOTHING = frozenset({entry.code for entry in RULES if entry.kind == "file"} | {"MEM004", "MEM005"})
"""Rules that speak without a target or a prediction: for want of one, an ignore of any other is not called unused."""


def settle(check: FileCheck, reports: list[FileReport], pragmas: tuple[Pragma, ...]) -> None:
    """Take out silenced and known findings, report unused ignores, sort what is left by line, column, code."""
    ignores = Ignores(pragmas)
    by_settings = per_file_ignored(check.settings, check.relative)
    for report in reports:
        kept: list[Finding] = []
        for finding in report.findings:
            if ignores.silences(finding, report.path) or finding.code in by_settings:
                report.ignored += 1
            else:
                kept.append(finding)
        report.findings = kept
    judged = all(report.prediction is not None and report.prediction.usable_bytes is not None for report in reports)
    ran = (check.active if judged else check.active & _NEEDS_NOTHING) - {"MEM901"}  # silent without a measurement
    unused = [finding for finding in ignores.unused(ran) if finding.code in check.active]
    if unused:
        reports[0].findings += unused
    baseline_path = (check.options.baseline or check.settings.baseline) if check.options.use_baseline else None
    if baseline_path is not None:
        from memlint.engine.baseline import load_baseline

        baseline = load_baseline(baseline_path)
        for report in reports:
            left = [finding for finding in report.findings if not baseline.covers(finding, report)]
            report.baselined = len(report.findings) - len(left)
            report.findings = left
    seen: set[tuple[object, ...]] = set()
    for report in reports:
        report.findings = _distinct(report.findings, seen)
        report.findings.sort(key=lambda finding: (finding.line or 0, finding.column or 0, finding.code))


def _distinct(findings: list[Finding], seen: set[tuple[object, ...]]) -> list[Finding]:
    """Leave out what was said: jobs of one file share its comments and the files they point to."""
    kept = []
    for finding in findings:
        key = (finding.code, finding.file, finding.line, finding.column, finding.message)
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept
