"""What a compiled model with its loss inside keeps of the logits; what inductor does is held in tests/measure."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.compiled import least_logits, lowest_peak
from memlint.estimate.simulate import run_step, simulate
from memlint.job import Precision, TrainingJob, replace_fields
from tests.estimate.jobs import job

HALF = Precision(weights="bf16", autocast=None)
LOGITS = 2 * 256 * 4096
"""Rows, tokens and words of the jobs below."""


def compiled(changes: dict[str, Any] | None = None) -> TrainingJob:
    return job({"training.compile": True, "training.micro_batch_size": 2, **(changes or {})})


def test_half_logits_stay_beside_zeros_and_a_gradient() -> None:
    assert least_logits(compiled({"training.precision": HALF})) == 3 * 2 * LOGITS


def test_under_autocast_the_gradient_overwrites_the_half_logits_and_the_zeros_are_fp32() -> None:
    assert least_logits(compiled()) == (2 + 4) * LOGITS
    older = replace_fields(compiled(), {"versions": {"torch": "2.5.1"}})
    assert least_logits(older) == (2 + 2 + 4) * LOGITS, "nothing is donated before torch 2.6"


@pytest.mark.parametrize(
    "changes",
    [
        {"training.compile": False},
        {"training.objective": "dpo"},
        {"training.loss": "fused"},
        {"framework": "torchtune 0.6"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_loss_outside_the_compiled_model_saves_nothing(changes: dict[str, Any]) -> None:
    changed = compiled(changes)
    assert least_logits(changed) is None
    timeline = run_step(changed).timeline
    assert lowest_peak(changed, timeline) == max(phase.peak_bytes for phase in timeline)


def test_only_the_low_end_moves_and_not_below_another_phase() -> None:
    eager, with_compile = simulate(compiled({"training.compile": False})), simulate(compiled())
    assert with_compile.allocated_bytes == eager.allocated_bytes
    assert with_compile.low_bytes < eager.low_bytes
    assert with_compile.high_bytes == eager.high_bytes
    others = [phase.peak_bytes for phase in with_compile.timeline if phase.phase in ("clip", "optimizer")]
    assert lowest_peak(compiled(), with_compile.timeline) >= max(others)
