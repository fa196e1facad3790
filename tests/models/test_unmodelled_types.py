"""The page of text types that are only estimated says which they are: no more, and no fewer."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.registry import build_model
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "families.md")
with open(PAGE, encoding="utf-8") as page:
    LISTED = sorted(set(re.findall(r"`([a-z0-9_-]+)`", page.read().partition("\n* ")[2])))

NEEDED: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "esm": {"vocab_size": 33},
}
"""Fields without a usable default in transformers' class."""
OBJECTIVES = ("causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification")


def modelled(model_type: str) -> bool:
    """Whether some objective of a type with the class's own config is computed operation by operation."""
    architecture = read_config({"model_type": model_type, **NEEDED.get(model_type, {})})
    if not isinstance(architecture, Architecture) or architecture.approximate is not None:
        return False
    for objective in OBJECTIVES:
        job = TrainingJob(model=model_type, architecture=architecture)
        job = replace_fields(job, {"training.objective": objective})
        try:
            build_model(job, Build(job), Env.of(job, None))
        except Unsupported:
            continue
        return True
    return False


@pytest.mark.parametrize("model_type", LISTED)
def test_a_listed_type_is_only_estimated(model_type: str) -> None:
    assert not modelled(model_type)


@pytest.mark.measure
def test_every_other_text_type_of_transformers_has_a_model() -> None:
    pytest.importorskip("transformers", reason="needs the measure extra")
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    names: set[str] = set()
    for task in ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SEQUENCE_CLASSIFICATION"):
        names |= set(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"))
    text = {name for name in names if name in CONFIG_MAPPING and not parts_of(CONFIG_MAPPING[name])}
    assert sorted(name for name in text - set(LISTED) - BESIDE if not modelled(name)) == []


def parts_of(config_class: Any) -> bool:
    """Whether a config has parts, of which some see or hear."""
    return bool(getattr(config_class, "sub_configs", None)) and config_class.model_type != "t5gemma"


BESIDE = {"layoutlmv2", "layoutlmv3", "perceiver", "seamless_m4t", "seamless_m4t_v2", "trocr"}
"""Types of those classes that read images, sound or tokens of them, whose configs have no parts."""
