"""Traces against the reference points: one always, all of them on request (MEMLINT_SLOW=1, about ten minutes)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memlint.measure.trace.points import trace_point

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PATH = Path(__file__).resolve().parents[4] / "shared" / "oracle" / "points.jsonl"
TOLERANCE = 0.005


def points() -> list[dict[str, Any]]:
    if not PATH.is_file():
        return []
    return [json.loads(line) for line in PATH.read_text().splitlines()]


def check(point: dict[str, Any], *, every_layer: bool, tolerance: float) -> None:
    result = trace_point(point, every_layer)
    assert result.parameters == point["n_params"]
    assert result.peak_phase == point["peak_phase"]
    assert result.peak_bytes == pytest.approx(point["peak_bytes"], rel=tolerance)
    for phase, peak in point["phase_peaks"].items():
        assert result.phase_peaks[phase] == pytest.approx(peak, rel=tolerance), phase
    assert result.fwd_end_bytes == pytest.approx(point["fwd_end_bytes"], rel=tolerance)
    assert result.sdpa_backend == point["sdpa_backend"]


@pytest.mark.skipif(not PATH.is_file(), reason="the reference points are not beside the checkout")
def test_a_small_reference_point_is_met() -> None:
    point = next(p for p in points() if p["id"] == "g144")
    check(point, every_layer=True, tolerance=0.0001)


@pytest.mark.skipif(not PATH.is_file(), reason="the reference points are not beside the checkout")
@pytest.mark.skipif(os.environ.get("MEMLINT_SLOW") != "1", reason="slow: set MEMLINT_SLOW=1")
@pytest.mark.parametrize("point", points(), ids=lambda p: f"{p['id']}-{p['model']}")
def test_every_reference_point_is_met_from_a_few_layers(point: dict[str, Any]) -> None:
    check(point, every_layer=False, tolerance=0.002)


@pytest.mark.skipif(not PATH.is_file(), reason="the reference points are not beside the checkout")
@pytest.mark.skipif(os.environ.get("MEMLINT_SLOW") != "1", reason="slow: set MEMLINT_SLOW=1")
@pytest.mark.parametrize("point", points(), ids=lambda p: f"{p['id']}-{p['model']}")
def test_every_reference_point_is_met_with_all_layers(point: dict[str, Any]) -> None:
    check(point, every_layer=True, tolerance=TOLERANCE)
