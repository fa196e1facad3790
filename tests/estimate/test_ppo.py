"""PPO's updates, with the generation of their completions, against the real trainers traced on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.result import COMPONENTS
from memlint.estimate.simulate import run_step, simulate
from memlint.job import replace_fields
from tests.estimate.ppo_points import job, simulated, title
from tests.estimate.traced import architecture, peak, phases_of, points

OWN = points("traces_ppo.jsonl")
"""TRL 1.12: a value model of its own."""
CLASSIC = points("traces_ppo_llamafactory.jsonl")
"""LLaMA-Factory 0.9.5 over TRL 0.9.6's step: a value head."""


@pytest.mark.parametrize("run", [*OWN, *CLASSIC], ids=title)
def test_the_simulation_agrees_with_the_trainer_in_every_phase(run: dict[str, Any]) -> None:
    phases, traced = phases_of(simulated(run)), run["phase_peaks"]
    rel = 0.0015  # small tensors of a number a row are not all counted
    assert peak(phases)[0] == peak(traced)[0]
    assert peak(phases)[1] == pytest.approx(peak(traced)[1], rel=rel)
    for name, size in traced.items():
        # The gradient of the layers' input, which the old logits' graph holds, is counted in the next forward alone.
        wide = 0.02 if name == "optimizer" and run["checkpointing"] != "none" else 0.005
        assert phases[name] == pytest.approx(size, rel=wide), name


@pytest.mark.parametrize("run", [p for p in [*OWN, *CLASSIC] if p["config"]["model_type"] != "qwen2"], ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    deep = {**run, "config": {**run["config"], "n_layer": 6, "num_hidden_layers": 6}}
    assert phases_of(simulated(deep)) == phases_of(simulated(deep, full=True))


def of(runs: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return next(p for p in runs if fields.items() <= p.items())


def highest(run: dict[str, Any], **changes: Any) -> int:
    return peak(phases_of(run_step(replace_fields(job(run), changes), (8, 0))))[1]


@pytest.mark.parametrize("run", [OWN[0], CLASSIC[0]], ids=title)
@pytest.mark.parametrize(
    "more",
    [
        {"training.micro_batch_size": 4},
        {"training.sequence_length": 512},
        {"training.completion_length": 48},
        {"training.rollouts": 32},
    ],
    ids=lambda more: next(iter(more)),
)
def test_more_of_anything_never_needs_less(run: dict[str, Any], more: dict[str, Any]) -> None:
    assert highest(run, **more) >= highest(run)


@pytest.mark.parametrize("loss", ["chunked", "fused"])
def test_logits_are_whole_whatever_loss_is_asked_for(loss: str) -> None:
    assert highest(OWN[0], **{"training.loss": loss}) == highest(OWN[0])


def test_components_sum_to_the_peak() -> None:
    for run in (OWN[0], CLASSIC[0]):
        estimate = simulate(job(run))
        assert sum(estimate.components.values()) == estimate.allocated_bytes
        assert set(estimate.components) == set(COMPONENTS)


def test_long_completions_of_many_prompts_make_the_rollout_the_peak() -> None:
    run = of(OWN, precision="bf16-bf16", batch=1, seq=64)
    changes = {"training.rollouts": 256, "training.rollout_batch_size": 256}
    phases = phases_of(run_step(replace_fields(job(run), changes), (8, 0)))
    assert peak(phases)[0] == "generation"


def test_the_logits_of_all_completions_live_through_training() -> None:
    run = OWN[0]
    more = run_step(replace_fields(job(run), {"training.rollouts": 10}), (8, 0))
    less = run_step(replace_fields(job(run), {"training.rollouts": 2, "training.mini_batches": 1}), (8, 0))
    vocabulary, completion = run["config"]["vocab_size"], run["completion"]
    backward = phases_of(more)["backward"] - phases_of(less)["backward"]
    assert backward > 8 * completion * vocabulary * 4


def test_adapters_go_on_the_policy_alone() -> None:
    run = of(OWN, precision="bf16-bf16", accumulation=2)
    step = simulated(run)
    values = [record for record in step.build.records if record.trainable and not record.base]
    assert sum(r.numel * r.count for r in values) > 0.3 * run["parameters"]


def test_a_reward_model_is_a_second_one_an_adapter_or_elsewhere() -> None:
    run = of(CLASSIC, reward="adapter")
    sizes = {
        kind: run_step(replace_fields(job(run), {"training.reward_model": kind}), (8, 0)).static["parameters"]
        for kind in ("none", "adapter", "copy")
    }
    assert sizes["none"] < sizes["adapter"] < sizes["copy"]
    assert sizes["copy"] - sizes["none"] >= 2 * run["parameters"]


def test_a_family_without_a_rollout_says_so() -> None:
    config = points("traces_encoders.jsonl")[0]["config"]
    with pytest.raises(Unsupported):
        run_step(replace_fields(job(OWN[0]), {"architecture": architecture(config)}), (8, 0))


def test_a_smaller_reward_model_makes_the_value_model_smaller_too() -> None:
    run = next(p for p in OWN if p.get("scorer", {}).get("hidden_size") == 256)
    assert run_step(job(run), (8, 0)).static["optimizer_states"] == 0  # plain SGD
    own, same = run_step(job(run), (8, 0)), run_step(replace_fields(job(run), {"scorer": None}), (8, 0))
    assert own.static["parameters"] < same.static["parameters"]
    assert own.static["gradients"] < same.static["gradients"]


def test_a_reward_model_that_is_no_decoder_is_not_guessed() -> None:
    judge = architecture({"model_type": "bert"})
    with pytest.raises(Unsupported, match="reward model of type `bert`"):
        run_step(replace_fields(job(OWN[0]), {"scorer": judge}), (8, 0))
