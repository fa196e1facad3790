"""The published schemas of axolotl and LLaMA-Factory say what the readers do."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

import pytest
from dialect_reading import CORPUS, ROOT, Files, corpus_documents, document, fixture

from memlint.dialects import axolotl, axolotl_keys, llamafactory, llamafactory_keys, llamafactory_v0, llamafactory_v1
from memlint.dialects.promises import lookup
from memlint.job import _NESTED, TrainingJob

jsonschema = pytest.importorskip("jsonschema")

NAMES = ("axolotl", "llamafactory")
MINIMAL = {
    "axolotl": "base_model: m\ndatasets: [{path: p}]\nval_set_size: 0\nadapter: lora\nlora_target_linear: true\n",
    "llamafactory": "model_name_or_path: m\nfinetuning_type: lora\ndo_train: true\nlearning_rate: 1e-4\n",
}
DIALECTS = {"axolotl": axolotl.AXOLOTL, "llamafactory": llamafactory.LLAMAFACTORY}
SAME_VALUE = {
    "training.micro_batch_size",
    "training.gradient_accumulation_steps",
    "training.sequence_length",
    "training.max_grad_norm",
    "training.lora.dropout",
    "training.lora.rank",
    "training.packing",
}
"""Fields whose native value is the key's own value, so that schema default and reading can be compared."""


def schema(name):
    return json.loads((ROOT / "schemas" / "dialects" / f"{name}.schema.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_key_feeds_a_field_that_exists(name):
    for key, part in schema(name)["properties"].items():
        owner, _, field = part["x-job-field"].rpartition(".")
        kind = _NESTED[owner] if owner else TrainingJob
        assert is_dataclass(kind)
        assert field in {f.name for f in fields(kind)}, key


def test_every_key_is_one_that_the_framework_knows():
    assert schema("axolotl")["properties"].keys() <= axolotl_keys.KNOWN
    assert schema("llamafactory")["properties"].keys() <= llamafactory_keys.KNOWN | {"model", "model_class"}


def test_near_misses_are_looked_for_among_keys_of_the_schema():
    assert set(axolotl.RELEVANT) <= schema("axolotl")["properties"].keys()
    assert {*llamafactory_v0.RELEVANT, *llamafactory_v1.RELEVANT} <= schema("llamafactory")["properties"].keys()


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_the_reader(name):
    job = DIALECTS[name].read(document(MINIMAL[name]), Files()).jobs[0]
    compared = 0
    for key, part in schema(name)["properties"].items():
        stated = key in document(MINIMAL[name]).mapping
        if "default" in part and part["x-job-field"] in SAME_VALUE and not stated and not key.startswith("oft"):
            assert lookup(job, part["x-job-field"]) == part["default"], key
            compared += 1
    assert compared >= 5


@pytest.mark.parametrize("name", NAMES)
def test_fixtures_without_mistakes_are_valid(name):
    validator = jsonschema.Draft202012Validator(schema(name))
    for path in sorted((ROOT / "fixtures" / "dialects" / name).glob("*.yaml")):
        if path.stem != "mistakes":
            assert list(validator.iter_errors(fixture(name, path.name).data)) == [], path.name


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.exists(), reason="shared corpus is not beside the checkout")
@pytest.mark.parametrize("name", NAMES)
def test_real_files_are_valid(name):
    validator = jsonschema.Draft202012Validator(schema(name))
    for doc in corpus_documents(name):
        assert [error.message for error in validator.iter_errors(doc.data)] == [], doc.path
