"""Settings that meet in few runs, held to their traces: every n-th layer, adapters of a few modules, odd lengths."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from tests.estimate.family_points import parameters_of, phases_of
from tests.estimate.setting_points import NAME, job, title
from tests.estimate.traced import peak, points

POINTS = points(NAME)


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_every_phase_agrees_with_the_trace(run: dict[str, Any]) -> None:
    step = run_step(job(run), (8, 0))
    # PEFT's parameters are counted with the model's.
    assert "lora" in run or parameters_of(step) == run["parameters"]
    phase, reference = peak(run["phase_peaks"])
    found = phases_of(run, step)
    assert peak(found)[0] == phase
    assert peak(found)[1] == pytest.approx(reference, rel=0.001)
    for name, size in run["phase_peaks"].items():
        assert found[name] == pytest.approx(size, rel=0.005), name
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.002)


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_equal_layers_are_extended_exactly(run: dict[str, Any]) -> None:
    short, full = run_step(job(run), (8, 0)), run_step(job(run), (8, 0), full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
