"""JUnit XML: one test case for each config, a failure for each finding at or above ``fail-on``."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from memlint.engine.result import CheckResult, FileReport
from memlint.report.style import Style
from memlint.report.text import finding_lines, prediction_text

_PLAIN = Style(False)


def junit_report(result: CheckResult) -> str:
    """Return the report as JUnit XML (the Ant form that CI servers read)."""
    cases = [_case(report) for report in result.reports if report.skipped is None]
    failures = sum(bool(_failing(report)) for report in result.reports)
    errors = len(result.crashes)
    head = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    body = "".join(cases)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<testsuites name="memlint" {head}>\n  <testsuite name="memlint" {head}>\n'
        f"{body}  </testsuite>\n</testsuites>\n"
    )


def _failing(report: FileReport) -> list[str]:
    return [
        "\n".join(finding_lines(finding, report, _PLAIN))
        for finding in report.findings
        if finding.severity >= report.fail_on
    ]


def _case(report: FileReport) -> str:
    name = report.path + (f" ({report.label})" if report.label else "")
    lines = [f"    <testcase classname={_attribute(report.dialect or 'memlint')} name={_attribute(name)}>"]
    failing = _failing(report)
    if failing:
        first = next(finding for finding in report.findings if finding.severity >= report.fail_on)
        lines.append(
            f"      <failure type={_attribute(first.code)} message={_attribute(first.message)}>"
            f"{_text(chr(10).join(failing))}</failure>"
        )
    if report.crash is not None:
        lines.append(f"      <error message={_attribute(report.crash)}/>")
    if report.prediction is not None:
        lines.append(f"      <system-out>{_text(prediction_text(report.prediction, _PLAIN))}</system-out>")
    lines.append("    </testcase>")
    return "\n".join(lines) + "\n"


def _attribute(text: str) -> str:
    return quoteattr(_legal(text))


def _text(text: str) -> str:
    return escape(_legal(text))


def _legal(text: str) -> str:
    """Replace characters that XML 1.0 cannot hold even as references (section 2.2)."""
    return "".join(char if _is_xml(char) else "\ufffd" for char in text)


def _is_xml(char: str) -> bool:
    return char in "\t\n\r" or " " <= char < "\ud800" or "\udfff" < char < "\ufffe" or char > "\uffff"
