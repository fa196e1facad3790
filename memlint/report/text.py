"""The report for people: one line for each config, then what is wrong with it, where, and what to do."""

from __future__ import annotations

import re
from typing import Iterator

from memlint.engine.result import CheckResult, FileReport, Prediction, Summary
from memlint.findings import Finding, Severity
from memlint.report.style import Style
from memlint.units import gib

_LINE_END = re.compile(r"\r\n|\n|\r")
"""Line ends as memlint.document counts them: a form feed or U+2028 ends none."""

_WIDEST = 160
"""Excerpt lines longer than this are cut around the carets."""


def text_report(result: CheckResult, style: Style) -> str:
    """Return the whole text report; the last line counts everything."""
    lines: list[str] = []
    for report in result.reports:
        line = prediction_line(report, style)
        if line:
            lines.append(line)
        for finding in report.findings:
            lines.extend(finding_lines(finding, report, style))
    lines.append(summary_line(result, style))
    return "\n".join(lines) + "\n"


def concise_report(result: CheckResult, style: Style) -> str:
    """Return one line for each finding, and the totals."""
    lines = [headline(finding, report, style) for report in result.reports for finding in report.findings]
    lines.append(summary_line(result, style))
    return "\n".join(lines) + "\n"


def prediction_line(report: FileReport, style: Style) -> str | None:
    """Return ``path: predicted peak 68.9 GiB (67.1-71.0) of 79.2 GiB usable on A100-80GB: fits``; None if skipped."""
    if report.skipped is not None:
        return None
    where = style("bold", printable(report.path)) + (f" ({report.label})" if report.label else "")
    if report.prediction is None:
        if report.no_prediction is None:
            return None
        return f"{where}: no prediction: {printable(report.no_prediction)}"
    return f"{where}: {prediction_text(report.prediction, style)}"


def prediction_text(prediction: Prediction, style: Style) -> str:
    """Return the peak, its interval, what it is held against, and the verdict."""
    interval = f"{gib(prediction.low_bytes)}-{gib(prediction.high_bytes)}"
    peak = f"predicted peak {gib(prediction.device_bytes)} GiB ({interval})"
    if prediction.method != "simulated":
        peak += f", {prediction.method}"
    if prediction.usable_bytes is None:
        return f"{peak}, no GPU declared"
    words = {"fits": ("good", "fits"), "tight": ("warning", "tight"), "oom": ("error", "out of memory")}
    kind, word = words.get(prediction.verdict, ("dim", prediction.verdict))
    usable = f"{gib(prediction.usable_bytes)} GiB usable on {prediction.target_name}"
    return f"{peak} of {usable}: {style(kind, word)}"


def headline(finding: Finding, report: FileReport, style: Style) -> str:
    """Return the first line of a finding, which stands alone: ``path:4:19: error[MEM101] out-of-memory: ...``."""
    path = printable(finding.file or report.path)
    label = finding.severity.label
    mark = style(label, f"{label}[{finding.code}]")
    return (
        f"{style('bold', f'{path}:{finding.line or 1}:{finding.column or 1}:')} {mark}"
        f" {finding.name}: {printable(finding.message)}"
    )


def finding_lines(finding: Finding, report: FileReport, style: Style) -> Iterator[str]:
    """Yield a finding in full: headline, excerpt with carets, breakdown, notes, help."""
    yield headline(finding, report, style)
    yield from excerpt(finding, report.sources.get(finding.file or report.path), style)
    if finding.breakdown:
        yield f"   = breakdown: {finding.breakdown}"
    for note in finding.notes:
        yield f"   = note: {printable(note)}"
    for help_line in finding.helps:
        yield f"   = {style('help', 'help')}: {printable(help_line.text)}"


def excerpt(finding: Finding, text: str | None, style: Style) -> Iterator[str]:
    """Yield the line of the file with carets below it; nothing where the line is not there."""
    if text is None or finding.line is None:
        return
    source = _LINE_END.split(text)
    if not 0 < finding.line <= len(source):
        return
    raw = source[finding.line - 1].removeprefix("\ufeff")
    if not raw.strip() and not finding.label:
        return
    column = min(max(finding.column or 1, 1), len(raw) + 1)
    end = finding.end_column if finding.end_line == finding.line and finding.end_column else column + 1
    length = max(min(end, len(raw) + 1) - column, 1)
    shift = 0
    if len(raw) > _WIDEST:
        shift = max(0, column - 1 - _WIDEST // 2)
        raw = raw[shift : shift + _WIDEST]
        length = max(1, min(length, _WIDEST - (column - 1 - shift)))
    shown = printable(raw.replace("\t", " ").rstrip())
    number = str(finding.line)
    margin = " " * max(len(number), 4)
    yield style("dim", f"{margin} |")
    yield style("dim", f"{number:>{len(margin)}} |") + f" {shown}".rstrip()
    carets = style(finding.severity.label, "^" * length)
    label = f" {printable(finding.label)}" if finding.label else ""
    yield style("dim", f"{margin} |") + f" {' ' * (column - 1 - shift)}{carets}{label}"


def summary_line(result: CheckResult, style: Style) -> str:
    """Return ``Checked 3 files, skipped 1: 1 error, 0 warnings, 1 ignored. Run `memlint explain MEM101` ...``."""
    text = counts_text(result.summary)
    worst = max(
        (finding for report in result.reports for finding in report.findings),
        key=lambda finding: finding.severity,
        default=None,
    )
    if worst is None or worst.severity is Severity.INFO:
        return f"{text}."
    return f"{text}. Run `memlint explain {worst.code}` for the reasoning."


def counts_text(summary: Summary) -> str:
    """Return the totals as one clause, without a full stop."""
    checked = f"Checked {_count(summary.checked, 'file')}"
    if summary.skipped:
        checked += f", skipped {summary.skipped}"
    parts = [_count(summary.errors, "error"), _count(summary.warnings, "warning")]
    for number, word in (
        (summary.infos, "info"),
        (summary.ignored, "ignored"),
        (summary.baselined, "in the baseline"),
        (summary.fixed, "fixed"),
    ):
        if number:
            parts.append(f"{number} {word}")
    return f"{checked}: {', '.join(parts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` with control characters shown as escapes: a config must not drive the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
