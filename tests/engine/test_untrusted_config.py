"""A HF config is untrusted: whatever a field of it holds, there is a prediction or a sentence, never an exception."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.engine.predict import predict
from memlint.job import Training, TrainingJob
from memlint.models import config
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.models.families import FAMILIES
from memlint.models.fields import FIELDS
from memlint.models.remote import REMOTE
from memlint.models.validate import explain

DEFAULTS = os.path.join(os.path.dirname(config.__file__), "defaults.jsonl")

TYPES = [*(name for names in FAMILIES.values() for name in names), *REMOTE, "nobody-knows-it"]

SMALL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}

NONSENSE = st.sampled_from(
    [None, True, "", "abc", "0", -1, 0, 1, 3.5, -3.5, 1e30, 2**70, [], [0], [-1], [1, 2], ["abc"], [None], {}, {"a": 1}]
)

OTHERS = ("head_dim", "expand", "mamba_dt_rank", "time_step_rank", "hybrid_override_pattern", "id2label", "block_types")
"""Fields that families read and the table does not bound."""


@pytest.mark.parametrize("inside", [None, "text_config", "vision_config"])
@settings(max_examples=150)
@given(data=st.data())
def test_nonsense_ends_in_a_sentence(inside: str | None, data: st.DataObject) -> None:
    model_type = data.draw(st.sampled_from(TYPES))
    changes = data.draw(st.dictionaries(st.sampled_from([*FIELDS, *OTHERS]), NONSENSE, min_size=1, max_size=3))
    changes.pop("model_type", None)
    plain = {"model_type": model_type, **SMALL}
    stated = {**plain, **changes} if inside is None else {**plain, inside: {**SMALL, **changes}}
    found = read_config(stated)
    if not isinstance(found, Architecture):
        assert all(problem.message for problem in found)
        return
    job = TrainingJob(model="m", architecture=found, training=Training(sequence_length=64))
    estimate, reason = predict(job, None)
    assert reason if estimate is None else estimate.allocated_bytes > 0


def test_a_value_the_model_cannot_be_built_with_is_named() -> None:
    found = read_config({"model_type": "llama", **SMALL, "num_attention_heads": [4, 4]})
    assert isinstance(found, Architecture)
    estimate, reason = predict(TrainingJob(model="m", architecture=found), None)
    assert estimate is None
    assert reason is not None and "`num_attention_heads`" in reason


def test_every_class_default_is_believable() -> None:
    """What transformers' own classes set is never called wrong."""
    with open(DEFAULTS, encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    found = {row["type"]: explain({"model_type": row["type"], **row["defaults"]}) for row in rows if "defaults" in row}
    assert len(found) > 300
    assert {name: problems for name, problems in found.items() if problems} == {}
