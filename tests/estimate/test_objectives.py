"""Preference, reward and policy training, and TRL's SFT, against the real trainers traced on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.ops.inductor_splits import parts
from memlint.estimate.simulate import run_step
from memlint.job import Lora, replace_fields
from tests.estimate.objective_points import job, simulated, title
from tests.estimate.traced import peak, phases_of, points

POINTS = points("traces_objectives.jsonl")
OLDER = points("traces_objectives_trl19.jsonl")
"""The release that axolotl pins: whole logits, and what is logged of them."""
FACTORY = points("traces_objectives_llamafactory.jsonl")
"""LLaMA-Factory's own losses, and its reward model with a value head."""
LIGER = points("traces_objectives_liger.jsonl")
"""Liger's chunked losses in TRL 1.9, compiled as inductor would for a GPU."""


@pytest.mark.parametrize("run", [*POINTS, *OLDER, *FACTORY], ids=title)
def test_the_simulation_agrees_with_the_trainer(run: dict[str, Any]) -> None:
    step = simulated(run)
    phases = phases_of(step)
    traced = dict(run["phase_peaks"])
    assert peak(phases)[0] == peak(traced)[0]
    assert peak(phases)[1] == pytest.approx(peak(traced)[1], rel=0.001)
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.004)
    assert phases["backward"] == pytest.approx(traced["backward"], rel=0.001)
    if "loss" in traced:
        assert phases["loss"] == pytest.approx(traced["loss"], rel=0.001)


@pytest.mark.parametrize("run", LIGER, ids=title)
def test_ligers_chunked_loss_agrees_with_the_trainer_that_runs_it(run: dict[str, Any]) -> None:
    step, traced = simulated(run), run["phase_peaks"]
    phases = phases_of(step)
    assert max(phases.values()) == pytest.approx(max(traced.values()), rel=0.001)
    # The trainer's forward of the reference is a part of the loss here.
    before = max(phases["forward"], phases["loss"])
    assert before == pytest.approx(max(traced["forward"], traced["loss"]), rel=0.002)
    assert phases["backward"] == pytest.approx(traced["backward"], rel=0.001)
    # Of one row the engine's thread may hold no gradient any more.
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.006)


def test_ligers_gradients_are_made_twice_where_micro_batches_are_accumulated() -> None:
    run = next(p for p in LIGER if p["objective"] == "dpo" and p["precision"] == "bf16")
    once, several = (run_step(replace_fields(job(run), {"training.gradient_accumulation_steps": n})) for n in (1, 2))
    lone, again = dict(phases_of(once)), dict(phases_of(several))
    head = 2 * run["config"]["vocab_size"] * run["config"]["hidden_size"]
    assert again["loss"] - lone["loss"] == once.static["gradients"]
    assert again["backward"] >= lone["backward"] + head


def test_an_older_liger_takes_the_gradient_of_a_frozen_head() -> None:
    run = next(p for p in LIGER if p["objective"] == "grpo" and "lora" in p)
    assert highest(run, versions={"trl": "1.9", "liger-kernel": "0.8.1"}) > highest(run) + 2**21


@pytest.mark.parametrize(
    "run", [p for p in [*POINTS, *FACTORY, *LIGER] if p["precision"] == "bf16" or p in FACTORY], ids=title
)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    deep = {**run, "config": {**run["config"], "n_layer": 6, "num_hidden_layers": 6}}
    short, full = simulated(deep), simulated(deep, full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]


def point(objective: str, **fields: Any) -> dict[str, Any]:
    return next(p for p in POINTS if p["objective"] == objective and fields.items() <= p.items())


def highest(run: dict[str, Any], **changes: Any) -> int:
    return peak(phases_of(run_step(replace_fields(job(run), changes), (8, 0))))[1]


def test_dropout_of_an_adapter_is_switched_off_for_preferences_but_not_for_policies() -> None:
    for objective, same in (("dpo", True), ("grpo", False), ("sft", False)):
        run = next(p for p in POINTS if p["objective"] == objective and "lora" in p and p["checkpointing"] == "none")
        settings = {name: run["lora"][name] for name in ("rank", "targets")}
        plain = highest(run)
        dropping = highest(run, **{"training.lora": Lora(**settings, dropout=0.1)})
        assert (dropping == plain) is same, objective


def test_a_policys_reference_takes_memory_but_no_pass_of_the_step() -> None:
    run = point("rloo", precision="bf16", reference="copy")
    with_reference, alone = job(run), replace_fields(job(run), {"training.reference_model": "none"})
    first, second = run_step(with_reference, (8, 0)), run_step(alone, (8, 0))
    extra = first.static["parameters"] - second.static["parameters"]
    for a, b in zip(first.timeline, second.timeline):
        assert a.peak_bytes - b.peak_bytes == extra


def test_an_older_torch_widens_the_factors_of_the_fused_heads_gradients() -> None:
    run = point("sft", precision="bf16")
    assert highest(run, versions={"torch": "2.7.1"}) > highest(run, versions={"torch": "2.8.0"})


@pytest.mark.parametrize(
    ("rows", "words", "made"),
    [(511, 32000, 438), (1023, 128256, 1023), (511, 8192, 511), (432, 32000, 432), (1024, 128256, 1002), (1, 8192, 1)],
)
def test_a_sum_is_split_as_inductor_splits_it(rows: int, words: int, made: int) -> None:
    assert parts(rows * words) == made
