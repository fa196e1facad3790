"""Runs in ``traces_exact.jsonl`` are predicted to the byte in the phases of forward, loss and backward.

Each line says in ``why`` which tensors of transformers' code it is there for. Lines are made like those of
:mod:`tests.estimate.family_points`; ``every`` is that of activation checkpointing.
"""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob, replace_fields
from tests.estimate import family_points
from tests.estimate.traced import points

POINTS = points("traces_exact.jsonl")
SMALL = 2048
"""Bytes that scalars and their lists may take in the phases after backward, which multiply and sum no activations."""


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    return replace_fields(family_points.job(point), {"training.checkpointing.every": point.get("every", 1)})


@pytest.mark.parametrize("run", POINTS, ids=lambda run: run["why"])
def test_every_phase_of_the_forward_and_backward_is_exact(run: dict[str, Any]) -> None:
    step = run_step(job(run), (8, 0))
    records = [record for record in step.build.records if "lora_" not in record.name]
    assert sum(record.count * record.numel for record in records) == run["parameters"]
    found = family_points.phases_of(run, step)
    for name, traced in run["phase_peaks"].items():
        off = found[name] - traced
        assert abs(off) <= (SMALL if name in ("clip", "optimizer") else 0), f"{name}: {off:+} bytes"
    assert step.forward_end_bytes == run["forward_end_bytes"]


@pytest.mark.parametrize("run", POINTS, ids=lambda run: run["why"])
def test_the_least_number_of_layers_gives_what_all_layers_give(run: dict[str, Any]) -> None:
    short, full = run_step(job(run), (8, 0)), run_step(job(run), (8, 0), full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
