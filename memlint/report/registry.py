"""Output formats by name; each is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.errors import UserError

if TYPE_CHECKING:
    from memlint.engine.result import CheckResult

FORMATS = ("text", "concise", "json", "sarif", "github", "gitlab", "junit")
"""Values of ``--output-format``, in the order of the help text."""

DETAILED = frozenset({"json"})
"""Formats that show the whole estimate of each job."""


def render(result: CheckResult, output_format: str, *, color: bool = False) -> str:
    """Return ``result`` in one of :data:`FORMATS`. Raises UserError for another name."""
    if output_format in ("text", "concise"):
        from memlint.report.style import Style
        from memlint.report.text import concise_report, text_report

        return (text_report if output_format == "text" else concise_report)(result, Style(color))
    if output_format == "json":
        from memlint.report.machine import json_report

        return json_report(result)
    if output_format == "sarif":
        from memlint.report.sarif import sarif_report

        return sarif_report(result)
    if output_format == "github":
        from memlint.report.annotations import github_report

        return github_report(result)
    if output_format == "gitlab":
        from memlint.report.annotations import gitlab_report

        return gitlab_report(result)
    if output_format == "junit":
        from memlint.report.junit import junit_report

        return junit_report(result)
    raise UserError(f"no output format is called `{output_format}`; choose one of {', '.join(FORMATS)}")
