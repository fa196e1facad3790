"""Expert parameters stay as loaded under bitsandbytes unless something packs them too."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.result import Estimate
from memlint.estimate.simulate import run_step, simulate
from memlint.job import Lora, Precision, Quantization, Training, TrainingJob, replace_fields
from tests.estimate.jobs import architecture

HIDDEN, WIDTH, EXPERTS, LAYERS = 256, 512, 8, 3
ELEMENTS = EXPERTS * 3 * HIDDEN * WIDTH
"""Elements of one layer's experts."""


def job(model_type: str, experts: str, **changes: Any) -> TrainingJob:
    shape = architecture(
        model_type=model_type,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        intermediate_size_mlp=WIDTH,
        moe_intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        vocab_size=1000,
        num_experts=EXPERTS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
    )
    training = Training(
        method="qlora",
        lora=Lora(rank=4, targets=("q_proj",)),
        quantization=Quantization(kbit_preparation=False, experts=experts),
        precision=Precision(weights="bf16", autocast="bf16"),
        sequence_length=64,
    )
    return replace_fields(TrainingJob(model="m", architecture=shape, training=training), changes)


def estimate(*arguments: Any, **changes: Any) -> Estimate:
    return simulate(job(*arguments, **changes))


@pytest.mark.parametrize("model_type", ["qwen3_moe", "mixtral", "llama4_text"])
@pytest.mark.parametrize("kind", ["fused", "linear"])
def test_packing_stores_experts_in_four_bits(model_type: str, kind: str) -> None:
    loaded, packed = estimate(model_type, "loaded"), estimate(model_type, kind)
    saved = loaded.static["parameters"] - packed.static["parameters"]
    assert saved == pytest.approx(LAYERS * ELEMENTS * (2 - 0.5 - 1 / 64 - 4 / 64 / 256), rel=1e-3)
    assert loaded.parameters == packed.parameters


def test_a_parametrization_dequantises_a_layer_whole_and_its_product_saves_it() -> None:
    loaded, packed = estimate("qwen3_moe", "loaded"), estimate("qwen3_moe", "fused")
    assert packed.forward_end_activation_bytes - loaded.forward_end_activation_bytes == LAYERS * ELEMENTS * 2


def test_under_checkpointing_one_layer_at_a_time_is_whole() -> None:
    full: dict[str, Any] = {"training.checkpointing.mode": "full"}
    loaded, packed = estimate("qwen3_moe", "loaded", **full), estimate("qwen3_moe", "fused", **full)
    assert packed.forward_end_activation_bytes == loaded.forward_end_activation_bytes
    whole = (packed.allocated_bytes - packed.static["parameters"]) - (
        loaded.allocated_bytes - loaded.static["parameters"]
    )
    assert 0 < whole <= ELEMENTS * 2


def test_linear_experts_of_llama_4_are_dequantised_one_by_one() -> None:
    loaded, packed = estimate("llama4_text", "loaded"), estimate("llama4_text", "linear")
    assert packed.forward_end_activation_bytes == loaded.forward_end_activation_bytes


@pytest.mark.parametrize("model_type", ["qwen3_moe", "llama4_text"])
@pytest.mark.parametrize("kind", ["fused", "linear"])
def test_equal_layers_are_extended_exactly(model_type: str, kind: str) -> None:
    asked = job(model_type, kind, **{"training.checkpointing.mode": "full"})
    short, full = run_step(asked, None), run_step(asked, None, full=True)
    assert [p.peak_bytes for p in short.timeline] == [p.peak_bytes for p in full.timeline]
