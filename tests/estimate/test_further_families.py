"""Types beside the families' first ones: memory against traces, parameters, and the shortcut over equal layers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.estimate.family_points import names_of, phases_of, simulated, title
from tests.estimate.traced import peak, points

POINTS = [*points("traces_further.jsonl"), *points("traces_recent.jsonl")]


def elements(run: dict[str, Any]) -> int:
    """Elements of the model without its adapters."""
    records = simulated(run).build.records
    return sum(record.count * record.numel for record in records if "lora_" not in record.name)


def point(model_type: str, **fields: Any) -> dict[str, Any]:
    start = next(p for p in POINTS if p["config"]["model_type"] == model_type)
    return {**start, **fields}


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    step = simulated(run)
    assert elements(run) == run["parameters"]
    phases = phases_of(run, step)
    assert peak(phases)[1] == pytest.approx(peak(run["phase_peaks"])[1], rel=0.005)
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.005)
    for name, traced in run["phase_peaks"].items():
        assert phases[name] == pytest.approx(traced, rel=0.01), name


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    short, full = simulated(run), simulated(run, full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
    assert short.forward_end_bytes == full.forward_end_bytes


def test_xglm_has_a_table_of_sines_and_biogpt_a_trained_one() -> None:
    assert not [name for name in names_of(point("xglm")) if "embed_positions" in name]
    assert "biogpt.embed_positions.weight" in names_of(point("biogpt"))


def test_mpnets_bias_is_trained_once_for_all_layers() -> None:
    names = [name for name in names_of(point("mpnet")) if "relative_attention_bias" in name]
    assert names == ["mpnet.encoder.relative_attention_bias.weight"]
