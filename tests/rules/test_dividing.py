"""What does not divide, and what the host does not hold: rules that need more than one file or a declared machine."""

from __future__ import annotations

import json

import pytest
from fixture_tools import inside

from memlint.engine.options import CheckOptions
from memlint.engine.run import check_paths
from memlint.settings.load import forget_settings

TRAINER = {
    "output_dir": "out",
    "model_name_or_path": "Qwen/Qwen3-0.6B",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "dataset_name": "d",
    "max_length": 1024,
    "bf16": True,
    "deepspeed": "ds.json",
}
STAGE_2 = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
GRPO = {
    "output_dir": "out",
    "model_name_or_path": "Qwen/Qwen3-0.6B",
    "dataset_name": "d",
    "num_generations": 6,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_completion_length": 64,
}


@pytest.fixture
def codes(tmp_path):
    forget_settings()
    (tmp_path / ".git").mkdir()

    def check(files, target="A100-80GB"):
        for name, content in files.items():
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        with inside(tmp_path):
            result = check_paths(CheckOptions(paths=("train.yaml",), target=target, offline=True))
        assert result.crashes == []
        forget_settings()
        return {finding.code: finding.message for report in result.reports for finding in report.findings}

    return check


class TestTheTrainBatchOfDeepSpeed:
    @pytest.mark.parametrize("size", [8, 16, "auto"])
    def test_a_multiple_says_how_many_gpus_there_are(self, codes, size):
        assert "MEM603" not in codes({"train.yaml": TRAINER, "ds.json": {**STAGE_2, "train_batch_size": size}})

    def test_no_number_of_gpus_divides_it(self, codes):
        found = codes({"train.yaml": TRAINER, "ds.json": {**STAGE_2, "train_batch_size": 6}})
        assert found["MEM603"] == (
            "`train_batch_size: 6` is not micro batch 2 x accumulation 2 x any number of GPUs: use `auto`"
        )


class TestGenerations:
    @pytest.mark.parametrize(
        ("more", "target", "speaks"),
        [
            ({"num_processes": 2}, "A100-80GB", True),
            ({"num_processes": 3}, "A100-80GB", False),
            ({}, "8xA100-80GB", True),
            ({}, "6xA100-80GB", False),
            # One GPU may only be the kind; a vLLM server takes some of the target's.
            ({}, "A100-80GB", False),
            ({"use_vllm": True, "vllm_mode": "server"}, "8xA100-80GB", False),
            ({"use_vllm": True, "vllm_mode": "server", "num_processes": 7}, "8xA100-80GB", True),
            ({"num_processes": 2, "generation_batch_size": 24}, "A100-80GB", False),
            ({"num_processes": 2, "steps_per_generation": 3}, "A100-80GB", False),
        ],
    )
    def test_they_fill_the_completions_of_a_step(self, codes, more, target, speaks):
        assert ("MEM603" in codes({"train.yaml": {**GRPO, **more}}, target)) is speaks


OFFLOADED = """\
memlint: 1
model: Qwen/Qwen3-4B
training: {precision: bf16, activation_checkpointing: full}
parallelism: {strategy: zero2, offload: optimizer}
"""


