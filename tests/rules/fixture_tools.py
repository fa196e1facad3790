"""Run a rule on a fixture, and compare texts whose figures may move a little.

Predictions change when the memory model does. A figure in an expected text counts as the same up to 10 %; words, places
and keys must be equal. ``python tests/rules/update.py`` writes the expected texts anew: review that diff.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures" / "rules"
TOLERANCE = 0.10
_FIGURE = re.compile(r"\d+\.\d+")


@contextmanager
def inside(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def lint(path, code):
    """Return the findings of one rule in a file, as the text report prints them; the path is shown by its name."""
    from memlint.engine.options import CheckOptions
    from memlint.engine.run import check_paths
    from memlint.report.style import Style
    from memlint.report.text import finding_lines

    path = Path(path)
    with inside(path.parent):
        result = check_paths(CheckOptions(paths=(path.name,), offline=True, isolated=True))
    assert result.crashes == []
    lines = [
        line
        for report in result.reports
        for finding in report.findings
        if finding.code == code
        for line in finding_lines(finding, report, Style(False))
    ]
    return "".join(f"{line}\n" for line in lines)


def cases():
    """Return (code, source) of every fixture: each source has an expected text beside it."""
    return [
        (folder.name, source)
        for folder in sorted(FIXTURES.iterdir())
        for source in sorted(folder.iterdir())
        if source.suffix in (".yaml", ".json") and source.stem != "zero2"
    ]


def same_but_for_figures(actual, expected):
    """Whether two texts are equal when each figure may differ by the tolerance."""
    if _FIGURE.sub("#", actual) != _FIGURE.sub("#", expected):
        return False
    pairs = zip(_FIGURE.findall(actual), _FIGURE.findall(expected), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE * max(float(a), float(b)) + 0.15 for a, b in pairs)
