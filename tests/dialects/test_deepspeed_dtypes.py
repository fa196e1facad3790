"""DeepSpeed's keys of dtypes, and what it does without ZeRO: which job fields they set, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects.base import JobDraft, Problem
from memlint.dialects.deepspeed import apply_settings
from memlint.dialects.deepspeed_config import read_config
from memlint.dialects.values import Section
from memlint.document.model import Document


def applied(config: dict[str, Any]) -> tuple[JobDraft, list[Problem]]:
    problems: list[Problem] = []
    section = Section({"deepspeed": config}, problems)
    draft = JobDraft("test", Document(path="train.yaml", text="", data={}, format="yaml"))
    draft.set("training.precision.autocast", "bf16", default="test")
    apply_settings(draft, read_config(Section(config, problems, prefix=("deepspeed",))), section, "deepspeed")
    return draft, problems


BF16 = {"enabled": True}


def test_gradients_summed_in_fp32_and_sent_in_it() -> None:
    config = {
        "bf16": {**BF16, "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {"stage": 1},
    }
    draft, problems = applied(config)
    assert not problems
    assert draft.get("training.precision.gradients") == "fp32"
    assert draft.get("parallelism.communication_dtype") == "fp32"
    assert draft.get("parallelism.immediate_gradients") is True
    assert draft.origins["parallelism.communication_dtype"].key == ("deepspeed", "communication_data_type")


def test_an_unknown_dtype_is_named_on_its_key() -> None:
    _, problems = applied({"bf16": BF16, "communication_data_type": "int8"})
    assert [(p.code, p.key) for p in problems] == [("MEM003", ("deepspeed", "communication_data_type"))]


def test_without_zero_deepspeed_still_keeps_masters() -> None:
    draft, _ = applied({"bf16": BF16, "zero_optimization": {"stage": 0}})
    assert draft.get("parallelism.strategy") == "zero0"
    assert draft.get("training.precision.master_weights") is True
    plain, _ = applied({"zero_optimization": {"stage": 0}, "bf16": {"enabled": False}})
    assert plain.get("training.precision.master_weights") is None


@pytest.mark.parametrize(
    ("more", "stage", "refused"),
    [
        ({}, 2, True),
        ({"bf16_optimizer_states": True}, 2, False),
    ],
)
def test_masters_in_bf16_need_their_states_there_too(more: dict[str, Any], stage: int, refused: bool) -> None:
    bf16 = {**BF16, "bf16_master_weights_and_grads": True, **more}
    _, problems = applied({"bf16": bf16, "zero_optimization": {"stage": stage}})
    assert [p.code for p in problems] == ["MEM503"] * refused
    on_host = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    assert not applied({"bf16": bf16, "zero_optimization": on_host})[1]
