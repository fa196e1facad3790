"""A config that names nothing to train: the run ends at once, and the prediction would be that of no run."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.engine.trained import linear_names, names_nothing
from memlint.estimate.simulate import simulate
from memlint.job import TrainingJob, replace_fields
from memlint.models import catalog
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

OLDER_NAMES = r"language_model\.model\.layers\.\d+\.self_attn\.q_proj"


def job(model: str, targets: Any, **changes: Any) -> TrainingJob:
    row = catalog.find(model)
    assert row is not None
    architecture = read_config(row.config, id=model)
    assert isinstance(architecture, Architecture)
    adapters = {"training.method": "lora", "training.lora.rank": 8, "training.lora.targets": targets}
    return replace_fields(TrainingJob(model=model, architecture=architecture), {**adapters, **changes})


def said(asked: TrainingJob) -> str | None:
    problem = names_nothing(asked, simulate(asked))
    return problem.message if problem is not None else None


def test_a_slip_is_named_with_what_was_meant() -> None:
    message = said(job("Qwen/Qwen3-0.6B", ("q_porj",)))
    assert message == "`q_porj` names no module of Qwen/Qwen3-0.6B, and PEFT refuses to start; did you mean `q_proj`?"


def test_names_of_another_model_are_answered_with_this_ones() -> None:
    message = said(job("openai-community/gpt2", ("q_proj", "v_proj")))
    assert message is not None and message.endswith("it has `c_attn`, `c_proj`, `c_fc`")


def test_a_pattern_of_older_names_is_answered_with_one_of_todays() -> None:
    vision = "Qwen/Qwen2.5-VL-7B-Instruct"
    message = said(job(vision, OLDER_NAMES))
    assert message is not None and "called like `model.language_model.layers." in message
    assert said(job(vision, OLDER_NAMES, versions={"transformers": "4.51.0"})) is None
    assert said(job(vision, r".*\.self_attn\.q_proj")) is None


@pytest.mark.parametrize("targets", ["all-linear", "default", ("q_proj",), ("q_proj", "nothing"), r".*q_proj"])
def test_nothing_is_said_where_one_name_has_a_place(targets: Any) -> None:
    assert said(job("Qwen/Qwen3-0.6B", targets)) is None


def test_patterns_of_no_parameter_leave_nothing_to_train() -> None:
    vision = job("Qwen/Qwen2.5-VL-7B-Instruct", "default")
    unfrozen = {"training.lora": None, "training.method": "freeze", "training.trainable_patterns": (r"^layers\.",)}
    message = said(replace_fields(vision, unfrozen))
    assert message is not None and message.startswith(
        r"`^layers\.` names no parameter of Qwen/Qwen2.5-VL-7B-Instruct, and nothing is left to train"
    )
    assert said(replace_fields(vision, {**unfrozen, "training.trainable_patterns": ("language_model",)})) is None


def test_an_estimate_says_it_too() -> None:
    assumptions = simulate(job("Qwen/Qwen3-0.6B", ("q_porj",))).assumptions
    assert "what the config names to train is nowhere in the model: nothing trains" in assumptions


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("internlm/internlm2-7b", ("wqkv", "wo", "w1", "w2", "w3")),
        ("Qwen/Qwen-7B-Chat", ("c_attn", "attn.c_proj", "w1", "w2")),
        ("THUDM/glm-4-9b-chat", ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")),
        ("baichuan-inc/Baichuan2-7B-Chat", ("W_pack", "o_proj")),
    ],
)
def test_code_on_the_hub_is_adapted_by_its_own_names(model: str, targets: tuple[str, ...]) -> None:
    for target in targets:
        one = job(model, (target,))
        assert simulate(one).trainable_parameters and said(one) is None


def test_qwens_first_code_has_one_adapter_for_queries_keys_and_values() -> None:
    """Of rank 64 on the modules that finetune.py of QwenLM/Qwen names: r x (inputs + outputs) of each."""
    every = job("Qwen/Qwen-7B-Chat", ("c_attn", "c_proj", "w1", "w2"), **{"training.lora.rank": 64})
    h, inner = 4096, 11008
    sizes = (h + 3 * h) + (h + h) + 3 * (h + inner)
    assert simulate(every).trainable_parameters == 32 * 64 * sizes


def test_nothing_is_said_of_a_model_that_is_computed_as_another() -> None:
    assert said(job("inclusionAI/Ling-mini-2.0", ("nothing",))) is None


def test_names_are_full_and_leave_out_tables_and_head() -> None:
    names = linear_names(job("Qwen/Qwen3-0.6B", "all-linear"))
    assert "model.layers.0.self_attn.q_proj" in names
    assert not any("embed" in name or "head" in name or "norm" in name for name in names)
