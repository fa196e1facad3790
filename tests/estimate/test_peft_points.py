"""PEFT's prompts, prefixes and default targets around several model types, against traces of its own code."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.evaluation import evaluation_of
from memlint.estimate.simulate import simulate
from memlint.job import replace_fields
from tests.estimate.peft_points import job, simulated, title
from tests.estimate.traced import peak, phases_of, points

POINTS = points("traces_peft.jsonl")


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_peft(run: dict[str, Any]) -> None:
    step = simulated(run)
    phases, traced = phases_of(step), run["phase_peaks"]
    assert peak(phases)[1] == pytest.approx(peak(traced)[1], rel=3e-4)
    assert phases["backward"] == pytest.approx(traced["backward"], rel=5e-4)
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=1e-3)


@pytest.mark.parametrize("method", ["prompt", "p-tuning"])
def test_an_evaluation_runs_over_the_tokens_in_front(method: str) -> None:
    run = next(p for p in POINTS if p["method"] == method)

    def evaluated(tokens: int) -> int:
        fields = {"training.virtual_tokens": tokens, "training.eval_micro_batch_size": 2 * run["batch"]}
        changed = replace_fields(job(run), fields)
        found = evaluation_of(changed, simulate(changed))
        assert found is not None
        return found.allocated_bytes

    assert evaluated(256) > evaluated(8)


def test_a_prefix_ends_with_the_model_that_trains() -> None:
    """The reference of a preference run is the policy without it, so its attention joins nothing."""
    run = next(p for p in POINTS if p["method"] == "prefix" and p["config"]["model_type"] == "llama")
    preference = {"training.objective": "dpo", "training.reference_model": "adapter", "framework": "trl"}
    step = simulate(replace_fields(job(run), preference))
    assert step.allocated_bytes > simulate(job(run)).allocated_bytes
