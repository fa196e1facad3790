"""Home-made files around TrainingArguments: what stands outside of the arguments and matters to memory."""

import json

import pytest
from reading_support import Beside, document_of

from memlint.dialects.registry import by_name

ARGUMENTS = {"output_dir": "out", "per_device_train_batch_size": 4, "num_train_epochs": 1}


def read(**sections):
    content = {"model": {"name": "acme/m", "load_in_4bit": True}, "lora": {"r": 8}, "training_args": ARGUMENTS}
    content.update(sections)
    return by_name("hf-trainer").read(document_of(json.dumps(content), "config.json"), Beside()).jobs[0]


def test_unsloths_checkpointing_stands_with_the_adapter():
    job = read(lora={"r": 8, "use_gradient_checkpointing": "unsloth"})
    found = job.training.checkpointing
    assert (found.mode, found.offload, found.reentrant) == ("offload", True, True)
    assert job.origins["training.checkpointing.mode"].key == ("lora", "use_gradient_checkpointing")
    assert any("Unsloth" in assumption for assumption in job.assumptions)


@pytest.mark.parametrize("key", ["use_gradient_checkpointing", "gradient_checkpointing"])
def test_checkpointing_may_stand_with_the_model(key):
    job = read(model={"name": "acme/m", "load_in_4bit": True, key: True})
    assert (job.training.checkpointing.mode, job.training.checkpointing.offload) == ("full", False)


def test_what_the_arguments_switch_on_is_theirs():
    job = read(training_args={**ARGUMENTS, "gradient_checkpointing": True}, lora={"use_gradient_checkpointing": False})
    assert job.origins["training.checkpointing.mode"].key == ("training_args", "gradient_checkpointing")


@pytest.mark.parametrize("value", [False, "no", None, [1], "sometimes"])
def test_anything_else_switches_nothing_on(value):
    assert read(lora={"r": 8, "use_gradient_checkpointing": value}).training.checkpointing.mode == "none"
