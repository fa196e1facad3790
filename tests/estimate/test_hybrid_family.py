"""State-space models and hybrids of them with attention: parameters and memory against traces of the PyTorch path."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob
from tests.estimate.traced import architecture, peak, phases_of, points, retraced, simulated, title

POINTS = points("traces_hybrid.jsonl")


def of_type(model_type: str) -> dict[str, Any]:
    return next(point for point in POINTS if point["config"]["model_type"] == model_type)


@pytest.mark.parametrize("point", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(point: dict[str, Any]) -> None:
    step = simulated(point)
    phase, traced = peak(point["phase_peaks"])
    predicted_phase, predicted = peak(phases_of(step))
    assert predicted == pytest.approx(traced, rel=0.001)
    assert predicted_phase == phase
    assert step.forward_end_bytes == pytest.approx(point["forward_end_bytes"], rel=0.001)


@pytest.mark.parametrize("point", POINTS, ids=title)
def test_the_model_has_exactly_the_parameters_that_transformers_builds(point: dict[str, Any]) -> None:
    assert sum(r.count * r.numel for r in simulated(point).build.records if r.base) == point["parameters"]


@pytest.mark.parametrize(
    "model_type", ["mamba", "mamba2", "bamba", "granitemoehybrid", "falcon_h1", "jamba", "qwen3_next"]
)
@pytest.mark.parametrize("checkpointing", ["none", "nonreentrant"])
def test_one_block_that_stands_for_many_gives_what_all_of_them_give(model_type: str, checkpointing: str) -> None:
    point = of_type(model_type)
    config = {**point["config"], "num_hidden_layers": 24}
    if "layers_block_type" in config:
        config["layers_block_type"] = config["layers_block_type"] * 4
    if "attn_layer_indices" in config:
        config["attn_layer_indices"] = list(range(2, 24, 3))
    deep = {**point, "config": config, "seq": min(point["seq"], 128), "checkpointing": checkpointing}
    assert phases_of(simulated(deep)) == phases_of(simulated(deep, full=True))


def test_an_adapter_beside_a_layer_whose_weight_alone_is_multiplied_gets_no_gradient() -> None:
    """``self.dt_proj.weight @ time_step`` passes by what PEFT puts there."""
    point = next(point for point in POINTS if "lora" in point and "quantised" not in point)
    assert point["config"]["model_type"] == "jamba" and point["lora"]["targets"] == "all-linear"
    adapters = [record for record in simulated(point).build.records if "lora_" in record.name]
    idle = {record.name for record in adapters if record.idle}
    assert idle == {record.name for record in adapters if ".dt_proj." in record.name}
    assert idle


def test_the_sequential_scan_keeps_a_state_for_every_position() -> None:
    """fp32 for the next position and half precision for the product with C, [B, inner, N] each, in every layer."""
    point = of_type("mamba")
    short, long = (simulated({**point, "seq": seq}).forward_end_bytes for seq in (64, 128))
    inner, state, layers = 2 * point["config"]["hidden_size"], point["config"]["state_size"], 5
    assert long - short > layers * 64 * point["batch"] * inner * state * (4 + 2)


def test_the_chunked_scan_grows_with_the_chunk() -> None:
    """The decay matrices [B, h, chunks, chunk, chunk] hold tokens times chunk_size times heads fp32 values."""
    point = of_type("mamba2")
    narrow, wide = (
        simulated({**point, "config": {**point["config"], "chunk_size": size}}).forward_end_bytes for size in (128, 256)
    )
    tokens, heads, layers = point["batch"] * point["seq"], point["config"]["num_heads"], 5
    assert wide - narrow > layers * tokens * heads * 128 * 4 * 2


def test_attention_layers_stand_where_the_config_puts_them() -> None:
    point = of_type("bamba")
    names = {record.name for record in simulated(point).build.records}
    assert "model.layers.2.self_attn.q_proj.weight" in names
    assert "model.layers.0.mamba.A_log" in names
    assert "model.layers.0.self_attn.q_proj.weight" not in names


def test_a_hybrid_that_nobody_has_compared_is_refused() -> None:
    known = architecture(of_type("bamba")["config"])
    other = type(known)(**{name: getattr(known, name) for name in known.__slots__} | {"model_type": "zamba"})
    with pytest.raises(Unsupported, match="zamba"):
        run_step(TrainingJob(model="tiny", architecture=other))


@pytest.mark.measure
@pytest.mark.slow
def test_the_figures_are_those_of_the_trace() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    point = of_type("bamba")
    assert retraced(point) == point["phase_peaks"]
