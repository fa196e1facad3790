"""A change written in a dialect's keys gives that change when the file is read again."""

import pytest
from reading_support import Beside, document_of, field_of

from memlint.dialects.promises import apply_edits
from memlint.dialects.registry import by_name, recognise
from memlint.document.model import Document

TRL = """\
model_name_or_path: acme/m
dataset_name: acme/chats
output_dir: out
per_device_train_batch_size: 4
"""
TRL_QLORA = TRL + "use_peft: true\nload_in_4bit: true\nlora_target_modules: [q_proj]\n"
TRL_DPO = TRL + "beta: 0.1\nmax_prompt_length: 256\nmax_length: 1024\n"
TRL_ZERO = TRL + "deepspeed: {zero_optimization: {stage: 1}}\n"
TRL_SHIPPED = TRL + "accelerate_config: zero2\n"
HF = """\
model_name_or_path: acme/m
output_dir: out
per_device_train_batch_size: 4
num_train_epochs: 1
our_own_key: 1
"""
HF_NESTED = (
    "model: {name: acme/m}\ntraining_args: {output_dir: out, per_device_train_batch_size: 4, num_train_epochs: 1}\n"
)
HF_FSDP = HF + "fsdp: true\nfsdp_config: {version: 2}\n"
HF_FP16 = HF + "fp16: true\n"

WRITABLE = [
    *[
        (text, changes)
        for text in (TRL, TRL_QLORA, TRL_DPO, TRL_ZERO, TRL_SHIPPED, HF, HF_NESTED, HF_FP16)
        for changes in (
            {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 4},
            {"training.precision.autocast": "bf16", "training.precision.grad_scaler": False},
            {"training.optimizer": "paged-adamw-8bit"},
            {"training.checkpointing.mode": "full"},
            {"training.checkpointing.mode": "none"},
            {"training.max_grad_norm": None},
            {"parallelism.strategy": "zero2"},
            {"parallelism.strategy": "zero3", "parallelism.offload": "all"},
        )
        # DeepSpeed computes in the dtype it holds: autocast is not its way.
        if not (text in (TRL_ZERO, TRL_SHIPPED) and "training.precision.autocast" in changes)
    ],
    *[
        (text, changes)
        for text in (TRL, TRL_DPO)
        for changes in (
            {"training.attention": "flash"},
            {"training.precision.weights": "bf16"},
            {"training.sequence_length": 512},
            {"training.method": "lora"},
            {"training.method": "qlora"},
            {"training.method": "lora", "training.lora.rank": 8, "training.lora.targets": ("q_proj", "v_proj")},
            {"parallelism.strategy": "fsdp"},
        )
    ],
    (TRL_QLORA, {"training.method": "lora"}),
    (TRL_QLORA, {"training.method": "full"}),
    (TRL_QLORA, {"training.lora.rank": 4, "training.quantization.double_quant": True}),
    (TRL_DPO, {"training.reference_model": "precomputed"}),
    (TRL_SHIPPED, {"parallelism.strategy": "fsdp"}),
    (HF, {"training.loss": "fused"}),
    (HF, {"parallelism.strategy": "fsdp"}),
    (HF_FSDP, {"parallelism.offload": "all"}),
    (HF_FSDP, {"training.checkpointing.mode": "full"}),
]


@pytest.mark.parametrize(("text", "changes"), WRITABLE)
def test_what_is_written_is_read_again(text, changes):
    document = document_of(text)
    dialect = recognise(document)
    job = dialect.read(document, Beside(gpus=8)).jobs[0]
    edits = dialect.express(changes, document, job)
    assert edits
    edited = Document(path="config.yaml", text=text, format="yaml", data=apply_edits(document.data, edits))
    assert recognise(edited) is dialect
    reading = dialect.read(edited, Beside(gpus=8))
    assert {name: field_of(reading.jobs[0], name) for name in changes if not name.endswith("grad_scaler")} == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in changes.items()
        if not name.endswith("grad_scaler")
    }
    assert reading.problems == ()


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (HF, {"training.method": "lora"}),
        (HF, {"training.attention": "flash"}),
        (HF, {"training.sequence_length": 512}),
        (HF_FSDP, {"parallelism.strategy": "zero3"}),
        (TRL, {"training.loss": "fused"}),
        (TRL, {"training.optimizer": "nonsense"}),
        (TRL + "num_generations: 4\n", {"training.sequence_length": 512}),
        (TRL, {"parallelism.pipeline": 2}),
    ],
)
def test_what_has_no_key_is_not_written(text, changes):
    document = document_of(text)
    dialect = recognise(document)
    job = dialect.read(document, Beside(gpus=8)).jobs[0]
    assert dialect.express(changes, document, job) is None


def test_sharding_in_a_file_of_the_users_own_is_changed_there(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "launch.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 2}\n"
    )
    for name, stage, offload in (
        ("deepspeed: ds.json", ("zero_optimization", "stage"), ("zero_optimization", "offload_optimizer")),
        (
            "accelerate_config: launch.yaml",
            ("deepspeed_config", "zero_stage"),
            ("deepspeed_config", "offload_optimizer_device"),
        ),
    ):
        document = document_of(f"{TRL}{name}\n")
        dialect = by_name("trl")
        job = dialect.read(document, Beside(str(tmp_path))).jobs[0]
        assert job.parallelism.strategy == "zero2"
        file = name.split()[1]
        edits = dialect.express({"parallelism.strategy": "zero3"}, document, job)
        assert [(edit.file, edit.path, edit.value) for edit in edits] == [(file, stage, 3)]
        edits = dialect.express({"parallelism.offload": "all"}, document, job)
        assert (edits[0].file, edits[0].path) == (file, offload)


@pytest.mark.parametrize(
    ("name", "text", "changes", "path", "value"),
    [
        ("deepspeed", '{"zero_optimization": {"stage": 1}}', {"parallelism.strategy": "zero3"},
         ("zero_optimization", "stage"), 3),
        ("deepspeed", '{"zero_optimization": {"stage": 3}}', {"parallelism.reduce_bucket_elements": 50000000},
         ("zero_optimization", "reduce_bucket_size"), 50000000),
        ("accelerate", "distributed_type: FSDP\n", {"training.checkpointing.mode": "full"},
         ("fsdp_config", "fsdp_activation_checkpointing"), True),
        ("accelerate", "distributed_type: MULTI_GPU\n", {"training.precision.autocast": "bf16"},
         ("mixed_precision",), "bf16"),
    ],
)  # fmt: skip
def test_companions_write_what_is_theirs(name, text, changes, path, value):
    document = document_of(text)
    edits = by_name(name).express(changes, document, None)
    assert [(edit.path, edit.value) for edit in edits] == [(path, value)]
    assert by_name(name).express({"training.micro_batch_size": 1}, document, None) is None
