"""Float8: torchao's layers are followed operation by operation; where they are not, the estimate says so."""

from __future__ import annotations

import json

import pytest

from memlint.engine.predict import predict
from memlint.estimate.float8 import Float8
from memlint.estimate.result import Estimate
from memlint.estimate.simulate import run_step
from tests.estimate.float8_setups import POINTS, SETUPS, job_of
from tests.estimate.jobs import job

with open(POINTS, encoding="utf-8") as lines:
    PEAKS = {point["setup"]: point["peaks"] for point in map(json.loads, lines)}


def estimate(**changes: object) -> Estimate:
    found, _ = predict(job({name.replace("__", "."): value for name, value in changes.items()}), None)
    assert found is not None
    return found


FLOAT8 = {"training__precision__fp8": True}
PURE = {"training__precision__weights": "bf16", "training__precision__autocast": None}


def test_every_operand_takes_temporaries_while_it_is_cast() -> None:
    # Without a list of the optimizer's own, and with few words, a layer's backward is the highest point.
    setting = {**PURE, "training__optimizer": "sgd", "training__vocab_size": 64, "training__sequence_length": 1024}
    plain, float8 = estimate(**setting), estimate(**setting, **FLOAT8)
    assert float8.allocated_bytes > plain.allocated_bytes
    assert not any("float8" in sentence for sentence in float8.assumptions)


def test_a_frozen_layer_keeps_its_input_where_a_plain_one_does_not() -> None:
    lora = {**PURE, "training__method": "lora"}
    plain, float8 = estimate(**lora), estimate(**lora, **FLOAT8)
    assert float8.forward_end_activation_bytes > plain.forward_end_activation_bytes


def test_with_the_compiler_it_is_computed_as_bf16_and_says_so() -> None:
    plain = estimate(training__compile=True)
    float8 = estimate(**FLOAT8, training__compile=True)
    assert float8.allocated_bytes == plain.allocated_bytes
    assert any("torch.compile fuses are computed as bf16" in sentence for sentence in float8.assumptions)


def test_transformer_engine_is_computed_as_bf16_with_a_wider_interval() -> None:
    plain = estimate()
    other = estimate(**FLOAT8, training__precision__fp8_recipe="transformer-engine")
    assert other.allocated_bytes == plain.allocated_bytes
    assert other.low_bytes < plain.low_bytes
    assert other.high_bytes == plain.high_bytes + 2 * plain.parameters


@pytest.mark.parametrize(
    ("framework", "name", "taken"),
    [
        ("trl", "model.layers.1.mlp.up_proj", True),
        ("trl", "lm_head", False),
        ("trl", "model.layers.1.mlp.gate", True),
        ("axolotl 0.19.0", "model.layers.1.mlp.gate", False),
        ("axolotl 0.19.0", "model.layers.1.mlp.gate_proj", True),
        ("llama-factory", "encoder.layer.1.output.dense", False),
        ("llama-factory", "model.layers.1.self_attn.o_proj", True),
    ],
)
def test_each_framework_chooses_its_layers(framework: str, name: str, taken: bool) -> None:
    float8 = Float8.of(job({"framework": framework, "training.precision.fp8": True}))
    assert float8 is not None
    float8.takes("model.layers.0.self_attn.q_proj", 64, 64)
    assert float8.takes(name, 64, 64) == taken
    assert not float8.takes(name, 64, 8), "dimensions that do not divide by 16"


def test_only_llama_factory_converts_the_first_layer() -> None:
    def first(framework: str) -> bool:
        float8 = Float8.of(job({"framework": framework, "training.precision.fp8": True}))
        assert float8 is not None
        return float8.takes("model.layers.0.self_attn.q_proj", 64, 64)

    assert (first("llama-factory"), first("axolotl"), first("trl")) == (True, False, False)


@pytest.mark.parametrize("name", SETUPS)
def test_a_step_takes_what_torchaos_own_code_takes(name: str) -> None:
    """``float8_setups.py`` says where the figures come from."""
    peaks = {phase.phase: phase.peak_bytes for phase in run_step(job_of(name), (8, 0)).timeline}
    # Ids of positions and counts of labels, which no float8 job has alone: kilobytes.
    for phase, allowed in (("forward", 2e-3), ("backward", 5e-4), ("optimizer", 1e-4)):
        assert peaks[phase] == pytest.approx(PEAKS[name][phase], rel=allowed), phase
