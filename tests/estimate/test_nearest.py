"""A type that nobody has compared runs as the nearest shape of its fields, in a range that known types have shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.accuracy.grid_models import TYPES
from memlint.engine.predict import predict
from memlint.estimate.errors import Unsupported
from memlint.estimate.nearest import RANGES
from memlint.estimate.simulate import simulate
from memlint.job import Lora, Precision, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.catalog import rows
from memlint.models.config import read_config
from memlint.models.families import FAMILIES, NEAREST, nearest_family
from memlint.records import replace

SETUPS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, checkpointing": {"training.checkpointing.mode": "full"},
    "lora": {"training.method": "lora", "training.lora": Lora()},
}
BRANDNEW: dict[str, Any] = {
    "model_type": "brandnew",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1408,
    "vocab_size": 8192,
    "hidden_act": "silu",
}


def decoders() -> Iterator[tuple[str, Architecture]]:
    """A known decoder of every type, at its own size from the catalog, and small from the grid."""
    first: dict[str, dict[str, Any]] = {}
    for row in rows():
        if "config" in row:
            first.setdefault(row["config"]["model_type"], row["config"])
    small = [(f"small {kind}", {"model_type": kind, **fields}) for kind, fields in TYPES.items()]
    for name, config in [*first.items(), *small]:
        found = read_config(config)
        assert isinstance(found, Architecture), name
        if found.family in ("llama", "gpt2", "moe", "mla") and found.model_type not in NEAREST:
            yield name, found


def taken_as_unknown(known: Architecture) -> Architecture | None:
    """The architecture as it is read when nobody has heard of its type."""
    near = nearest_family(known.config, of_transformers=False)
    if near is None:
        return None
    config = {**known.config, "model_type": "brandnew", "nearest_family": near}
    return replace(known, model_type="brandnew", family="unknown", approximate="not known", config=config)


def job(architecture: Architecture, setup: str = "full", length: int = 2048) -> TrainingJob:
    training = Training(precision=Precision(weights="bf16", autocast=None), sequence_length=length)
    return replace_fields(TrainingJob(model="m", architecture=architecture, training=training), SETUPS[setup])


@pytest.mark.parametrize("setup", SETUPS)
def test_every_known_decoder_lies_in_the_range_of_its_nearest_shape(setup: str) -> None:
    checked = 0
    outside = []
    for name, known in decoders():
        unknown = taken_as_unknown(known)
        if unknown is None:
            continue
        length = 512 if name.startswith("small") else 2048
        try:
            own, near = (simulate(job(a, setup, length)).allocated_bytes for a in (known, unknown))
        except Unsupported:
            continue
        checked += 1
        least, most = RANGES[unknown.get("nearest_family")]
        if not least <= own / near <= most:
            outside.append((name, own / near))
    assert outside == []
    assert checked > 100


def test_the_prediction_says_what_it_is_computed_as() -> None:
    found = read_config(BRANDNEW)
    assert isinstance(found, Architecture)
    estimate, why = predict(job(found), None)
    assert estimate is not None and estimate.method == "simulated"
    assert why is not None and "computed as a plain decoder of its fields" in why
    llama = read_config({**BRANDNEW, "model_type": "llama"})
    assert isinstance(llama, Architecture)
    own, _ = predict(job(llama), None)
    assert own is not None and own.allocated_bytes == estimate.allocated_bytes
    assert estimate.low_bytes < own.low_bytes and estimate.high_bytes > own.high_bytes


@pytest.mark.parametrize(
    ("fields", "of_transformers", "family"),
    [
        pytest.param({}, False, "llama", id="a brand-new type that says nothing"),
        pytest.param({}, True, None, id="a type of transformers that says nothing"),
        pytest.param({"architectures": ["DogeForCausalLM"]}, True, "llama", id="one that says it is a decoder"),
        pytest.param({"architectures": ["NewForMaskedLM"]}, False, None, id="an encoder"),
        pytest.param({"num_experts": 8}, False, "moe", id="experts"),
        pytest.param({"kv_lora_rank": 128}, False, "mla", id="latent attention"),
        pytest.param({"layer_types": ["linear_attention"] * 4}, False, None, id="layers without attention"),
        pytest.param({"layer_types": ["full_attention"] * 4}, False, "llama", id="attention in every layer"),
        pytest.param({"vision_config": {}}, False, None, id="a model that sees"),
        pytest.param({"num_attention_heads": None}, False, None, id="no heads"),
        pytest.param({"is_encoder_decoder": True}, False, None, id="an encoder with a decoder"),
    ],
)
def test_which_shape_is_nearest(fields: dict[str, Any], of_transformers: bool, family: str | None) -> None:
    assert nearest_family({**BRANDNEW, **fields}, of_transformers=of_transformers) == family


def test_what_is_not_a_decoder_is_left_to_the_textbook_formulas() -> None:
    found = read_config({**BRANDNEW, "architectures": ["NewForMaskedLM"]})
    assert isinstance(found, Architecture)
    estimate, why = predict(job(found), None)
    assert estimate is not None and estimate.method == "first-order"
    assert why is not None and "textbook formulas" in why


def test_a_nearest_known_type_has_the_wide_interval_too() -> None:
    assert NEAREST["jetmoe"][0] in RANGES and "jetmoe" not in FAMILIES["moe"]
    found = read_config({"model_type": "jetmoe"})
    assert isinstance(found, Architecture)
    wide, _ = predict(job(found), None)
    narrow = simulate(job(found))
    assert wide is not None
    assert wide.low_bytes < narrow.low_bytes and wide.high_bytes > narrow.high_bytes
