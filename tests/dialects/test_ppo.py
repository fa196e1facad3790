"""PPO as TRL's script and as LLaMA-Factory's stage: what a file means, and what its suggestions write."""

from __future__ import annotations

import pytest
from dialect_reading import job, read, said
from reading_support import document_of

from memlint.dialects.llamafactory import LLAMAFACTORY
from memlint.dialects.registry import by_name

TRL = by_name("trl")
SCRIPT = """
model_name_or_path: acme/tokenizer
sft_model_path: acme/policy
reward_model_path: acme/policy
dataset_name: acme/prompts
output_dir: out
learning_rate: 3.0e-6
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
"""
FACTORY = """
model_name_or_path: Qwen/Qwen3-4B
reward_model: saves/reward
stage: ppo
do_train: true
dataset: own
template: qwen3
output_dir: out
learning_rate: 1e-5
cutoff_len: 1024
"""


def test_trls_script_trains_a_policy_and_a_value_model_beside_two_frozen_ones() -> None:
    made = job(TRL, SCRIPT)
    training = made.training
    assert made.model == "acme/policy"
    assert (training.objective, training.value_model, training.reward_model) == ("ppo", "copy", "copy")
    assert training.reference_model == "copy"
    assert (training.completion_length, training.sequence_length) == (53, 512 + 53)
    assert (training.rollout_batch_size, training.mini_batches, training.rollouts) == (64, 1, None)
    assert training.padding


def test_an_adapter_is_its_own_reference() -> None:
    assert job(TRL, SCRIPT + "use_peft: true\n").training.reference_model == "adapter"


def test_rollouts_are_read() -> None:
    text = SCRIPT + "response_length: 256\nlocal_rollout_forward_batch_size: 8\nnum_mini_batches: 2\n"
    training = job(TRL, text).training
    assert (training.completion_length, training.rollout_batch_size, training.mini_batches) == (256, 8, 2)


def test_before_0_17_every_mini_batch_is_a_whole_global_batch() -> None:
    text = SCRIPT + "num_mini_batches: 2\n"
    assert job(TRL, text, versions={"trl": "0.16.1"}).training.rollouts == 4 * 8 * 2


@pytest.mark.parametrize(
    ("line", "word"), [("gradient_checkpointing: true", "checkpointing"), ("max_grad_norm: 1.0", "clipping")]
)
def test_what_the_trainers_own_loop_never_does_is_said(line: str, word: str) -> None:
    reading = read(TRL, SCRIPT + line + "\n")
    assert [text for _, text in said(reading, "MEM007") if "has no effect" in text and word in text]
    assert reading.jobs[0].training.checkpointing.mode == "none"
    assert reading.jobs[0].training.max_grad_norm is None


def test_activation_checkpointing_is_never_suggested_to_trls_script() -> None:
    from memlint.dialects.promises import kept

    document = document_of(SCRIPT)
    changes = {"training.checkpointing.mode": "full"}
    edits = TRL.express(changes, document, job(TRL, SCRIPT)) or ()
    assert not kept(TRL, document, edits, changes, None)


def test_what_is_taken_for_granted_is_said() -> None:
    none = SCRIPT.replace("reward_model_path: acme/policy\n", "")
    assert any("as large as the policy" in text for text in job(TRL, none).assumptions)
    unnamed = SCRIPT.replace("sft_model_path: acme/policy\n", "")
    assert job(TRL, unnamed).model == "acme/tokenizer"
    assert any("sft_model_path" in text for text in job(TRL, unnamed).assumptions)
    assert any("since 1.13" in text for text in job(TRL, SCRIPT).assumptions)
    assert job(TRL, SCRIPT).versions["trl"] == "1.12.0"
    assert not any("since 1.13" in text for text in job(TRL, SCRIPT, versions={"trl": "0.24.0"}).assumptions)


def test_the_rloo_of_old_releases_is_not_taken_for_ppo() -> None:
    reading = read(TRL, SCRIPT + "rloo_k: 4\n")
    assert not reading.jobs and "RLOO" in str(reading.skipped)


@pytest.mark.parametrize(
    ("lines", "reward"),
    [
        ("", "adapter"),
        ("reward_model_type: lora\n", "adapter"),
        ("reward_model_type: full\n", "copy"),
        ("reward_model_type: api\n", "none"),
    ],
)
def test_llamafactorys_reward_model_has_three_forms(lines: str, reward: str) -> None:
    training = job(LLAMAFACTORY, FACTORY + "finetuning_type: lora\nbf16: true\n" + lines).training
    assert (training.objective, training.value_model) == ("ppo", "head")
    assert (training.reward_model, training.reference_model) == (reward, "adapter")


def test_llamafactory_adds_the_completion_to_the_prompt() -> None:
    training = job(LLAMAFACTORY, FACTORY + "max_new_tokens: 512\n").training
    assert (training.completion_length, training.sequence_length) == (512, 1024 + 512)
    assert job(LLAMAFACTORY, FACTORY).training.completion_length == 1024


def test_llamafactorys_forwards_run_under_fp16_where_nothing_is_said() -> None:
    assert job(LLAMAFACTORY, FACTORY).training.precision.autocast == "fp16"
    assert job(LLAMAFACTORY, FACTORY + "bf16: true\n").training.precision.autocast == "bf16"


def test_llamafactorys_buffer_gathers_several_global_batches() -> None:
    text = FACTORY + "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nppo_buffer_size: 3\n"
    assert job(LLAMAFACTORY, text).training.rollouts == 24


def test_llamafactory_refuses_ppo_without_a_reward_and_an_adapter_without_lora() -> None:
    assert said(read(LLAMAFACTORY, FACTORY.replace("reward_model: saves/reward\n", "")), "MEM003")
    full = FACTORY + "finetuning_type: full\n"
    assert said(read(LLAMAFACTORY, full), "MEM003")
    assert not said(read(LLAMAFACTORY, full + "reward_model_type: full\n"), "MEM003")


def test_a_shorter_sequence_is_written_as_a_shorter_prompt() -> None:
    from memlint.dialects.promises import kept

    text = FACTORY + "max_new_tokens: 512\n"
    document, made = document_of(text), job(LLAMAFACTORY, text)
    changes = {"training.sequence_length": 1024}
    edits = LLAMAFACTORY.express(changes, document, made)
    assert edits is not None and [(e.path, e.value) for e in edits] == [(("cutoff_len",), 512)]
    assert kept(LLAMAFACTORY, document, edits, changes, None)


def test_value_and_reward_model_of_trl_are_those_that_the_script_loads() -> None:
    other = SCRIPT.replace("reward_model_path: acme/policy", "reward_model_path: acme/judge")
    read = job(TRL, other)
    assert read.training.reward_model_name == "acme/judge"
    assert read.origins["training.reward_model_name"].key == ("reward_model_path",)
    assert job(TRL, SCRIPT).training.reward_model_name is None
