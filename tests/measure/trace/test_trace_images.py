"""Image models trained on text alone: which class a trace runs, and whose layers it sets beside the simulation's."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.engine.predict import predict
from memlint.estimate.kernels import exactly
from memlint.hardware.parse import parse_target
from memlint.job import TrainingJob, replace_fields
from memlint.measure.trace.from_job import hf_config
from tests.estimate.test_vision_family import SETUPS, job

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
KINDS = ("qwen2_vl", "mllama", "llava")


def text_alone(kind: str) -> TrainingJob:
    return replace_fields(job(kind), {**SETUPS["bf16"], "training.images": 0})


@pytest.mark.parametrize("kind", KINDS)
def test_text_alone_is_traced_in_the_class_with_the_tower(kind: str) -> None:
    from memlint.measure.trace.compare import compare
    from memlint.measure.trace.job import trace_job

    wanted = exactly(text_alone(kind), {})
    target = parse_target("A100-80GB")
    traced, result = trace_job(wanted, target, every_layer=True)
    simulated, _ = predict(wanted, target)
    assert simulated is not None
    assert traced.parameters == simulated.parameters
    assert traced.allocated_bytes == pytest.approx(simulated.allocated_bytes, rel=0.0001)
    beside = compare(wanted, target, traced, simulated, result)
    if kind != "mllama":  # whose layers of cross-attention have numbers, and are skipped
        assert [row.name for row in beside.layers if row.only_traced or row.only_simulated] == []


def test_qwen2_vls_tower_is_not_held_to_a_width_of_heads_that_it_does_not_have() -> None:
    config: Any = hf_config(text_alone("qwen2_vl"))
    assert "head_dim" not in config["vision_config"]
