"""Tiny models for the trace tests, and a trace of them with settings of the test's choice."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}


def tiny(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


def traced(config: dict[str, Any] | None = None, **settings: Any) -> Any:
    from memlint.measure.trace.run import trace_model

    return trace_model(config or TINY, **{"batch": 1, "seq": 256, **settings})
