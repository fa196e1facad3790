"""Native job files of models at their own size, against traces of the same jobs in transformers' code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.engine.predict import predict
from memlint.estimate.kernels import exactly
from tests.estimate.real_points import figures, opened, points, title
from tests.estimate.traced import peak


@pytest.mark.parametrize("point", points(), ids=title)
def test_a_job_file_agrees_with_its_trace(point: dict[str, Any], tmp_path: Path) -> None:
    source = opened(point, tmp_path)
    estimate, approximate = predict(exactly(source.job, {}), source.target)
    assert estimate is not None and approximate is None
    found = figures(estimate)
    phases = found["phase_peaks"]
    if "loss" not in point["phase_peaks"]:  # a head that calls CrossEntropyLoss itself, inside its forward
        phases["forward"] = max(phases["forward"], phases.pop("loss"))
    assert found["parameters"] == point["parameters"]
    assert sum(found["static"].values()) == pytest.approx(sum(point["static"].values()), rel=0.001)
    assert peak(phases)[0] == peak(point["phase_peaks"])[0]
    # A trace has a phase of clipping also where nothing is clipped; forward is seldom the highest.
    for name, size in phases.items():
        highest = size == max(phases.values())
        close = 0.03 if name == "forward" and not highest else 0.001
        assert size == pytest.approx(point["phase_peaks"][name], rel=close), name
    assert found["forward_end_bytes"] == pytest.approx(point["forward_end_bytes"], rel=0.002)
    assert estimate.allocated_bytes == max(phases.values())
