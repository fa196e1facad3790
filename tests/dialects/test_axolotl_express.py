"""axolotl: every change that is written reads back as asked."""

from __future__ import annotations

import pytest
from dialect_reading import Files, document, fixture

from memlint.dialects.axolotl import AXOLOTL
from memlint.dialects.promises import EQUIVALENT, apply_edits, lookup

FIXTURES = ["full", "qlora", "fsdp2", "zero3", "dpo", "grpo"]
CHANGES = {
    "checkpointing": {"training.checkpointing.mode": "full"},
    "no checkpointing": {"training.checkpointing.mode": "none"},
    "offloaded checkpoints": {"training.checkpointing.mode": "offload"},
    "8-bit": {"training.optimizer": "adamw-8bit"},
    "adafactor": {"training.optimizer": "adafactor"},
    "batch": {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 32},
    "sequence": {"training.sequence_length": 256},
    "flash": {"training.attention": "flash"},
    "loss": {"training.loss": "fused"},
    "lora": {"training.method": "lora", "training.lora.rank": 8},
    "qlora": {"training.method": "qlora", "training.quantization.double_quant": True},
    "zero1": {"parallelism.strategy": "zero1"},
    "zero2": {"parallelism.strategy": "zero2"},
    "zero2 offload": {"parallelism.strategy": "zero2", "parallelism.offload": "optimizer"},
    "zero3": {"parallelism.strategy": "zero3"},
    "zero3 offload": {"parallelism.strategy": "zero3", "parallelism.offload": "all"},
    "fsdp": {"parallelism.strategy": "fsdp"},
    "fsdp offload": {"parallelism.strategy": "fsdp", "parallelism.offload": "all"},
    "half": {"training.precision.autocast": "bf16"},
}


def change(doc, changes):
    job = AXOLOTL.read(doc, Files()).jobs[0]
    edits = AXOLOTL.express(changes, doc, job)
    if edits is None:
        return None
    edited = document("", doc.path)
    edited.data = apply_edits(doc.mapping, edits)
    return edited, AXOLOTL.read(edited, Files())


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("what", CHANGES)
def test_a_written_change_reads_back_as_asked(name, what):
    result = change(fixture("axolotl", f"{name}.yaml"), CHANGES[what])
    if result is not None:
        edited, reading = result
        assert AXOLOTL.recognise(edited)
        for field, value in CHANGES[what].items():
            found = lookup(reading.jobs[0], field)
            assert found == value or found in EQUIVALENT.get(str(value), ())


@pytest.mark.parametrize("what", [w for w in CHANGES if w not in ("half", "no checkpointing")])
def test_a_plain_full_fine_tune_can_be_changed_in_every_way(what):
    assert change(fixture("axolotl", "full.yaml"), CHANGES[what]) is not None


def express(text, changes):
    doc = document(text)
    return AXOLOTL.express(changes, doc, AXOLOTL.read(doc, Files()).jobs[0])


BASE = "base_model: m/m\ndatasets: [{path: p, type: alpaca}]\nlearning_rate: 1e-5\n"


def test_checkpointing_is_written_without_reentrance():
    edits = {edit.path: edit.value for edit in express(BASE, {"training.checkpointing.mode": "full"})}
    assert edits == {
        ("gradient_checkpointing",): True,
        ("gradient_checkpointing_kwargs",): {"use_reentrant": False},
    }


def test_a_fused_loss_prefers_the_plugin_that_is_already_listed():
    listed = BASE + "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
    assert [edit.path for edit in express(listed, {"training.loss": "fused"})] == [
        ("liger_fused_linear_cross_entropy",)
    ]
    added = {edit.path: edit.value for edit in express(BASE, {"training.loss": "fused"})}
    assert added[("plugins",)] == ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]


def test_cut_cross_entropy_is_not_offered_in_fp32():
    assert express(BASE + "bf16: false\n", {"training.loss": "fused"}) is None


def test_half_precision_is_written_from_fp32():
    edits = {edit.path: edit.value for edit in express(BASE + "bf16: false\n", {"training.precision.autocast": "bf16"})}
    assert edits == {("bf16",): True}


def test_a_full_fine_tune_cannot_be_autocast_over_fp32_weights():
    wanted = {"training.precision.autocast": "bf16", "training.precision.weights": "fp32"}
    assert express(BASE + "bf16: false\n", wanted) is None


def test_fsdp_takes_the_8_bit_optimizer_that_works_with_it():
    edits = express(BASE + "optimizer: adamw_bnb_8bit\n", {"parallelism.strategy": "fsdp"})
    assert ("optimizer",) in {edit.path for edit in edits}


def test_a_job_on_fsdp2_changes_its_own_keys_alone():
    sharded = BASE + (
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\n  state_dict_type: FULL_STATE_DICT\n"
        "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n"
    )
    edits = express(sharded, {"parallelism.strategy": "fsdp", "parallelism.offload": "all"})
    assert {edit.path: edit.value for edit in edits} == {("fsdp_config", "fsdp_offload_params"): True}


def test_fsdp2_in_place_of_fsdp1_saves_what_was_saved_before():
    sharded = BASE + (
        "fsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_offload_params: false\n"
        "  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_cpu_ram_efficient_loading: true\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    )
    edits = {edit.path: edit.value for edit in express(sharded, {"parallelism.strategy": "fsdp"})}
    assert edits[("fsdp_config",)]["state_dict_type"] == "FULL_STATE_DICT"
    assert edits[("fsdp_config",)]["cpu_ram_efficient_loading"] is True


def test_what_axolotl_refuses_is_not_offered():
    sharded = BASE + "fsdp_version: 1\nfsdp_config: {offload_params: true}\n"
    assert express(sharded, {"training.optimizer": "adamw-8bit"}) is None
    assert express(BASE + "rl: kto\n", {"training.loss": "fused"}) is None
    assert express(BASE, {"training.optimizer": "no-such-optimizer"}) is None


def test_a_fused_loss_of_preferences_has_keys_of_its_own():
    for rl, key in (("dpo", ("dpo_use_liger_kernel",)), ("grpo", ("trl", "use_liger_loss"))):
        edits = express(BASE + f"rl: {rl}\ntrl: {{num_generations: 4}}\n", {"training.loss": "fused"})
        assert [(edit.path, edit.value) for edit in edits] == [(key, True)]


def test_a_consequence_may_be_asked_for_together_with_its_cause():
    wanted = {"training.attention": "flash", "training.precision.fp32_modules": ()}
    assert express(BASE, wanted) is not None
    assert express(BASE, {"training.precision.fp32_modules": ()}) is None


@pytest.mark.parametrize("value", ["[1]", "text", "7", "{}", "{activation_checkpointing: [1]}"])
@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_section_of_another_kind_is_no_crash(value, name):
    text = "base_model: m\nnum_epochs: 1\nmicro_batch_size: 1\nsequence_len: 8\n"
    for key in ("fsdp_config", "plugins", "deepspeed", "gradient_checkpointing_kwargs"):
        change(document(f"{text}{key}: {value}\n"), CHANGES[name])
