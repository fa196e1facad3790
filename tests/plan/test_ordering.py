"""The handbook's order: a table of cases checked by hand, and its claim about LLaMA-7B."""

from __future__ import annotations

import pytest
import yaml
from planning import ROOT, names, native

from memlint.plan.planner import Planner

CASES = yaml.safe_load((ROOT / "fixtures" / "plan" / "ordering.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"].replace(" ", "-"))
def test_the_plan_is_the_one_an_expert_would_make(case, tmp_path):
    asked = native(tmp_path, case["model"], case["target"], case["training"], case.get("parallelism"))
    plan = Planner(asked).best()
    found = names(plan) if plan is not None and plan.verdict == "fits" else None
    assert found == case["plan"], case["why"]


def test_the_table_has_thirty_cases_with_reasons():
    assert len(CASES) >= 30
    assert len({case["case"] for case in CASES}) == len(CASES)
    assert all(len(case["why"]) > 20 for case in CASES)


LLAMA = {"micro_batch_size": 4, "sequence_length": 2048, "precision": "fp32", "optimizer": "adamw"}
MIXED = {"training.precision.autocast": "bf16"}
CHECKPOINTING = {"training.checkpointing.mode": "full"}
LIGHT = {"training.optimizer": "adamw-8bit"}


class TestTheHandbooksClaim:
    """LLaMA-7B, B = 4, T = 2048, plain fp32 AdamW, on an A100-80GB."""

    @pytest.fixture
    def asked(self, tmp_path):
        return native(tmp_path, "huggyllama/llama-7b", "A100-80GB", LLAMA)

    def test_it_does_not_fit(self, asked):
        assert asked.judge(asked.estimate) == "oom"

    @pytest.mark.parametrize("alone", [MIXED, CHECKPOINTING, LIGHT], ids=["mixed", "checkpointing", "light optimizer"])
    def test_no_remedy_fits_alone(self, asked, alone):
        assert asked.judge(asked.try_changes(alone).estimate) == "oom"

    def test_the_three_together_fit(self, asked):
        assert asked.judge(asked.try_changes({**MIXED, **CHECKPOINTING, **LIGHT}).estimate) == "fits"

    def test_the_plan_finds_them_in_this_order(self, asked):
        plan = Planner(asked).best()
        assert [step.remedy.dimension for step in plan.steps] == ["precision", "checkpointing", "optimizer"]
        assert plan.verdict == "fits"
        sizes = [step.device_bytes for step in plan.steps]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] == plan.estimate.device_bytes