class TestHostMemory:
    def test_the_settings_declare_it(self, codes):
        settings = {"memlint.toml": 'host-memory = "24GiB"\n', "train.yaml": OFFLOADED}
        assert "37.5 GiB is needed on each node, which has 24.0 GiB" in codes(settings, "8xA100-40GB")["MEM103"]

    def test_the_file_wins_over_the_settings(self, codes):
        files = {
            "memlint.toml": 'host-memory = "24GiB"\n',
            "train.yaml": OFFLOADED + "hardware: {host_memory: 68719476736}\n",
        }
        assert "MEM103" not in codes(files, "8xA100-40GB")

    def test_a_cloud_instance_has_its_own(self, codes):
        assert "MEM103" in codes({"train.yaml": OFFLOADED}, "g6.xlarge")
        assert "MEM103" not in codes({"train.yaml": OFFLOADED}, "g6.48xlarge")

    def test_paged_states_may_stay_on_the_gpu(self, codes):
        job = OFFLOADED.replace("{strategy: zero2, offload: optimizer}", "{}").replace(
            "precision: bf16", "precision: bf16, optimizer: paged-adamw"
        )
        assert "MEM103" not in codes({"memlint.toml": 'host-memory = "8GiB"\n', "train.yaml": job}, "A100-80GB")

    def test_two_nodes_hold_half_each(self, codes):
        files = {"memlint.toml": 'host-memory = "24GiB"\n', "train.yaml": OFFLOADED}
        assert "MEM103" not in codes(files, "2x8xA100-40GB")

    def test_no_plan_moves_more_than_the_host_holds(self, codes):
        job = "memlint: 1\nmodel: Qwen/Qwen3-8B\ntraining: {optimizer: adamw, sequence_length: 512}\n"
        assert "MEM502" in codes({"train.yaml": job}, "A100-40GB")
        found = codes({"memlint.toml": 'host-memory = "64GiB"\n', "train.yaml": job}, "A100-40GB")
        assert "MEM101" in found
        assert "MEM502" not in found


class TestExpertsOnTheHost:
    """LLaMA-Factory's use_kt, after its own examples."""

    FILE = (
        "model_name_or_path: {}\nstage: sft\ndo_train: true\nfinetuning_type: lora\nlora_rank: 8\nlora_target: all\n"
        "dataset: own\ntemplate: deepseek\ncutoff_len: 2048\noutput_dir: out\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 4\nlearning_rate: 1.0e-4\nbf16: true\nuse_kt: true\n"
    )
    V3, LITE = "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V2-Lite"

    def test_they_do_not_count_against_the_gpu(self, codes):
        assert "MEM101" not in codes({"train.yaml": self.FILE.format(self.V3)}, "A100-80GB")

    def test_what_stays_on_the_gpu_still_has_to_fit(self, codes):
        found = codes({"train.yaml": self.FILE.format(self.V3)}, "RTX-4090")
        assert "MEM101" in found
        assert "MEM502" not in found

    def test_the_host_has_to_hold_them(self, codes):
        found = codes({"train.yaml": self.FILE.format(self.V3)}, "g5.2xlarge")
        assert "which has 32.0 GiB on g5.2xlarge" in found["MEM103"]

    def test_a_gpu_that_holds_all_of_the_model_needs_no_host(self, codes):
        file = {"train.yaml": self.FILE.format(self.LITE)}
        assert "offloading to the host is not needed" in codes(file, "B200")["MEM502"]
        assert "MEM502" not in codes(file, "RTX-4090")


class TestGroupsOfGpus:
    @pytest.mark.parametrize(
        ("parallelism", "message"),
        [
            ("{tensor: 2, pipeline: 3}", "8 GPUs do not divide into groups of tensor 2 x pipeline 3"),
            ("{strategy: hsdp, shard: 3}", "8 data-parallel GPUs do not divide into shard groups of 3"),
            ("{pipeline: 64, gpus: 64}", "36 layers are fewer than 64 pipeline stages"),
            ("{sequence_parallel: true}", "there is no tensor parallelism"),
        ],
    )
    def test_each_is_named(self, codes, parallelism, message):
        job = f"memlint: 1\nmodel: Qwen/Qwen3-4B\nparallelism: {parallelism}\n"
        assert message in codes({"train.yaml": job}, "8xA100-80GB")["MEM503"]

    @pytest.mark.parametrize("parallelism", ["{tensor: 2, pipeline: 2}", "{strategy: hsdp, shard: 4}", "{context: 8}"])
    def test_what_divides_is_silent(self, codes, parallelism):
        job = f"memlint: 1\nmodel: Qwen/Qwen3-4B\nparallelism: {parallelism}\n"
        assert "MEM503" not in codes({"train.yaml": job}, "8xA100-80GB")
