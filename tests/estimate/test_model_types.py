"""The page's table of model types: every type that people train first stands in it, within the bars."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.accuracy.model_types import Error, errors

NAMED = """
    mixtral qwen2_moe qwen3_moe olmoe dbrx deepseek_v2 deepseek_v3 gpt_oss llama4_text glm4_moe
    qwen3_next jamba mamba falcon_mamba granitemoehybrid nemotron_h
    bert roberta distilbert deberta-v2 modernbert electra
    t5 mt5 bart whisper
    vit clip siglip qwen2_vl qwen2_5_vl qwen3_vl llava idefics3 paligemma gemma3 mllama internvl
"""
"""The types that issue 4 names."""


@pytest.fixture(scope="module")
def found() -> list[Error]:
    return list(errors())


def test_every_type_asked_for_is_traced(found: list[Error]) -> None:
    assert [name for name in NAMED.split() if name not in {kind for _, kind, _ in found}] == []


def test_the_errors_are_within_the_bars(found: list[Error]) -> None:
    sizes = [abs(error) for _, _, error in found]
    assert statistics.median(sizes) <= 0.01
    assert max(sizes) <= 0.03, max(found, key=lambda item: abs(item[2]))
