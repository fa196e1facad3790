"""What a function of transformers still holds by a name: squared ReLU's input, and the logits of classifiers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.estimate.family_points import phases_of, simulated, title
from tests.estimate.traced import points

POINTS = points("traces_heads.jsonl")
SMALL = 8192
"""Position ids, padded labels and the loss's own scalars, which the simulation leaves out."""


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_every_phase_agrees_with_the_trace(run: dict[str, Any]) -> None:
    phases = phases_of(run, simulated(run))
    for name, traced in run["phase_peaks"].items():
        assert abs(phases[name] - traced) <= SMALL + 0.0005 * traced, name


@pytest.mark.parametrize("kind", ["arcee", "nemotron"])
def test_squared_relu_holds_its_input_while_it_squares(kind: str) -> None:
    run = next(point for point in POINTS if point["config"]["model_type"] == kind)
    assert simulated(run).timeline[0].peak_bytes == pytest.approx(run["phase_peaks"]["forward"], abs=SMALL)
