"""The native job file: its gate and its schema are one, it can be written and read back, and --set changes any job."""

import json
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from reading_support import document_of, field_of, read_text

from memlint.dialects.native import NATIVE, apply_sets, to_native
from memlint.dialects.native_fields import NESTED, SECTIONS, SHORT
from memlint.dialects.native_gate import accepts
from memlint.dialects.native_schema import job_schema
from memlint.dialects.native_write import express_native
from memlint.errors import UserError
from memlint.job import Checkpointing, Lora, Parallelism, Precision, Quantization, Training, TrainingJob
from memlint.resources import schema_text

VALIDATOR = Draft202012Validator(job_schema())


def test_the_shipped_schema_is_the_one_made_from_the_table():
    Draft202012Validator.check_schema(job_schema())
    assert json.loads(schema_text("job")) == job_schema()


def test_every_field_of_the_job_has_a_key():
    job_fields = {
        "training": Training,
        "training.lora": Lora,
        "training.quantization": Quantization,
        "training.precision": Precision,
        "training.activation_checkpointing": Checkpointing,
        "parallelism": Parallelism,
    }
    for section, kind in job_fields.items():
        names = set(kind.__dataclass_fields__)
        if section == "training":
            names -= {"lora", "quantization", "precision", "checkpointing"}
        assert names == set(SECTIONS[section]), section


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2_000_000),
    st.sampled_from([0.5, 1.0, 2.5, -1e30]),
    st.sampled_from(["", "bf16", "bf16-mixed", "full", "nf4", "adamw", "sdpa", "x", "auto", "2e-5"]),
    st.lists(st.sampled_from(["q_proj", 1, None]), max_size=2),
    st.dictionaries(st.sampled_from(["rank", "every", "weights", "bits", "z"]), st.integers(-1, 9), max_size=2),
)


def section_strategy(name):
    keys = [*SECTIONS[name], "nonsense", *(NESTED if name == "training" else ())]
    return st.dictionaries(st.sampled_from(keys), VALUES, max_size=3)


@settings(max_examples=600, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "memlint": st.sampled_from([1, 1.0, 2, True, "1", None]),
            "model": st.sampled_from(["acme/m", "", {}, {"model_type": "llama"}, None, 3]),
            "training": st.one_of(section_strategy("training"), VALUES),
            "parallelism": section_strategy("parallelism"),
            "hardware": section_strategy("hardware"),
            "versions": st.sampled_from([{}, {"torch": "2.7"}, {"torch": 2.7}, [], None]),
            "nonsense": st.just(1),
        },
    )
)
def test_the_gate_accepts_exactly_what_the_schema_accepts(data):
    assert accepts(data) == VALIDATOR.is_valid(data)


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "training"])
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_gate_agrees_with_the_schema_inside_each_section(section, data):
    inner = data.draw(section_strategy(section))
    head, _, tail = section.partition(".")
    document = {"memlint": 1, "model": "acme/m", head: {tail: inner} if tail else inner}
    assert accepts(document) == VALIDATOR.is_valid(document)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*SECTIONS["training"], *NESTED, "micro_batch"]), VALUES, max_size=3))
def test_a_refused_file_is_explained_in_a_sentence_on_a_key(training):
    document = {"memlint": 1, "model": "acme/m", "training": training}
    text = json.dumps(document)
    reading = NATIVE.read(document_of(text, "job.json"), _Context())
    if not accepts(document):
        assert any(problem.code in ("MEM002", "MEM003") for problem in reading.problems)
        for problem in reading.problems:
            assert problem.key[0] == "training"
            assert "\n" not in problem.message


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_a_number_that_is_none_is_a_problem(value):
    reading = read_text(f"memlint: 1\nmodel: acme/m\ntraining: {{method: lora, lora: {{alpha: {value}}}}}\n")
    assert not reading.jobs
    assert [(problem.code, problem.key) for problem in reading.problems] == [("MEM003", ("training", "lora", "alpha"))]


def test_a_job_written_as_native_reads_back_as_the_same_job():
    text = """
memlint: 1
model: acme/m
training:
  method: qlora
  lora: {rank: 4, targets: [q_proj], modules_to_save: [lm_head]}
  precision: {weights: bf16, autocast: bf16, master_weights: true, fp32_modules: [norm]}
  activation_checkpointing: offload
  optimizer: paged-adamw-8bit
parallelism: {strategy: hsdp, shard: 8, gpus: 16}
hardware: {target: 2x8xH100-80GB}
"""
    job = read_text(text).jobs[0]
    written = to_native(job)
    assert accepts(written)
    again = read_text(json.dumps(written), "job.json").jobs[0]
    assert replace(again, origins={}, assumptions=()) == replace(job, origins={}, assumptions=())


@pytest.mark.parametrize(
    ("text", "reentrant"),
    [
        ("offload", True),
        ("{mode: offload, every: 2}", True),
        ("{mode: offload, reentrant: false}", False),
        ("{mode: full, offload: true}", False),
    ],
)
def test_offloaded_checkpoints_have_reentry_unless_the_file_says_otherwise(text, reentrant):
    job = read_text(f"memlint: 1\nmodel: acme/m\ntraining: {{activation_checkpointing: {text}}}\n").jobs[0]
    assert (job.training.checkpointing.offload, job.training.checkpointing.reentrant) == (True, reentrant)


