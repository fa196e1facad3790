"""ChatGLM 3 and GLM-4 as first published: keys and values of every head, logits in fp32 and back."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import parameter_records
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.models.traits import TOKENS_FIRST
from tests.estimate.hub_code import peaks_of, settings

TARGETS = ("query_key_value", "dense_4h_to_h")
THIRD, FOURTH = 65024, 151552
"""padded_vocab_size of ChatGLM 3 and of GLM-4."""

TRACED = [
    # vocabulary, weights, autocast, tokens, rows, LoRA, checkpointing; peaks of forward and loss, of backward
    (THIRD, "bf16", None, 256, 1, False, "none", 650113024, 682884608),
    (THIRD, "bf16", None, 256, 2, False, "reentrant", 928982528, 861873664),
    (THIRD, "fp32", "bf16", 256, 2, False, "none", 1449967104, 1448389632),
    (THIRD, "bf16", "bf16", 500, 2, True, "none", 1140042752, 1008434176),
    (THIRD, "bf16", "bf16", 1024, 2, True, "nonreentrant", 2034756608, 1765615616),
    (THIRD, "fp32", None, 256, 2, False, "none", 1396763648, 1396239360),
    (FOURTH, "bf16", None, 256, 1, False, "none", 1403693056, 1480074752),
    (FOURTH, "bf16", None, 256, 2, False, "reentrant", 2079458816, 1923053056),
    (FOURTH, "fp32", "bf16", 256, 2, False, "none", 3133644288, 3131374592),
    (FOURTH, "bf16", "bf16", 500, 2, True, "none", 2527259648, 2221902848),
    (FOURTH, "bf16", "bf16", 1024, 2, True, "nonreentrant", 4689415168, 4065163264),
    (FOURTH, "fp32", None, 256, 2, False, "none", 2987117568, 2985901056),
]
PADDED = [
    (THIRD, "bf16", None, 1000, 1, False, "none", 1211767296, 1341294592),
    (THIRD, "fp32", None, 500, 2, False, "none", 1859853312, 1859324928),
    (FOURTH, "bf16", None, 1024, 2, False, "none", 5544000000, 4922014208),
    (FOURTH, "fp32", "bf16", 1024, 2, False, "nonreentrant", 5908105728, 5882968064),
]
"""See hub_code; PADDED with a mask that hides positions."""


def job(vocabulary: int, **changes: Any) -> TrainingJob:
    config = {
        "model_type": "chatglm",
        "hidden_size": 512,
        "num_layers": 3,
        "num_attention_heads": 8,
        "multi_query_group_num": 2,
        "kv_channels": 64,
        "ffn_hidden_size": 1712,
        "padded_vocab_size": vocabulary,
        "add_qkv_bias": True,
        "seq_length": 8192,
        "tie_word_embeddings": False,
    }
    architecture = read_config(config)
    assert isinstance(architecture, Architecture)
    return replace_fields(TrainingJob(model="own", architecture=architecture), changes)


@pytest.mark.parametrize("point", TRACED, ids=lambda p: " ".join(map(str, p[:7])))
def test_a_step_needs_what_its_trace_shows(point: tuple[Any, ...]) -> None:
    vocabulary, *given, forward, backward = point
    found = peaks_of(job(vocabulary, **settings(*given, targets=TARGETS)))
    assert found == pytest.approx((forward, backward), rel=5e-6)


def test_the_editions_are_told_apart_by_their_vocabulary() -> None:
    for vocabulary, first in ((THIRD, True), (FOURTH, False)):
        architecture = job(vocabulary).architecture
        assert architecture is not None and (TOKENS_FIRST in architecture.traits) == first


@pytest.mark.parametrize("point", PADDED, ids=lambda p: " ".join(map(str, p[:7])))
def test_padding_makes_one_mask_for_all_layers_and_its_inverse_in_each(point: tuple[Any, ...]) -> None:
    vocabulary, *given, forward, backward = point
    padded = job(vocabulary, **settings(*given, targets=TARGETS), **{"training.padding": True})
    assert peaks_of(padded) == pytest.approx((forward, backward), rel=5e-6)


def test_modules_have_the_names_of_the_code() -> None:
    adapted = job(FOURTH, **settings("bf16", "bf16", 256, 1, True, "none", targets=("dense_h_to_4h",)))
    trained = {r.name for r in parameter_records(adapted) if r.trainable}
    assert trained == {f"transformer.encoder.layers.0.mlp.dense_h_to_4h.lora_{part}" for part in "AB"}


def test_peft_adapts_its_fused_product_where_nothing_is_named() -> None:
    adapted = job(THIRD, **{"training.method": "lora", "training.lora.rank": 8, "training.lora.targets": "default"})
    assert all("query_key_value" in r.name for r in parameter_records(adapted) if r.trainable)
    assert any(r.trainable for r in parameter_records(adapted))
