"""Our copy of transformers' class defaults, against the real classes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from memlint.models.defaults import class_defaults, known_types, transformers_version
from memlint.models.families import FAMILIES, NEAREST
from memlint.models.fill import fill

pytestmark = pytest.mark.measure
transformers = pytest.importorskip("transformers", reason="needs the measure extra")

SUPPORTED = sorted({name for names in FAMILIES.values() for name in names} | set(NEAREST))

ON_PURPOSE = {
    # A stated false keeps the head apart, as from_pretrained does for such checkpoints: special.py, _t5.
    ("t5", "tie_word_embeddings"),
    ("mt5", "tie_word_embeddings"),
    ("umt5", "tie_word_embeddings"),
    ("longt5", "tie_word_embeddings"),
    ("switch_transformers", "tie_word_embeddings"),
    ("t5", "scale_decoder_outputs"),
    ("umt5", "scale_decoder_outputs"),
}
"""(model_type, field) where we differ from the class, each with its reason."""

COMPUTED_ONLY = {"is_gated_act", "use_decoder_only_language_model", "merged_hidden_size", "num_feat_extract_layers"}
"""Fields that no config states: the class computes them and ignores a statement."""


@pytest.fixture(autouse=True, scope="module")
def _current_version() -> None:
    if transformers.__version__ != transformers_version():
        pytest.skip(f"the data follows transformers {transformers_version()}, installed is {transformers.__version__}")
    transformers.logging.set_verbosity_error()


def differences(model_type: str, config: Any, ours: dict[str, Any], prefix: str = "") -> list[str]:
    entry = class_defaults(model_type) or {}
    found = []
    names = {*entry.get("defaults", {}), *entry.get("rules", {}), *entry.get("names", {})} - {"partial_rotary_factor"}
    for name in sorted(names):
        try:
            theirs = getattr(config, name)
        except Exception:
            continue  # an argument that only old configs have, or a field that differs from layer to layer (gemma4)
        if isinstance(theirs, transformers.PretrainedConfig):
            continue
        theirs = json.loads(json.dumps(theirs))
        if theirs != ours.get(name) and (model_type, name) not in ON_PURPOSE:
            found.append(f"{prefix}{name}: {theirs!r:.60} there, {ours.get(name)!r:.60} here")
    for key in entry.get("parts", {}):
        inner, own = getattr(config, key, None), ours.get(key)
        if (inner is None) != (own is None):
            found.append(f"{prefix}{key}: only on one side")
        elif isinstance(own, dict) and inner is not None:
            found += differences(own["model_type"], inner, own, f"{prefix}{key}.")
    return found


def class_of(model_type: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers has no config class for {model_type}")
    return CONFIG_MAPPING[model_type]


def test_the_supported_types_have_defaults() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert not [name for name in SUPPORTED if name in CONFIG_MAPPING_NAMES and class_defaults(name) is None]
    assert len(known_types()) > 500


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_defaults_equal_those_of_the_class(model_type: str) -> None:
    assert differences(model_type, class_of(model_type)(), fill({}, model_type)) == []


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_computed_fields_follow_changed_ones_as_in_the_class(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = class_of(model_type)
    monkeypatch.setattr(cls, "__class_validators__", [])
    chooser = random.Random(model_type)
    tried = 0
    for _ in range(8):
        changes: dict[str, Any] = {}
        for name, value in (class_defaults(model_type) or {}).get("defaults", {}).items():
            if (
                name in {"partial_rotary_factor", "is_encoder_decoder"}
                or name in COMPUTED_ONLY
                or chooser.random() < 0.5
            ):
                continue
            if (model_type, name) in ON_PURPOSE | {("falcon_mamba", "use_mambapy"), ("dbrx", "num_key_value_heads")}:
                continue
            if isinstance(value, bool):
                changes[name] = not value
            elif isinstance(value, int):
                changes[name] = chooser.choice([value * 2, value * 3, max(value // 2, 1), value + 1])
        if (model_type, "hidden_size") == ("voxtral", "hidden_size"):
            changes.pop("hidden_size", None)  # a property of the text part
        if model_type == "zamba2":
            changes.pop("use_long_context", None)  # sets max_position_embeddings, for inference only
        try:
            config = cls(**changes)
        except Exception:
            continue  # the class refuses the combination
        tried += 1
        assert differences(model_type, config, fill(changes, model_type)) == [], changes
    assert tried > 0 or model_type in {"reformer"}