def test_set_changes_fields_of_any_job_and_keeps_the_rest():
    job = read_text("memlint: 1\nmodel: acme/m\ntraining: {sequence_length: 512}\n").jobs[0]
    sets = [
        "training.micro_batch_size=4",
        "training.precision=bf16",
        "training.activation_checkpointing=full",
        "training.activation_checkpointing.every=2",
        "training.method=qlora",
        "training.lora.rank=8",
        "parallelism.strategy=fsdp2",
        "optimizer=adamw-8bit",
        "training.max_grad_norm=null",
        "training.lora.targets=q_proj,v_proj",
        "hardware.target=8xH100-80GB",
    ]
    changed = apply_sets(job, sets)
    expected = {
        "training.micro_batch_size": 4,
        "training.sequence_length": 512,
        "training.precision.weights": "bf16",
        "training.precision.autocast": None,
        "training.checkpointing.mode": "full",
        "training.checkpointing.every": 2,
        "training.method": "qlora",
        "training.lora.rank": 8,
        "training.lora.targets": ["q_proj", "v_proj"],
        "training.quantization.bits": 4,
        "parallelism.strategy": "fsdp",
        "training.optimizer": "adamw-8bit",
        "training.max_grad_norm": None,
        "hardware.target": "8xH100-80GB",
    }
    assert {name: field_of(changed, name) for name in expected} == expected
    assert changed.origin("training.micro_batch_size").default == "--set training.micro_batch_size"
    assert apply_sets(changed, ["training.method=full"]).training.lora is None


def test_set_of_another_model_forgets_the_architecture():
    assert apply_sets(TrainingJob(model="acme/m"), ["model=acme/n"]).model == "acme/n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training.micro_batch_sise=4",
            "there is no field `training.micro_batch_sise`; did you mean `training.micro_batch_size`?",
        ),
        ("batch=4", "there is no field `batch`; `memlint schema job` lists the fields"),
        ("training.micro_batch_size=0", "`training.micro_batch_size=0`: must be a whole number from 1 to 1,000,000"),
        (
            "training.micro_batch_size=two",
            "`training.micro_batch_size=two`: must be a whole number from 1 to 1,000,000",
        ),
        ("training.precision=bf61", "`precision=bf61` is not known; did you mean `bf16`?"),
        (
            "training.optimizer=adamw8bit",
            "`training.optimizer=adamw8bit`: not a known value; did you mean `adamw-8bit`?",
        ),
        ("training.lora=16", "`training.lora` is a section; set one of its fields, for example training.lora.rank=..."),
        ("nonsense", "`nonsense` is no setting; write FIELD=VALUE, for example training.micro_batch_size=4"),
        ("model=", "`model` must not be empty"),
    ],
)
def test_a_bad_set_is_one_sentence(text, message):
    with pytest.raises(UserError) as error:
        apply_sets(TrainingJob(model="acme/m"), [text])
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("before", "changes", "path", "value"),
    [
        ("precision: fp32", {"training.precision.autocast": "bf16"}, ("training", "precision"), "bf16-mixed"),
        ("precision: bf16-mixed", {"training.precision.weights": "bf16"}, ("training", "precision"), None),
        ("method: full", {"training.checkpointing.mode": "full"}, ("training", "activation_checkpointing"), "full"),
        (
            "activation_checkpointing: {every: 2}",
            {"training.checkpointing.mode": "none"},
            ("training", "activation_checkpointing", "mode"),
            "none",
        ),
        ("method: full", {"parallelism.strategy": "zero2"}, ("parallelism", "strategy"), "zero2"),
    ],
)
def test_changes_are_written_in_the_files_own_form(before, changes, path, value):
    document = document_of(f"memlint: 1\nmodel: acme/m\ntraining:\n  {before}\n")
    (edit,) = express_native(changes, document)
    assert edit.path == path
    if value is not None:
        assert edit.value == value
    else:
        assert edit.value == {"weights": "bf16", "autocast": "bf16"}


def test_short_names_cover_what_the_contract_says():
    assert SHORT["precision"] == ("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16")
    assert SHORT["activation_checkpointing"] == ("none", "full", "selective", "offload")


class _Context:
    search_root = "."
    gpus = None
    versions = MappingProxyType({})

    def companion(self, path, *, beside):
        return None


@pytest.mark.parametrize(("word", "objective"), [("ipo", "dpo"), ("simpo", "dpo"), ("rloo", "grpo"), ("cpo", "cpo")])
def test_names_of_losses_that_hold_the_same_are_known(word, objective):
    reading = read_text(f"memlint: 1\nmodel: a/b\ntraining:\n  objective: {word}\n", "job.yaml")
    assert reading.jobs[0].training.objective == objective
    assert not reading.problems
    assert apply_sets(reading.jobs[0], [f"objective={word}"]).training.objective == objective


def test_simpo_never_asks_a_reference_model_and_ipo_does():
    text = "memlint: 1\nmodel: a/b\ntraining:\n  objective: {}\n  reference_model: copy\n"
    simpo, ipo = (read_text(text.format(word), "job.yaml") for word in ("simpo", "ipo"))
    assert simpo.jobs[0].training.reference_model == "none"
    assert [(p.code, p.key) for p in simpo.problems] == [("MEM007", ("training", "reference_model"))]
    assert ipo.jobs[0].training.reference_model == "copy"
    assert not ipo.problems
    assert apply_sets(ipo.jobs[0], ["objective=simpo"]).training.reference_model == "none"
