"""Remedies of DeepSpeed's buffers: written where each dialect keeps its DeepSpeed config, kept by the edited file."""

from __future__ import annotations

import json

import pytest

from memlint.document.edit import apply_edits
from memlint.document.load import load_documents
from memlint.engine.predict import predict
from memlint.engine.source import open_source
from memlint.plan.question import from_source
from memlint.plan.space import Setting, remedy_space

MODEL = "meta-llama/Llama-3.1-8B"
ZERO = {
    "stage": 3,
    "reduce_bucket_size": 5e8,
    "max_live_parameters": 1e9,
    "stage3_param_persistence_threshold": 1_000_000,
}
DEEPSPEED = {
    "bf16": {"enabled": True},
    "zero_optimization": ZERO,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
INLINE = json.dumps(DEEPSPEED)
BUFFERS = ("buckets", "gathering", "persistence", "sub-group")

AXOLOTL = f"""\
base_model: {MODEL}   # the model
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
learning_rate: 1e-5
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
deepspeed: """
FACTORY = f"""\
model_name_or_path: {MODEL}
stage: sft
finetuning_type: full
dataset: alpaca_en_demo
template: llama3
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
learning_rate: 1.0e-5
bf16: true
output_dir: out  # here
deepspeed: """
TRL = f"""\
model_name_or_path: {MODEL}
dataset_name: trl-lib/Capybara
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
max_length: 2048
bf16: true
gradient_checkpointing: true
output_dir: out
deepspeed: """
CASES = {
    "axolotl file": (AXOLOTL + "ds.json\n", "ds.json"),
    "axolotl inline": (AXOLOTL + INLINE + "\n", None),
    "LLaMA-Factory file": (FACTORY + "ds.json\n", "ds.json"),
    "TRL file": (TRL + "ds.json\n", "ds.json"),
    "TRL inline": (TRL + INLINE + "\n", None),
}


def asked_of(path):
    source = open_source(str(path), target="4xA100-40GB", offline=True, isolated=True)
    estimate, _ = predict(source.job, source.target)
    return source, from_source(source, estimate, hypothetical=False)


def buffer_remedies(source, question):
    setting = Setting(job=source.job, target=source.target, gpus=4, parameters=question.estimate.parameters)
    return [remedy for one in remedy_space(setting) if one.name in BUFFERS for remedy in one.remedies]


@pytest.mark.parametrize(("text", "companion"), CASES.values(), ids=CASES)
def test_each_is_written_where_the_deepspeed_config_is_and_keeps_its_promise(text, companion, tmp_path):
    (tmp_path / ".git").mkdir()
    path = tmp_path / "train.yaml"
    path.write_text(text)
    if companion:
        (tmp_path / companion).write_text(json.dumps(DEEPSPEED, indent=2))
    source, question = asked_of(path)
    remedies = buffer_remedies(source, question)
    assert [remedy.name for remedy in remedies] == [
        "reduce-bucket",
        "gathered-parameters",
        "no-prefetch",
        "persistence-threshold",
        "sub-group",
    ]
    for remedy in remedies:
        trial = question.try_changes(remedy.changes)
        assert trial is not None and trial.edits, remedy.name
        changed = tmp_path / companion if companion else path
        assert {edit.file is None for edit in trial.edits} == {companion is None}
        before = changed.read_text()
        document = load_documents(before.encode(), str(changed), hjson=True)[0]
        changed.write_text(apply_edits(document, trial.edits))
        _, after = asked_of(path)
        assert after.estimate.device_bytes == trial.estimate.device_bytes, remedy.name
        assert after.estimate.device_bytes <= question.estimate.device_bytes
        zero = json.loads(changed.read_text())["zero_optimization"] if companion else None
        if remedy.name == "gathered-parameters" and zero is not None:
            assert zero["max_live_parameters"] == 100_000_000 and "stage3_max_live_parameters" not in zero
        changed.write_text(before)


def test_a_file_that_is_not_there_is_not_replaced_by_a_mapping(tmp_path):
    (tmp_path / ".git").mkdir()
    path = tmp_path / "train.yaml"
    path.write_text(TRL + "elsewhere/zero3.json\n")
    source, question = asked_of(path)
    for remedy in buffer_remedies(source, question):
        assert not question.writable(remedy.changes), remedy.name
