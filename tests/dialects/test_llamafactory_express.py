"""LLaMA-Factory: every change that is written reads back as asked."""

from __future__ import annotations

import pytest
from dialect_reading import Files, document, fixture

from memlint.dialects.llamafactory import LLAMAFACTORY
from memlint.dialects.promises import apply_edits, lookup

FIXTURES = ["lora_sft", "full_zero3", "qlora_dpo", "freeze", "megatron", "v1_lora", "asft"]
CHANGES = {
    "checkpointing": {"training.checkpointing.mode": "full"},
    "no checkpointing": {"training.checkpointing.mode": "none"},
    "offloaded checkpoints": {"training.checkpointing.mode": "offload"},
    "8-bit": {"training.optimizer": "paged-adamw-8bit"},
    "batch": {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 32},
    "sequence": {"training.sequence_length": 256},
    "flash": {"training.attention": "flash"},
    "loss": {"training.loss": "fused"},
    "lora": {"training.method": "lora", "training.lora.rank": 4},
    "qlora": {"training.method": "qlora"},
    "full": {"training.method": "full"},
    "zero1": {"parallelism.strategy": "zero1"},
    "zero2": {"parallelism.strategy": "zero2"},
    "zero2 offload": {"parallelism.strategy": "zero2", "parallelism.offload": "optimizer"},
    "zero3": {"parallelism.strategy": "zero3"},
    "zero3 offload": {"parallelism.strategy": "zero3", "parallelism.offload": "all"},
    "fsdp": {"parallelism.strategy": "fsdp"},
    "fsdp offload": {"parallelism.strategy": "fsdp", "parallelism.offload": "all"},
    "half": {"training.precision.autocast": "bf16"},
    "pure": {"training.precision.trainable_weights": None},
}
BASE = "model_name_or_path: m/m\nfinetuning_type: full\ndo_train: true\ndataset: d\nlearning_rate: 1e-5\nbf16: true\n"


def change(doc, changes):
    job = LLAMAFACTORY.read(doc, Files()).jobs[0]
    edits = LLAMAFACTORY.express(changes, doc, job)
    if edits is None:
        return None
    edited = document("", doc.path)
    edited.data = apply_edits(doc.mapping, edits)
    return edited, LLAMAFACTORY.read(edited, Files())


def express(text, changes):
    doc = document(text)
    return LLAMAFACTORY.express(changes, doc, LLAMAFACTORY.read(doc, Files()).jobs[0])


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("what", CHANGES)
def test_a_written_change_reads_back_as_asked(name, what):
    result = change(fixture("llamafactory", f"{name}.yaml"), CHANGES[what])
    if result is not None:
        edited, reading = result
        assert LLAMAFACTORY.recognise(edited)
        for field, value in CHANGES[what].items():
            assert lookup(reading.jobs[0], field) == value


@pytest.mark.parametrize("what", [w for w in CHANGES if w not in ("half", "full", "checkpointing")])
def test_a_plain_full_fine_tune_can_be_changed_in_every_way(what):
    assert change(document(BASE), CHANGES[what]) is not None


@pytest.mark.parametrize(
    "what", ["no checkpointing", "batch", "sequence", "flash", "lora", "full", "zero2", "zero3 offload", "fsdp"]
)
def test_the_v1_form_can_be_changed_too(what):
    assert change(fixture("llamafactory", "v1_lora.yaml"), CHANGES[what]) is not None


def test_checkpointing_is_switched_on_by_removing_what_switched_it_off():
    edits = express(BASE + "disable_gradient_checkpointing: true\n", {"training.checkpointing.mode": "full"})
    assert [(edit.path, edit.delete) for edit in edits] == [(("disable_gradient_checkpointing",), True)]


def test_a_job_on_fsdp2_gets_the_word_offload_and_keeps_its_settings():
    sharded = BASE + "fsdp: full_shard auto_wrap\nfsdp_config: {version: 2, cpu_ram_efficient_loading: true}\n"
    doc = document(sharded)
    job = LLAMAFACTORY.read(doc, Files()).jobs[0]
    edits = LLAMAFACTORY.express({"parallelism.strategy": "fsdp", "parallelism.offload": "all"}, doc, job)
    assert {edit.path: edit.value for edit in edits} == {("fsdp",): "full_shard auto_wrap offload"}


def test_experts_come_back_to_the_gpu_by_switching_ktransformers_off():
    kt = BASE.replace("full", "lora") + "use_kt: true\n"
    assert {e.path: e.value for e in express(kt, {"parallelism.offload": "none"})} == {("use_kt",): False}
    assert not express(kt, {"parallelism.offload": "optimizer"})


def test_megatron_recomputes_by_its_own_keys():
    edits = {e.path: e.value for e in express(BASE + "tensor_model_parallel_size: 2\n", CHANGES["checkpointing"])}
    assert edits[("recompute_granularity",)] == "full"


def test_what_llamafactory_refuses_is_not_offered():
    assert express(BASE + "use_galore: true\n", {"parallelism.strategy": "zero2"}) is None
    assert express(BASE + "stage: dpo\n", {"training.loss": "fused"}) is None
    assert express(BASE + "tensor_model_parallel_size: 2\n", {"training.loss": "fused"}) is None


def test_pure_bf16_is_what_half_precision_trainable_weights_are_written_as():
    edits = {edit.path: edit.value for edit in express(BASE, {"training.precision.trainable_weights": None})}
    assert edits == {("pure_bf16",): True}
