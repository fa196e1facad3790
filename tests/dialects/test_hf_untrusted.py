"""Whatever a config holds, reading it gives jobs, problems or a reason, never an exception."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_support import Beside, document_of

from memlint.dialects.native import to_native
from memlint.dialects.registry import by_name, recognise
from memlint.resources import schema_text

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.sampled_from(
        [
            "auto",
            "bf16",
            "FULL_SHARD",
            "full_shard auto_wrap",
            "zero3.json",
            "all-linear",
            "paged_adamw_8bit",
            "{",
            "{}",
            "3",
        ]
    ),
    st.lists(st.one_of(st.none(), st.text(max_size=4), st.integers()), max_size=3),
    st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
)


def mapping_for(schema):
    """Mappings with the schema's keys and any value; nested mappings with their own keys."""
    optional = {}
    for key, spec in schema["properties"].items():
        optional[key] = st.one_of(ODD, mapping_for(spec)) if "properties" in spec else ODD
    return st.fixed_dictionaries({}, optional=optional)


def schema(name):
    return json.loads(schema_text(f"dialects/{name}"))


BASES = {
    "trl": {"model_name_or_path": "acme/m", "dataset_name": "a", "output_dir": "o", "use_peft": True},
    "hf-trainer": {
        "model_name_or_path": "acme/m",
        "output_dir": "o",
        "num_train_epochs": 1,
        "per_device_train_batch_size": 1,
    },
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "accelerate": {"distributed_type": "DEEPSPEED"},
}


@pytest.mark.parametrize("name", BASES)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_odd_values_never_raise(name, data):
    drawn = data.draw(mapping_for(schema(name)))
    content = {**BASES[name], **drawn}
    document = document_of("x: 1", "config.yaml")
    document.data = content
    recognise(document)
    reading = by_name(name).read(document, Beside("/nonexistent", gpus=8))
    assert reading.jobs or reading.skipped or reading.problems
    for job in reading.jobs:
        assert job.training.micro_batch_size >= 1
        assert job.training.sequence_length >= 1
        assert isinstance(job.training.precision.weights, str)
        json.dumps(to_native(job))
    for problem in reading.problems:
        assert "\n" not in problem.message
        assert len(problem.message) < 400


@pytest.mark.parametrize("name", BASES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_deepspeed_mapping_inside_a_recipe_never_raises(name, data):
    if name in ("deepspeed", "accelerate"):
        inner = {"deepspeed_config": {"deepspeed_config_file": data.draw(ODD)}}
        content = {**BASES["accelerate"], **inner}
        name = "accelerate"
    else:
        content = {**BASES[name], "deepspeed": data.draw(mapping_for(schema("deepspeed")))}
    document = document_of("x: 1", "config.yaml")
    document.data = content
    reading = by_name(name).read(document, Beside("/nonexistent"))
    assert reading.jobs or reading.skipped or reading.problems
