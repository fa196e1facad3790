"""Which dialect a file is: by content, whatever the order of its keys, and silent on everything else."""

# ruff: noqa: E501 - a config on one line is easier to compare than one broken in two
import random
import subprocess
import sys

import pytest
import yaml
from reading_support import document_of

from memlint.dialects.registry import DIALECTS, by_name, forced_name, may_be_config, recognise

OTHER_PROGRAMS = {
    ".github/workflows/ci.yml": "name: ci\non: [push]\njobs:\n  train:\n    steps: [{run: python train.py}]\n",
    "deployment.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: trainer}\nspec: {replicas: 2}\n",
    "compose.yaml": "services:\n  trainer: {image: acme/trainer, environment: {model_name_or_path: x, output_dir: y}}\n",
    "mkdocs.yml": "site_name: docs\nnav: [index.md]\n",
    ".pre-commit-config.yaml": "repos:\n- repo: https://example.org/memlint\n  rev: v1\n  hooks: [{id: memlint}]\n",
    "package.json": '{"name": "x", "version": "1.0.0", "scripts": {"train": "python train.py"}}',
    "adapter_config.json": '{"peft_type": "LORA", "base_model_name_or_path": "acme/m", "r": 8, "target_modules": ["q_proj"]}',
    "swift.yaml": "model: acme/m\ntuner_type: lora\ndataset: [a]\nper_device_train_batch_size: 1\nnum_train_epochs: 1\n",
    "open_instruct.yaml": "model_name_or_path: acme/m\nuse_flash_attn: true\nmax_seq_length: 512\nnum_epochs: 2\n"
    "per_device_train_batch_size: 1\nlearning_rate: 1e-5\nwith_tracking: true\n",
    "unsloth.yaml": "model: acme/m\ntraining: {training_type: lora, per_device_train_batch_size: 2, num_train_epochs: 1}\n",
    "neox.yml": '{"pipe-parallel-size": 1, "num-layers": 12, "hidden-size": 768, "seq-length": 2048, "lr-decay-iters": 1,\n'
    ' "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "optimizer": {"type": "Adam"}}',
    "nanotron.yaml": "model: {dtype: bfloat16}\nparallelism: {dp: 2}\ntokens: {micro_batch_size: 2, sequence_length: 64}\n",
    "verl.yaml": "actor_rollout_ref: {model: {path: acme/m}}\ntrainer: {n_gpus_per_node: 8, num_train_epochs: 1}\n",
    "home.yaml": "model_name: acme/m\nbatch_size: 4\nlearning_rate: 1e-4\nepochs: 3\nbeta: 0.1\nmax_prompt_length: 5\n",
    "list.yaml": "- model_name_or_path: acme/m\n- per_device_train_batch_size: 4\n",
    "empty.yaml": "",
}

TRAINING = {
    "native": "memlint: 1\nmodel: acme/m\n",
    "accelerate": "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n",
    "deepspeed": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "my_note": "ours"}',
    "axolotl": "base_model: acme/m\nmicro_batch_size: 1\nsequence_len: 512\ndatasets: [{path: a, type: alpaca}]\n",
    "llamafactory": "model_name_or_path: acme/m\nstage: sft\nfinetuning_type: lora\ndataset: a\noutput_dir: o\n"
    "do_train: true\nper_device_train_batch_size: 1\n",
    "trl": "model_name_or_path: acme/m\ndataset_name: a\nuse_peft: true\noutput_dir: o\nper_device_train_batch_size: 1\n",
    "hf-trainer": "model_name_or_path: acme/m\noutput_dir: o\nper_device_train_batch_size: 1\nnum_train_epochs: 1\n"
    "some_flag_of_our_own: 1\n",
}


@pytest.mark.parametrize("path", OTHER_PROGRAMS)
def test_files_of_other_programs_are_nobodys(path):
    text = OTHER_PROGRAMS[path]
    assert not may_be_config(text) or recognise(document_of(text, path)) is None


@pytest.mark.parametrize("name", TRAINING)
def test_a_config_is_recognised_in_any_order_of_keys(name):
    data = yaml.safe_load(TRAINING[name])
    for seed in range(5):
        keys = list(data)
        random.Random(seed).shuffle(keys)
        text = yaml.safe_dump({key: data[key] for key in keys}, sort_keys=False)
        assert may_be_config(text)
        assert recognise(document_of(text)).name == name


def test_a_comment_decides_over_the_content():
    text = "# memlint: dialect=hf-trainer\n" + TRAINING["trl"]
    assert recognise(document_of(text)).name == "hf-trainer"
    assert forced_name(document_of(text)) == "hf-trainer"
    unknown = "# memlint: dialect=axolotle\n" + TRAINING["trl"]
    assert recognise(document_of(unknown)).name == "trl"
    assert by_name(forced_name(document_of(unknown))) is None


def test_the_cheap_gate_states_what_each_dialect_states():
    for dialect in DIALECTS:
        assert set(dialect.markers) >= set(dialect.load().markers), dialect.name
        assert dialect.load().name == dialect.name
        assert dialect.title
        assert dialect.version[0].isdigit()
        assert all(suffix.startswith(".") for suffix in dialect.suffixes)


def test_recognising_one_dialect_imports_no_other_and_nothing_slow():
    code = f"""
import sys
from memlint.document.load import load_documents
from memlint.dialects.registry import recognise
dialect = recognise(load_documents({TRAINING["axolotl"]!r}, "a.yaml")[0])
assert dialect.name == "axolotl"
loaded = set(sys.modules)
slow = {{"torch", "transformers", "jsonschema", "difflib", "logging", "pathlib", "importlib.metadata", "tempfile"}}
assert not slow & loaded, slow & loaded
others = {{f"memlint.dialects.{{n}}" for n in ("trl", "hf_trainer", "native", "accelerate", "llamafactory")}}
assert not others & loaded, others & loaded
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
