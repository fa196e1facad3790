"""Every traced reference point, within one percent at the median and three at worst, phase included."""

from __future__ import annotations

import os
import statistics

import pytest

POINTS = os.path.join(os.path.dirname(__file__), "..", "..", "..", "shared", "oracle", "points.jsonl")

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not os.path.exists(POINTS), reason="the reference points are not beside this checkout"),
]


def test_the_simulation_agrees_with_every_reference_point() -> None:
    from benchmarks.accuracy.oracle import compare_all

    rows, skipped = compare_all(POINTS)
    assert skipped == []
    errors = [abs(row.error) for row in rows]
    assert statistics.median(errors) <= 0.01
    worst = max(rows, key=lambda row: abs(row.error))
    assert abs(worst.error) <= 0.03, f"{worst.point['id']} {worst.point['model']}: {worst.error:+.2%}"
    right = sum(row.phase == row.point["peak_phase"] for row in rows)
    assert right / len(rows) >= 0.95
    assert max(abs(row.static_error) for row in rows) <= 0.001
    assert statistics.median(abs(row.forward_end_error) for row in rows) <= 0.015
