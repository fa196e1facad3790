"""Plans hold the run as a whole: its evaluations, the host's memory, and layers that nothing else divides."""

from __future__ import annotations

import pytest
from planning import names, native, question

from memlint.engine.source import open_source
from memlint.hardware.parse import parse_target
from memlint.plan import options_scale
from memlint.plan.planner import Planner
from memlint.settings.load import forget_settings

AXOLOTL = """\
base_model: Qwen/Qwen3-8B
plugins: [axolotl.integrations.liger.LigerPlugin]
liger_fused_linear_cross_entropy: true
sequence_len: 8192
micro_batch_size: 8
val_set_size: 0.05
eval_steps: 50
gradient_checkpointing: true
bf16: true
optimizer: adamw_8bit
adapter: lora
lora_r: 16
lora_target_linear: true
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
"""


@pytest.fixture
def asked(tmp_path):
    forget_settings()

    def ask(text, target, goal="fit"):
        (tmp_path / ".git").mkdir(exist_ok=True)
        path = tmp_path / "train.yaml"
        path.write_text(text)
        return question(path, target, goal)

    return ask


class TestEvaluation:
    def test_a_run_whose_evaluation_does_not_fit_does_not_fit(self, asked):
        found = asked(AXOLOTL, "H100-80GB")
        assert found.estimate.high_bytes < found.usable < found.estimate.evaluation.low_bytes
        assert found.judge(found.estimate) == "oom"

    def test_the_plan_is_the_largest_evaluation_batch_that_fits(self, asked):
        found = asked(AXOLOTL, "H100-80GB")
        plan = Planner(found).best()
        assert names(plan) == ["evaluation-batch-4"]
        assert plan.safe
        assert plan.text == "`eval_batch_size: 4`"
        assert plan.estimate.device_bytes == found.estimate.device_bytes
        assert plan.steps[0].evaluation_bytes < found.usable
        larger = found.try_changes({"training.eval_micro_batch_size": 5})
        assert found.judge(larger.estimate) == "tight"

    def test_a_smaller_gpu_needs_other_remedies_and_a_smaller_evaluation(self, asked):
        plan = Planner(asked(AXOLOTL, "A100-40GB")).best()
        assert plan.verdict == "fits"
        assert names(plan)[-1].startswith("evaluation-batch-")
        assert plan.estimate.evaluation.high_bytes < 0.95 * parse_target("A100-40GB").usable_bytes

    def test_the_edited_file_evaluates_as_promised(self, asked, tmp_path):
        found = asked(AXOLOTL, "H100-80GB")
        plan = Planner(found).best()
        again = asked(AXOLOTL + "eval_batch_size: 4\n", "H100-80GB")
        assert again.estimate.evaluation == plan.estimate.evaluation
        assert again.judge(again.estimate) == "fits"

    def test_an_evaluation_that_fits_is_left_alone(self, asked):
        fitting = AXOLOTL.replace("micro_batch_size: 8", "micro_batch_size: 1")
        plan = Planner(asked(fitting, "H100-80GB")).best()
        assert names(plan) == []

    def test_rows_are_halved_down_to_one(self, asked):
        job = asked(AXOLOTL, "H100-80GB").job
        sizes = [remedy.changes["training.eval_micro_batch_size"] for remedy in options_scale.evaluation_batches(job)]
        assert sizes == [4, 2, 1]


class TestHostMemory:
    def plan(self, tmp_path, gibibytes):
        (tmp_path / "job.yaml").write_text(
            "memlint: 1\nmodel: Qwen/Qwen3-8B\ntraining: {optimizer: adamw, sequence_length: 512}\n"
            f"hardware: {{host_memory: {gibibytes << 30}}}\n"
        )
        return Planner(question(tmp_path / "job.yaml", "A100-40GB")).best()

    def test_offloading_is_a_remedy_where_the_host_holds_it(self, tmp_path):
        plan = self.plan(tmp_path, 256)
        assert plan.verdict == "fits"
        assert plan.remedies[-1].rank["offload"] > 0
        assert plan.estimate.host_bytes < 256 << 30

    def test_and_none_where_it_does_not(self, tmp_path):
        plan = self.plan(tmp_path, 64)
        assert plan is None or plan.verdict != "fits"


