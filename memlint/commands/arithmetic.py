"""What a rule says about one file, with the prediction behind it."""

from __future__ import annotations

import sys

from memlint.engine.options import CheckOptions
from memlint.engine.run import check_paths
from memlint.errors import UserError
from memlint.report.estimate_text import estimate_text
from memlint.report.style import Style, wants_color
from memlint.report.text import finding_lines, prediction_line


def explain_file(code: str, path: str, *, target: str | None, offline: bool, color: str) -> str:
    """Return the findings of rule ``code`` in a file and the arithmetic of each of its jobs."""
    style = Style(wants_color(color, sys.stdout))
    # The baseline says what is known already, not what is so.
    options = CheckOptions(
        paths=(path,), select=(code,), target=target, offline=offline, details=True, use_baseline=False
    )
    result = check_paths(options)
    if result.crashes:
        raise UserError(f"internal error: {result.crashes[0]}; please report it")
    lines: list[str] = []
    for report in result.reports:
        if report.skipped is not None:
            return f"{report.path}: {report.skipped}\n"
        line = prediction_line(report, style)
        lines += [line] if line else []
        for finding in report.findings:
            lines += finding_lines(finding, report, style)
        if report.ignored:
            lines.append(f"{code} is silenced here by a comment or by `per-file-ignores`.")
        elif not report.findings:
            lines.append(f"{code} has nothing to say here.")
        if report.estimate is not None:
            lines += ["", estimate_text(report.estimate, style).rstrip("\n")]
    return "\n".join(lines) + "\n"
