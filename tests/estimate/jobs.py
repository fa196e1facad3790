"""Small jobs for tests of the memory model."""

from __future__ import annotations

from typing import Any

from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}


def architecture(**fields: Any) -> Architecture:
    """A tiny Llama with some fields changed."""
    result = read_config({**TINY, **fields})
    assert isinstance(result, Architecture)
    return result


def job(changes: dict[str, Any] | None = None, **fields: Any) -> TrainingJob:
    """A job on a tiny model; ``changes`` are dotted native fields, ``fields`` those of the HF config."""
    start = TrainingJob(model="tiny", architecture=architecture(**fields))
    return replace_fields(start, {"training.sequence_length": 256, **(changes or {})})
