"""A baseline hides what is known, by rule, file and key; what got worse comes back."""

from __future__ import annotations

import json

import pytest

from memlint.engine.baseline import load_baseline, write_baseline
from memlint.engine.result import CheckResult, FileReport, Prediction, summarise
from memlint.errors import UserError
from memlint.findings import Finding, Severity


def report(size=1000, line=4, key=("a", "b"), code="MEM101"):
    finding = Finding(code=code, name="x-y", severity=Severity.ERROR, message="m", key=key, line=line, column=1)
    prediction = Prediction(device_bytes=size, low_bytes=size, high_bytes=size, method="simulated", verdict="oom")
    return FileReport(path="sub/train.yaml", findings=[finding], prediction=prediction)


def covers(path, other):
    return load_baseline(str(path)).covers(other.findings[0], other)


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "known.json"
    reports = [report()]
    assert write_baseline(str(path), CheckResult(reports=reports, summary=summarise(reports))) == 1
    return path


def test_entries_hold_rule_file_key_and_size_and_no_line(baseline):
    assert json.loads(baseline.read_text()) == {
        "version": 1,
        "entries": [{"code": "MEM101", "file": "sub/train.yaml", "key": "a.b", "bytes": 1000}],
    }


def test_known_findings_are_covered_wherever_their_line_moves(baseline):
    assert covers(baseline, report(line=400))
    assert covers(baseline, report(size=500))
    assert covers(baseline, report(size=1009))


def test_worse_or_other_findings_are_not(baseline):
    assert not covers(baseline, report(size=1100))
    assert not covers(baseline, report(key=("a",)))
    assert not covers(baseline, report(code="MEM102"))


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"version": 1, "entries": [{"code": 1}]}', "[" * 100000])
def test_a_damaged_baseline_is_a_users_mistake(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError, match="baseline"):
        load_baseline(str(path))


def test_a_missing_baseline_says_how_to_write_one(tmp_path):
    with pytest.raises(UserError, match="write one with --write-baseline"):
        load_baseline(str(tmp_path / "none.json"))
