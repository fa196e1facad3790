"""Tensor and pipeline parallelism divide what one GPU holds, not what the model is."""

from __future__ import annotations

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import simulate
from tests.estimate.jobs import job


def test_tensor_parallelism_halves_all_but_the_norms() -> None:
    whole, half = simulate(job()), simulate(job({"parallelism.tensor": 2}))
    assert half.parameters == whole.parameters
    assert whole.static["parameters"] / 2 < half.static["parameters"] < whole.static["parameters"] * 0.51
    assert half.allocated_bytes < whole.allocated_bytes * 0.55
    assert "tensor parallelism 2" in half.assumptions[-1]


def test_a_pipeline_stage_holds_its_layers_and_widens_the_interval() -> None:
    whole, stage = simulate(job()), simulate(job({"parallelism.pipeline": 2}))
    assert stage.parameters == whole.parameters
    assert stage.static["parameters"] < whole.static["parameters"]
    assert stage.high_bytes - stage.device_bytes > whole.high_bytes - whole.device_bytes


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(Unsupported, match="num_attention_heads 8 does not divide"):
        simulate(job({"parallelism.tensor": 3}))
