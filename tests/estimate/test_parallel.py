"""Tensor and pipeline parallelism divide what one GPU holds, not what the model is."""

from __future__ import annotations

import pytest

from memlint.estimate.counts import parameter_records
from memlint.estimate.errors import Unsupported
from memlint.estimate.parallel import one_gpu
from memlint.estimate.simulate import simulate
from memlint.job import TrainingJob, replace_fields
from memlint.models.config import read_config
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


def held(model_type: str, *, tensor: int = 1, pipeline: int = 1, **fields: int) -> dict[str, int]:
    """Elements on one GPU of the language model's layers, and of everything else, of a type's class defaults."""
    start = TrainingJob(model=model_type, architecture=read_config({"model_type": model_type, **fields}))
    job, _ = one_gpu(replace_fields(start, {"parallelism.tensor": tensor, "parallelism.pipeline": pipeline}))
    found = {"layers": 0, "rest": 0}
    for record in parameter_records(job):
        inner = ".layers." in record.name and "vision" not in record.name and "visual" not in record.name
        found["layers" if inner else "rest"] += record.count * record.numel
    return found


@pytest.mark.parametrize("model_type", ["gemma3", "qwen2_vl", "mllama", "llama4"])
def test_the_language_model_of_a_model_that_sees_is_divided_and_its_tower_is_not(model_type: str) -> None:
    whole, narrow, short = held(model_type), held(model_type, tensor=2), held(model_type, pipeline=2)
    assert narrow["layers"] == pytest.approx(whole["layers"] / 2, rel=0.04)
    assert short["layers"] == pytest.approx(whole["layers"] / 2, rel=0.12)
    assert short["rest"] == whole["rest"]
    assert narrow["rest"] > whole["rest"] / 2


@pytest.mark.parametrize("model_type", ["granitemoehybrid", "nemotron_h", "qwen3_next", "gemma3n_text", "lfm2"])
def test_a_stage_has_the_kinds_of_its_own_layers(model_type: str) -> None:
    whole, short = held(model_type), held(model_type, pipeline=2)
    assert 0.3 * whole["layers"] < short["layers"] < 0.8 * whole["layers"]


def test_layers_that_are_built_from_other_fields_are_not_called_divided() -> None:
    with pytest.raises(Unsupported, match="the layers of `bloom` are not followed under tensor parallelism"):
        held("bloom", tensor=2, hidden_size=1024, n_layer=24, n_head=16, vocab_size=4096)
