"""The declared keys, defaults and job fields of each dialect are what its reader does."""

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from reading_support import Beside, document_of, field_of

from memlint.dialects import accelerate_config, accelerate_fsdp, deepspeed_keys, hf_trainer_keys, trl_keys
from memlint.dialects.names import ATTENTION, DTYPES, HF_OPTIMIZERS
from memlint.dialects.registry import by_name
from memlint.document.load import load_file
from memlint.resources import schema_text

NAMES = ("hf-trainer", "trl", "deepspeed", "accelerate")
CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


def schema(name):
    return json.loads(schema_text(f"dialects/{name}"))


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_sound_and_names_fields_that_exist(name):
    Draft202012Validator.check_schema(schema(name))
    document = document_of("memlint: 1\nmodel: acme/m\ntraining: {method: qlora}\n")
    job = by_name("native").read(document, Beside()).jobs[0]
    for path, spec in _properties(schema(name)):
        field = spec.get("x-job-field")
        if field is not None:
            field_of(job, field)
        assert "description" in spec or path[-1] in ("device", "pin_memory", "ratio", "type", "params") or field, path


def test_schema_keys_are_keys_of_the_framework():
    assert set(schema("hf-trainer")["properties"]) <= hf_trainer_keys.TRAINING_ARGS
    assert set(schema("trl")["properties"]) <= trl_keys.KNOWN
    assert set(schema("deepspeed")["properties"]) <= deepspeed_keys.TOP_KEYS
    assert set(schema("deepspeed")["properties"]["zero_optimization"]["properties"]) <= deepspeed_keys.ZERO_KEYS
    accelerate = schema("accelerate")["properties"]
    assert set(accelerate) <= accelerate_config.TOP_KEYS
    assert set(accelerate["deepspeed_config"]["properties"]) <= accelerate_config.DEEPSPEED_KEYS
    assert set(accelerate["fsdp_config"]["properties"]) <= accelerate_fsdp.FSDP_KEYS


HF_BASE = (
    "model_name_or_path: acme/m\noutput_dir: out\nnum_train_epochs: 1\nour_key: 1\nper_device_train_batch_size: 8\n"
)
TRL_BASE = "model_name_or_path: acme/m\ndataset_name: a\noutput_dir: out\nuse_peft: true\nload_in_4bit: true\n"
PPO = ("response_length", "local_rollout_forward_batch_size", "num_mini_batches")
SWITCHES = {
    "training.precision.autocast": lambda on: "bf16" if on else None,
    "training.checkpointing.mode": lambda on: "full" if on else "none",
    "training.loss": lambda on: "fused" if on else "standard",
    "training.method": None,
    "training.quantization.bits": None,
    "training.reference_model": None,
    "training.eval_micro_batch_size": None,
}


@pytest.mark.parametrize(("name", "text"), [("hf-trainer", HF_BASE), ("trl", TRL_BASE)])
def test_declared_defaults_are_what_the_reader_takes(name, text):
    job = by_name(name).read(document_of(text), Beside()).jobs[0]
    checked = 0
    for key, spec in schema(name)["properties"].items():
        field, default = spec.get("x-job-field"), spec.get("default")
        if default is None or field is None or key in ("fp16", "activation_checkpointing") or key in text:
            continue
        if key in ("num_generations", "max_completion_length", "vllm_gpu_memory_utilization", "packing_strategy", *PPO):
            continue  # of another trainer, or of packing
        if name == "trl" and key == "use_liger_kernel":
            continue  # the chunked loss stands whatever it says
        native = default
        if field in SWITCHES:
            if SWITCHES[field] is None:
                continue
            native = SWITCHES[field](default)
        elif isinstance(default, str):
            native = {**HF_OPTIMIZERS, **ATTENTION, **DTYPES}.get(default, default)
        assert field_of(job, field) == native, key
        checked += 1
    assert checked >= 7


def test_trl_declares_the_defaults_of_its_other_trainers():
    text = TRL_BASE.replace("use_peft: true\nload_in_4bit: true\n", "reward_funcs: [a]\nuse_vllm: true\n")
    job = by_name("trl").read(document_of(text), Beside()).jobs[0]
    properties = schema("trl")["properties"]
    for key in ("num_generations", "max_completion_length", "vllm_gpu_memory_utilization"):
        assert field_of(job, properties[key]["x-job-field"]) == properties[key]["default"]
    text = TRL_BASE.replace("use_peft: true\nload_in_4bit: true\n", "sft_model_path: acme/m\n")
    job = by_name("trl").read(document_of(text), Beside()).jobs[0]
    for key in PPO:
        assert field_of(job, properties[key]["x-job-field"]) == properties[key]["default"]


@pytest.mark.parametrize("name", NAMES)
def test_fixtures_without_mistakes_validate(name):
    validator = Draft202012Validator(schema(name))
    folder = Path(__file__).parents[2] / "fixtures" / "dialects" / name
    for path in sorted(folder.glob("*.*")):
        expected = path.with_name(f"{path.stem}.expected.yaml")
        if ".expected" in path.name or "problems" in expected.read_text() or "dialect:" in expected.read_text():
            continue
        data = load_file(str(path))[0].data
        if "training_args" not in data:
            assert validator.is_valid(data), (path.name, [e.message for e in validator.iter_errors(data)])


@pytest.mark.corpus
@pytest.mark.parametrize("name", NAMES)
def test_real_files_validate(name):
    if not CORPUS.is_dir():
        pytest.skip("the shared corpus is not beside the checkout")
    validator = Draft202012Validator(schema(name))
    for folder, _, files in os.walk(CORPUS / name):
        for file in files:
            data = load_file(os.path.join(folder, file))[0].data
            assert validator.is_valid(data), file


def _properties(node, path=()):
    for key, spec in node.get("properties", {}).items():
        yield (*path, key), spec
        yield from _properties(spec, (*path, key))
