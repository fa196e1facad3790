"""Rows that a collator joins into one: what the layers see is a single sequence."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob, replace_fields
from tests.estimate import traced

POINTS = [point for point in traced.points("traces_hybrid.jsonl") if point["attention"] == "flash"]


def joined(point: dict[str, Any], rows: int, **changes: Any) -> TrainingJob:
    """The job of a run whose one sequence is joined of ``rows``."""
    values = {"micro_batch_size": rows, "sequence_length": point["seq"] // rows, "packing": True, "varlen": True}
    return replace_fields(traced.job(point), {f"training.{name}": value for name, value in (values | changes).items()})


def peaks(job: TrainingJob) -> list[tuple[str, int]]:
    return [(phase.phase, phase.peak_bytes) for phase in run_step(job, (8, 0)).timeline]


@pytest.mark.parametrize("point", POINTS, ids=traced.title)
def test_a_joined_row_takes_what_the_trace_of_its_tokens_took(point: dict[str, Any]) -> None:
    reference = traced.peak(point["phase_peaks"])[1]
    assert traced.peak(dict(peaks(joined(point, 3))))[1] == pytest.approx(reference, rel=0.0001)


def test_a_state_space_layer_fills_up_the_last_chunk_of_the_row_not_of_each_sample() -> None:
    point = next(point for point in POINTS if point["config"]["model_type"] == "mamba2")
    assert dict(peaks(joined(point, 3)))["backward"] < dict(peaks(joined(point, 3, varlen=False)))["backward"]


def test_rows_without_flash_or_of_preference_pairs_stay_apart() -> None:
    point = next(point for point in POINTS if point["config"]["model_type"] == "bamba")
    for change in ({"attention": "eager"}, {"objective": "dpo"}):
        assert peaks(joined(point, 3, **change)) == peaks(joined(point, 3, varlen=False, **change))
