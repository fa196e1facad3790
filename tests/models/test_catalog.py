"""The bundled catalog: facts with a source each, readable, and found without parsing it whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.generate.catalog import WRONG
from memlint.estimate.simulate import count_parameters
from memlint.models import catalog
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

ROWS = catalog.rows()
SHARED = Path(__file__).parents[3] / "shared"


def read(model_id: str) -> Architecture:
    row = catalog.find(model_id)
    assert row is not None, model_id
    found = read_config(row.config, id=row.id, source="catalog")
    assert isinstance(found, Architecture), (model_id, found)
    return found


def test_at_least_150_shapes_and_every_row_states_its_source() -> None:
    assert sum("config" in row for row in ROWS) >= 150
    assert all(row["source"] for row in ROWS)
    assert len({row["id"] for row in ROWS}) == len(ROWS)


def test_every_row_reads() -> None:
    for row in ROWS:
        found = read(row["id"])
        assert found.hidden_size > 0
        assert found.num_hidden_layers > 0


def test_a_mirror_has_the_shape_of_its_original() -> None:
    for row in ROWS:
        if "as" in row and "set" not in row:
            own, original = read(row["id"]), read(row["as"])
            assert (own.hidden_size, own.num_hidden_layers, own.vocab_size, own.model_type) == (
                original.hidden_size,
                original.num_hidden_layers,
                original.vocab_size,
                original.model_type,
            )


@pytest.mark.parametrize(
    ("mirror", "layers", "vocabulary"),
    [
        ("NousResearch/Llama-2-7b-hf", 32, 32000),
        ("meta-llama/Llama-2-7b-hf", 32, 32000),
        ("huggyllama/llama-7b", 32, 32000),
        ("unsloth/Meta-Llama-3.1-8B", 32, 128256),
        ("teknium/OpenHermes-2.5-Mistral-7B", 32, 32002),
        ("bert-base-uncased", 12, 30522),
        ("gpt2", 12, 50257),
        ("google/gemma-3-4b-it", 34, 262208),
    ],
)
def test_well_known_names(mirror: str, layers: int, vocabulary: int) -> None:
    found = read(mirror)
    assert (found.num_hidden_layers, found.vocab_size) == (layers, vocabulary)


def test_a_quantised_mirror_says_so() -> None:
    found = read("unsloth/Meta-Llama-3.1-8B-bnb-4bit")
    assert found.quantization is not None
    assert found.quantization["bnb_4bit_quant_type"] == "nf4"
    assert read("unsloth/Meta-Llama-3.1-8B").quantization is None


def test_dbrx_has_the_parameters_that_its_publisher_names() -> None:
    assert count_parameters(read("databricks/dbrx-base")) == 131_596_523_520


def test_case_does_not_matter_but_the_exact_name_wins() -> None:
    row = catalog.find("META-LLAMA/llama-3.2-1b")
    assert row is not None
    assert row.id == "meta-llama/Llama-3.2-1B"


@pytest.mark.parametrize("name", ["", '"', "\n", 'x","config":{', "\\", "Qwen/Qwen3-8B\n", '{"id":"'])
def test_a_hostile_name_is_not_found(name: str) -> None:
    assert catalog.find(name) is None


def test_the_file_stays_small_and_sorted() -> None:
    path = Path(catalog.__file__).with_name("catalog.jsonl")
    assert path.stat().st_size < 300_000
    ids = [row["id"] for row in ROWS]
    assert ids == sorted(ids, key=str.lower)


@pytest.mark.corpus
def test_the_catalog_agrees_with_published_configs() -> None:
    folder = SHARED / "model-configs"
    if not folder.is_dir():
        pytest.skip("the collected configs are not beside the checkout")
    for path in sorted(folder.glob("*.json")):
        model_id = path.stem.replace("__", "/")
        if model_id in WRONG:
            continue
        full = read_config(json.loads(path.read_text()), id=model_id, source="catalog")
        assert isinstance(full, Architecture), (model_id, full)
        trimmed = read(model_id)
        assert (trimmed.model_type, trimmed.family) == (full.model_type, full.family), model_id
        assert full.dtype in (trimmed.dtype, None), model_id
        sizes = ("hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings", "max_position_embeddings")
        assert [getattr(trimmed, n) for n in sizes] == [getattr(full, n) for n in sizes], model_id
        for name, value in trimmed.config.items():
            if isinstance(value, (int, str)) and name in full.config and name != "use_cache":
                assert full.config[name] == value, (model_id, name)
