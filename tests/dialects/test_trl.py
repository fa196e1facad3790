"""TRL: which trainer a recipe is for, and what each release makes of it."""

import pytest
from reading_support import field_of, read_text

from memlint.dialects.trl_keys import infer_trainer

BASE = "model_name_or_path: acme/m\ndataset_name: a\nper_device_train_batch_size: 2\noutput_dir: o\n"


@pytest.mark.parametrize(
    ("data", "path", "trainer"),
    [
        ({}, "config.yaml", "sft"),
        ({"num_generations": 8}, "config.yaml", "grpo"),
        ({"num_generations": 2}, "recipes/rloo/config.yaml", "rloo"),
        ({"beta": 0.1}, "config.yaml", "dpo"),
        ({"beta": 0.1}, "recipes/m/orpo/config_full.yaml", "orpo"),
        ({"beta": 0.1}, "kto.yaml", "kto"),
        ({"beta": 2.0, "gamma_beta_ratio": 0.5}, "config.yaml", "simpo"),
        ({"loss_type": ["sigmoid", "sft"]}, "config.yaml", "dpo"),
        ({"loss_type": "dr_grpo", "beta": 0.0}, "config.yaml", "grpo"),
        ({"loss_type": "kto"}, "config.yaml", "kto"),
        ({"center_rewards_coefficient": 0.01}, "config.yaml", "reward"),
        ({}, "recipes/m/dpo/config_full.yaml", "dpo"),
        ({}, "configs/reward.yaml", "reward"),
        ({"max_length": 512}, "experiments/sftp/config.yaml", "sft"),
    ],
)
def test_the_trainer_follows_from_keys_then_from_the_path(data, path, trainer):
    assert infer_trainer(data, path)[0] == trainer


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("loss_type: simpo\n", "cpo"),
        ("cpo_alpha: 1.0\n", "cpo"),
        ("loss_type: simpo\ncpo_alpha: 0\n", "dpo"),
        ("cpo_alpha: 1.0\nloss_type: alphapo\n", "dpo"),
    ],
)
def test_cpo_adds_the_chosen_rows_loss_unless_its_weight_is_zero(text, objective):
    assert read_text(BASE + text).jobs[0].training.objective == objective


def test_an_adapted_classifier_trains_its_head_in_full():
    text = "use_peft: true\nlora_task_type: SEQ_CLS\n"
    found = read_text(BASE + text, path="recipes/reward/config.yaml").jobs[0].training
    assert found.lora.modules_to_save == ("classifier", "score")


def test_a_trainer_that_only_the_path_tells_is_said():
    job = read_text(BASE, path="recipes/dpo/config.yaml").jobs[0]
    assert "read as TRL's DPO trainer (the path of the file says so)" in job.assumptions


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "0.16.1",
            {"training.loss": "standard", "training.checkpointing.mode": "none", "training.precision.autocast": None},
        ),
        ("0.21.0", {"training.checkpointing.mode": "none", "training.precision.autocast": "bf16"}),
        ("0.22.0", {"training.checkpointing.mode": "full", "training.loss": "standard"}),
        ("0.26.0", {"training.precision.weights": "auto"}),
        ("0.27.0", {"training.precision.weights": "fp32"}),
        ("1.5.0", {"training.loss": "standard"}),
        ("1.6.0", {"training.loss": "chunked"}),
        ("1.16.0", {"training.loss": "chunked", "training.checkpointing.mode": "full"}),
    ],
)
def test_defaults_of_supervised_training_by_release(version, expected):
    job = read_text(BASE, versions={"trl": version}).jobs[0]
    assert {name: field_of(job, name) for name in expected} == expected
    assert job.versions["trl"] == version


@pytest.mark.parametrize(
    ("version", "liger", "loss"),
    [
        ("1.16.0", False, "chunked"),
        ("1.16.0", True, "chunked"),
        ("1.14.0", True, "chunked"),
        ("1.14.0", False, "standard"),
        ("1.12.0", True, "fused"),
        ("1.12.0", False, "standard"),
        ("0.27.2", True, "standard"),
    ],
)
def test_preference_loss_by_release(version, liger, loss):
    text = BASE + f"beta: 0.1\nuse_liger_kernel: {str(liger).lower()}\n"
    job = read_text(text, versions={"trl": version}).jobs[0]
    assert job.training.loss == loss
    assert bool(job.training.liger) == liger