LONG = {
    "micro_batch_size": 1,
    "sequence_length": 131072,
    "loss": "chunked",
    "activation_checkpointing": "offload",
    "optimizer": "sgd",
    "precision": "bf16",
}


class TestTensorParallelism:
    def test_it_is_taken_where_nothing_else_divides_enough(self, tmp_path):
        asked = native(tmp_path, "meta-llama/Llama-3.1-8B", "8xA100-40GB", LONG)
        planner = Planner(asked)
        assert planner._search().cheapest(lambda estimate: asked.judge(estimate) == "fits") is None
        plan = planner.best()
        assert plan.verdict == "fits"
        assert plan.remedies[-1].dimension == "tensor"
        assert plan.steps[-1].saves_bytes > 0

    def test_it_is_in_no_plan_that_fits_without_it(self, tmp_path):
        asked = native(tmp_path, "meta-llama/Llama-3.1-8B", "8xA100-80GB", {"sequence_length": 2048})
        assert all(remedy.dimension != "tensor" for plan in Planner(asked).front() for remedy in plan.remedies)

    @pytest.mark.parametrize(
        ("gpus", "node", "sizes"), [(8, 8, [2, 4, 8]), (8, 4, [2, 4]), (6, 6, [2]), (1, 1, []), (16, 8, [2, 4, 8])]
    )
    def test_groups_stay_in_a_node_and_divide_the_gpus(self, tmp_path, gpus, node, sizes):
        job = native(tmp_path, "meta-llama/Llama-3.1-8B").job
        found = options_scale.tensor_parallel(job, gpus, node)
        assert [remedy.changes["parallelism.tensor"] for remedy in found] == sizes

    def test_heads_and_key_value_heads_are_whole(self, tmp_path):
        job = native(tmp_path, "Qwen/Qwen2.5-0.5B").job  # 14 heads, 2 key-value heads
        found = options_scale.tensor_parallel(job, 8, 8)
        assert [remedy.changes["parallelism.tensor"] for remedy in found] == [2]

    def test_adapters_are_not_divided(self, tmp_path):
        job = native(tmp_path, "meta-llama/Llama-3.1-8B", training={"method": "lora"}).job
        assert options_scale.tensor_parallel(job, 8, 8) == ()


class TestOtherRows:
    def test_the_longest_half_that_fits_is_offered_and_in_no_plan(self, tmp_path):
        training = {"micro_batch_size": 1, "sequence_length": 16384, "precision": "bf16", "optimizer": "sgd"}
        asked = native(tmp_path, "Qwen/Qwen3-0.6B", "A100-40GB", training)
        planner = Planner(asked)
        (offer,) = [plan for plan in planner.offers() if plan.remedies[0].dimension == "sequence"]
        length = offer.changes["training.sequence_length"]
        assert offer.verdict == "fits"
        assert asked.judge(asked.try_changes({"training.sequence_length": 2 * length}).estimate) != "fits"
        assert all(remedy.dimension != "sequence" for plan in planner.front() for remedy in plan.remedies)

    def test_packing_is_offered_where_padding_costs(self, tmp_path):
        job = native(tmp_path, "Qwen/Qwen3-0.6B", training={"padding": True}).job
        assert [remedy.name for remedy in options_scale.packed(job)] == ["packing"]
        packed = native(tmp_path, "Qwen/Qwen3-0.6B", training={"padding": True, "packing": True}).job
        assert options_scale.packed(packed) == options_scale.packed(native(tmp_path, "Qwen/Qwen3-0.6B").job) == ()


def test_a_cloud_instance_brings_its_main_memory(tmp_path):
    (tmp_path / "job.yaml").write_text("memlint: 1\nmodel: Qwen/Qwen3-0.6B\n")
    source = open_source(str(tmp_path / "job.yaml"), target="p4d.24xlarge", offline=True, isolated=True)
    assert source.target.host_bytes == 1152 << 30
    assert question(tmp_path / "job.yaml", "p4d.24xlarge").host_bytes == 1152 << 30
    assert question(tmp_path / "job.yaml", "8xA100-40GB").host_bytes is None
