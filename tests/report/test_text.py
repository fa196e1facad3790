"""Text for people: the first line stands alone, carets point, the last line counts everything."""

from __future__ import annotations

import pytest

from memlint.engine.result import FileReport
from memlint.findings import Severity
from memlint.report.registry import render
from memlint.report.style import Style, wants_color
from memlint.report.text import excerpt, finding_lines

EXPECTED = """\
configs/good.yaml: predicted peak 68.9 GiB (67.1-71.0) of 79.2 GiB usable on A100-80GB: fits
configs/train.yaml: predicted peak 91.4 GiB (90.0-93.0) of 79.2 GiB usable on A100-80GB: out of memory
configs/train.yaml:4:19: error[MEM101] out-of-memory: predicted peak 91.4 GiB (90.0-93.0) exceeds 79.2 GiB usable \
on A100-80GB
     |
   4 | micro_batch_size: 4
     |                   ^ activations, 44.9 GiB, grow with this value
   = breakdown: weights 16.1, gradients 16.1, other 6.3 (GiB per GPU)
   = help: `micro_batch_size: 2` with `gradient_accumulation_steps: 2` fits, predicted 68.9 GiB
configs/train.yaml:1:13: warning[MEM301] checkpointing-off: activation checkpointing is off; 100% of it, saves 3.0 GiB
     |
   1 | base_model: Qwen/Qwen3-8B
     |             ^^^^^^^^^^^^^
Checked 2 files, skipped 1: 1 error, 1 warning, 1 ignored. Run `memlint explain MEM101` for the reasoning.
"""


def test_whole_report(result):
    assert render(result, "text") == EXPECTED


def test_nothing_found_is_one_line(clean):
    assert render(clean, "text") == "Checked 0 files, skipped 1: 0 errors, 0 warnings.\n"


def test_concise_is_one_line_for_each_finding_and_the_totals(result):
    lines = render(result, "concise").splitlines()
    assert [line.split(": ")[0] for line in lines[:2]] == ["configs/train.yaml:4:19", "configs/train.yaml:1:13"]
    assert lines[2].startswith("Checked 2 files, skipped 1")
    assert len(lines) == 3


def test_colour_adds_escape_codes_and_nothing_else(result):
    import re

    painted = render(result, "text", color=True)
    assert "\x1b[1;31merror[MEM101]\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == EXPECTED


class Stream:
    def __init__(self, terminal):
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def test_colour_only_on_terminals_unless_asked(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color("auto", Stream(True))
    assert not wants_color("auto", Stream(False))
    assert wants_color("always", Stream(False))
    assert not wants_color("never", Stream(True))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert wants_color("auto", Stream(False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color("auto", Stream(True))
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color("auto", Stream(True))


@pytest.fixture
def lines_of(finding):
    return lambda text, **place: list(excerpt(finding(**place), text, Style(False)))


def test_long_lines_are_cut_around_the_carets(lines_of):
    text = "key: " + "x" * 500 + " [HERE] " + "y" * 500
    column = text.index("HERE") + 1
    lines = lines_of(text, line=1, column=column, end_line=1, end_column=column + 4, label=None)
    assert max(map(len, lines)) < 180
    caret = lines[2].index("^")
    assert lines[1][caret : caret + 4] == "HERE"


def test_tabs_keep_the_carets_in_place(lines_of):
    lines = lines_of("a:\tb", line=1, column=4, end_line=1, end_column=5, label=None)
    assert lines[1][lines[2].index("^")] == "b"


def test_a_place_outside_the_text_shows_no_excerpt(lines_of):
    assert lines_of("a: 1\n", line=9) == []
    assert lines_of(None, line=1) == []


def test_control_characters_of_a_config_do_not_reach_the_terminal(finding):
    report = FileReport(path="a\x1b]0;x.yaml", sources={"a\x1b]0;x.yaml": "a: \x1b[31mred\n"})
    text = "\n".join(finding_lines(finding(line=1, column=1, message="bad \x1b[2J"), report, Style(False)))
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text


def test_an_info_finding_alone_needs_no_explanation_hint(finding, result_of):
    report = FileReport(path="a.yaml", findings=[finding(severity=Severity.INFO)])
    assert render(result_of(report), "text").endswith("Checked 1 file: 0 errors, 0 warnings, 1 info.\n")
