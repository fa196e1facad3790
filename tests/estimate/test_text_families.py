"""Text models beside the families' first types: memory against traces of their own code, parameters, the shortcut."""

from __future__ import annotations

from typing import Any

import pytest

from tests.estimate.family_points import is_extended_exactly, parameters_of, phases_of, simulated, title
from tests.estimate.traced import peak, points

POINTS = points("traces_text.jsonl")


def bound(run: dict[str, Any]) -> float:
    """A thousandth; reentrant checkpointing under eager attention is off by one tensor of a layer's width at most
    (docs/accuracy.md says why).
    """
    return 0.01 if run["checkpointing"] == "reentrant" and run["attention"] == "eager" else 0.001


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    step = simulated(run)
    phases = phases_of(run, step)
    phase, traced = peak(run["phase_peaks"])
    assert peak(phases) == (phase, pytest.approx(traced, rel=bound(run)))
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.001)
    for name, traced in run["phase_peaks"].items():
        assert phases[name] == pytest.approx(traced, rel=max(bound(run), 0.005)), name


@pytest.mark.parametrize("run", [run for run in POINTS if "lora" not in run], ids=title)
def test_the_model_has_the_parameters_that_transformers_builds(run: dict[str, Any]) -> None:
    assert parameters_of(simulated(run)) == run["parameters"]


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    is_extended_exactly(run)


DEEP = (
    *("zamba2", "minimax", "olmo_hybrid", "afmoe", "mellum", "modernbert-decoder", "jais2"),
    *("cohere2_moe", "diffllama", "hy_v3", "laguna", "mimo_v2_flash", "sarvam_moe", "sarvam_mla", "axk1"),
    *("granite_swa", "granitemoe_swa", "bert-generation"),
)


@pytest.mark.parametrize("model_type", DEEP)
def test_a_model_of_its_own_depth_is_extended_exactly(model_type: str) -> None:
    """Weights that layers share, and what autocast keeps of them, count once."""
    start = next(run for run in POINTS if run["config"]["model_type"] == model_type and "lora" not in run)
    fields = {"precision": "bf16-autocast", "checkpointing": "none", "attention": "sdpa", "batch": 1, "seq": 64}
    is_extended_exactly({**start, **fields, "config": {"model_type": model_type}})
