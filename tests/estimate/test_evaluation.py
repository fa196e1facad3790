"""Evaluation between training steps: weights and states are there, gradients and saved activations are not."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.evaluation import below_the_step, evaluation_of, loss_of
from memlint.estimate.simulate import simulate
from memlint.hardware.parse import parse_target
from memlint.job import Origin, TrainingJob
from memlint.records import replace
from tests.estimate import evaluation_points, traced
from tests.estimate.jobs import job

ROWS = "training.eval_micro_batch_size"


def evaluated(changes: dict[str, Any], target: str | None = None, **fields: Any) -> Any:
    made = job({ROWS: 4, **changes}, **fields)
    machine = parse_target(target) if target is not None else None
    return evaluation_of(made, simulate(made, machine), machine)


def test_a_run_without_evaluation_has_none() -> None:
    assert evaluated({ROWS: None}) is None


def test_the_generation_of_an_update_is_not_modelled() -> None:
    assert evaluated({"training.objective": "ppo"}) is None


def test_a_policys_evaluation_keeps_the_keys_and_values_of_its_completions() -> None:
    grpo = {"training.objective": "grpo", "training.loss": "chunked", "training.sequence_length": 4096}
    grpo |= {"training.completion_length": 4000, "training.vllm_memory_share": 0.0}
    deep = {"num_hidden_layers": 96}
    own = evaluated(grpo, **deep)
    served = evaluated({**grpo, "training.vllm_memory_share": 0.3}, **deep)
    a = job(grpo, **deep).architecture
    assert a is not None
    # Keys and values of every layer for 4 rows of 4095 tokens: under autocast the rotary tables are in the dtype of the
    # fp32 states, and so are the keys.
    heads = int(a.get("num_attention_heads"))
    width = int(a.get("num_key_value_heads") or heads) * int(a.get("head_dim") or a.hidden_size // heads)
    cache = (4 + 2) * a.num_hidden_layers * 4 * 4095 * width
    static = own.components["parameters"] + own.components["optimizer_states"]
    assert static + cache < own.allocated_bytes < static + 1.2 * cache
    assert served.allocated_bytes < own.allocated_bytes


def test_a_policys_evaluation_is_never_surely_below_its_step() -> None:
    made = job({ROWS: 1, "training.objective": "grpo", "training.micro_batch_size": 4})
    assert not below_the_step(made)


def test_parts_sum_to_the_allocated_peak_and_hold_no_gradients() -> None:
    found = evaluated({})
    assert sum(found.components.values()) == found.allocated_bytes
    assert found.components["gradients"] == 0
    assert found.low_bytes <= found.device_bytes <= found.high_bytes


def test_states_count_and_the_micro_batch_does_not() -> None:
    light, heavy = evaluated({"training.optimizer": "sgd"}), evaluated({"training.optimizer": "adamw"})
    weights = simulate(job()).static["optimizer_states"]
    assert heavy.allocated_bytes - light.allocated_bytes == weights
    assert evaluated({"training.micro_batch_size": 9}).allocated_bytes == heavy.allocated_bytes


def test_logits_of_all_rows_are_made_at_once() -> None:
    """Half logits, their fp32 copy, half log-probabilities and theirs: ForCausalLMLoss under autocast."""
    few, many = evaluated({ROWS: 2}, vocab_size=64000), evaluated({ROWS: 4}, vocab_size=64000)
    per_row = (many.allocated_bytes - few.allocated_bytes) / 2
    assert per_row == pytest.approx(256 * 64000 * (2 + 2 + 4 + 4), rel=0.2)


@pytest.mark.parametrize("strategy", ["none", "ddp", "zero1", "zero2", "zero3", "fsdp"])
@pytest.mark.parametrize("objective", ["causal-lm", "dpo", "kto", "orpo", "reward", "sequence-classification"])
def test_a_step_over_as_many_rows_holds_more(strategy: str, objective: str) -> None:
    changes = {"parallelism.strategy": strategy, "training.objective": objective, "training.micro_batch_size": 4}
    made = job({ROWS: 4, **changes})
    assert below_the_step(made)
    target = parse_target("4xA100-80GB")
    estimate = simulate(made, target)
    found = evaluation_of(made, estimate, target)
    assert found is not None
    assert found.allocated_bytes <= estimate.allocated_bytes


@pytest.mark.parametrize("strategy", ["none", "zero3", "fsdp"])
def test_a_remembered_forward_changes_no_figure(strategy: str) -> None:
    memo: dict[Any, Any] = {}
    target = parse_target("4xA100-80GB")
    base = {ROWS: 4, "parallelism.strategy": strategy}
    variants: list[dict[str, Any]] = [
        {},
        {"training.optimizer": "adamw-8bit"},
        {"training.micro_batch_size": 2, "training.checkpointing.mode": "full"},
        {"training.sequence_length": 512},
        {"training.precision.autocast": None},
        {ROWS: 2},
    ]
    for changes in variants:
        made = job({**base, **changes})
        estimate = simulate(made, target)
        assert evaluation_of(made, estimate, target, memo) == evaluation_of(made, estimate, target)
    assert len(memo) == 4, "the optimizer, the micro batch and checkpointing are not seen"


def by(framework: str, key: str = "use_liger_kernel", **versions: str) -> TrainingJob:
    made = replace(job({"training.loss": "fused"}), framework=framework, versions=versions)
    return replace(made, origins={"training.loss": Origin(file="f", key=(key,))})


class TestLigerStandsAsideInEvalMode:
    def test_where_its_own_rule_decides(self) -> None:
        assert loss_of(by("hf-trainer 5.24", transformers="5.14.0")) == "standard"
        assert loss_of(by("LLaMA-Factory 0.9", "enable_liger_kernel")) == "standard"
        assert loss_of(by("axolotl 0.18", "liger_fused_linear_cross_entropy")) == "standard"

    def test_transformers_says_so_itself_since_515(self) -> None:
        assert loss_of(by("hf-trainer 5.24")) == "fused"
        assert loss_of(by("hf-trainer 5.24", transformers="5.15.0")) == "fused"

    def test_cut_cross_entropy_stays(self) -> None:
        assert loss_of(by("axolotl 0.18", "cut_cross_entropy")) == "fused"

    def test_trl_says_so_itself_since_026(self) -> None:
        assert loss_of(by("trl 1.9")) == "fused"
        assert loss_of(by("trl 1.9", trl="0.24.0")) == "standard"

    def test_a_native_job_and_other_losses_are_as_they_say(self) -> None:
        assert loss_of(by("native")) == "fused"
        assert loss_of(replace(job(), framework="hf-trainer 5.24")) == "standard"

    def test_such_an_evaluation_may_exceed_a_step_over_as_many_rows(self) -> None:
        made = by("hf-trainer 5.24", transformers="5.14.0")
        made = replace(made, training=replace(made.training, micro_batch_size=4, eval_micro_batch_size=4))
        assert not below_the_step(made)


@pytest.mark.parametrize("point", traced.points("traces_evaluations.jsonl"), ids=evaluation_points.title)
def test_an_evaluation_holds_what_its_trace_does(point: dict[str, Any]) -> None:
    assert evaluation_points.simulated(point) == pytest.approx(point["peak"], rel=0.0005)