@pytest.mark.parametrize(
    ("version", "extra", "prepared", "norms"),
    [
        ("0.24.0", "load_in_4bit: true\nbf16: true\n", False, True),
        ("0.11.4", "load_in_4bit: true\nbf16: true\n", False, True),
        ("0.11.4", "load_in_4bit: true\nfp16: true\n", True, False),
        ("0.24.0", "load_in_8bit: true\nbf16: true\n", True, False),
        ("0.24.0", "load_in_4bit: true\nbf16: true\ncenter_rewards_coefficient: 0.1\n", True, False),
        ("0.27.0", "load_in_4bit: true\nbf16: true\n", False, False),
    ],
)
def test_a_prepared_4_bit_model_kept_its_norms_alone_in_fp32_under_bf16(version, extra, prepared, norms):
    """What fms-acceleration's QLoRA rows on an A100 need: tests/estimate/test_older_transformers.py."""
    training = read_text(BASE + "use_peft: true\n" + extra, versions={"trl": version}).jobs[0].training
    assert training.quantization.kbit_preparation is prepared
    assert bool(training.precision.fp32_modules) is norms


def test_ligers_own_loss_had_a_switch_of_its_own_before_0_28():
    job = read_text(BASE + "beta: 0.1\nuse_liger_loss: true\n", versions={"trl": "0.24.0"}).jobs[0]
    assert job.training.loss == "fused"
    assert job.origins["training.loss"].key == ("use_liger_loss",)


def test_ligers_own_loss_computes_in_the_dtype_of_the_weights_and_says_so():
    text = BASE + "beta: 0.1\nuse_liger_kernel: true\nbf16: true\ndtype: float32\n"
    job = read_text(text, versions={"trl": "1.9.0"}).jobs[0]
    assert job.training.precision.autocast == "bf16"
    assert [a for a in job.assumptions if "beneath accelerate's autocast" in a and a.endswith("fp32")]


def test_ligers_kernels_leave_the_loss_of_other_trainers_alone():
    for keys in ("beta: 0.1\ncpo_alpha: 1.0\n", "center_rewards_coefficient: 0.1\n"):
        job = read_text(BASE + keys + "use_liger_kernel: true\n", versions={"trl": "1.9.0"}).jobs[0]
        assert job.training.loss == "standard"


@pytest.mark.parametrize(
    ("extra", "reference"),
    [
        ("beta: 0.1\n", "copy"),
        ("beta: 0.1\nuse_peft: true\n", "adapter"),
        ("beta: 0.1\nprecompute_ref_log_probs: true\n", "precomputed"),
        ("beta: 0.1\nloss_type: kto\n", "copy"),
        ("beta: 2.0\nsimpo_gamma: 1.0\n", "none"),
        ("num_generations: 2\n", "none"),
        ("num_generations: 2\nbeta: 0.04\n", "copy"),
        ("num_generations: 2\nbeta: 0.04\nuse_peft: true\n", "adapter"),
    ],
)
def test_reference_model(extra, reference):
    assert read_text(BASE + extra).jobs[0].training.reference_model == reference


def test_without_truncation_the_length_is_an_assumption():
    job = read_text(BASE + "max_length: null\n").jobs[0]
    assert job.training.sequence_length == 2048
    assert job.origins["training.sequence_length"].assumed is not None


def test_rloo_makes_two_completions_of_a_prompt_where_none_are_stated():
    for trainer, count in (("rloo", 2), ("grpo", 8)):
        reading = read_text(BASE + "max_completion_length: 64\n", path=f"recipes/{trainer}/config.yaml")
        assert reading.jobs[0].training.num_generations == count


def test_colocated_vllm_takes_its_share_unless_it_sleeps_or_serves():
    for extra, share in (
        ("use_vllm: true\n", 0.3),
        ("use_vllm: true\nvllm_gpu_memory_utilization: 0.7\n", 0.7),
        ("use_vllm: true\nvllm_mode: server\n", 0.0),
        ("use_vllm: true\nvllm_device: auto\nvllm_gpu_memory_utilization: 0.7\n", 0.0),
        ("use_vllm: true\nvllm_enable_sleep_mode: true\n", 0.0),
        ("vllm_gpu_memory_utilization: 0.7\n", 0.0),
    ):
        assert read_text(BASE + "num_generations: 2\n" + extra).jobs[0].training.vllm_memory_share == share


def test_sharding_that_no_key_states_is_an_assumption():
    sentence = "the launch config decides sharding"
    job = read_text(BASE, gpus=8).jobs[0]
    assert job.parallelism.strategy == "ddp"
    assert any(text.startswith(sentence) for text in job.assumptions)
    job = read_text(BASE + "accelerate_config: fsdp2\nnum_processes: 4\n", gpus=8).jobs[0]
    assert (job.parallelism.strategy, job.parallelism.gpus) == ("fsdp", 4)
    assert job.training.precision.trainable_weights == "fp32"
    assert not any(text.startswith(sentence) for text in job.assumptions)
    assert read_text(BASE, gpus=1).jobs[0].parallelism.strategy == "none"
