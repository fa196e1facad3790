"""Encoders and encoder-decoders: parameters of public models, memory against traces, and what their heads cost."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from tests.estimate.family_points import (
    agrees_with_its_trace,
    count,
    is_extended_exactly,
    names_of,
    simulated,
    title,
)
from tests.estimate.traced import points

POINTS = [*points("traces_encoders.jsonl"), *points("traces_seq2seq.jsonl")]

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
DEBERTA = {
    "model_type": "deberta-v2",
    **BASE,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "vocab_size": 128100,
}
LARGE_V3 = {
    "model_type": "whisper",
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "vocab_size": 51866,
}

PUBLISHED: list[tuple[str, dict[str, Any], str, int]] = [
    # What transformers 5.24 builds from the public configs on the meta device, with the head named.
    ("bert-base, mlm", {"model_type": "bert"}, "mlm", 109_514_298),
    ("bert-base, classifier", {"model_type": "bert"}, "seqcls", 109_483_778),
    (
        "roberta-base, mlm",
        {"model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
        "mlm",
        124_697_433,
    ),
    (
        "xlm-roberta-base, classifier",
        {"model_type": "xlm-roberta", "vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1},
        "seqcls",
        278_045_186,
    ),
    ("distilbert, mlm", {"model_type": "distilbert"}, "mlm", 66_985_530),
    ("electra-small, mlm", {"model_type": "electra"}, "mlm", 13_546_682),
    ("electra-base, classifier", {"model_type": "electra", "embedding_size": 768, **BASE}, "seqcls", 109_483_778),
    ("deberta-v3-base, classifier", DEBERTA, "seqcls", 184_423_682),
    ("modernbert-base, mlm", {"model_type": "modernbert"}, "mlm", 149_655_232),
    ("t5-small", {"model_type": "t5"}, "seq2seq", 60_506_624),
    ("mt5, class defaults", {"model_type": "mt5"}, "seq2seq", 172_119_424),
    ("bart-large", {"model_type": "bart"}, "seq2seq", 406_291_456),
    ("mbart-large", {"model_type": "mbart", "vocab_size": 250027}, "seq2seq", 610_851_840),
    ("whisper-large-v3", LARGE_V3, "seq2seq", 1_543_490_560),
]


def point(model_type: str, head: str, **fields: Any) -> dict[str, Any]:
    start = next(
        p
        for p in POINTS
        if p["config"]["model_type"] == model_type and p["head"] == head and p["checkpointing"] == "none"
    )
    return {**start, **fields}


def saved(run: dict[str, Any]) -> int:
    return simulated(run).forward_end_bytes


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    agrees_with_its_trace(run)


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    is_extended_exactly(run)


@pytest.mark.parametrize(
    ("config", "head", "elements"), [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED]
)
def test_the_parameters_of_a_public_model_are_counted_exactly(config: dict[str, Any], head: str, elements: int) -> None:
    assert count(config, head) == elements


def test_only_the_classifier_has_a_pooler() -> None:
    assert "bert.pooler.dense.weight" in names_of(point("bert", "seqcls"))
    assert "bert.pooler.dense.weight" not in names_of(point("bert", "mlm"))


def test_a_masked_head_keeps_logits_over_the_vocabulary_and_a_classifier_does_not() -> None:
    run = point("roberta", "mlm")
    vocabulary_bytes = run["batch"] * run["seq"] * 2048 * 2
    assert saved(run) - saved({**run, "head": "seqcls"}) > vocabulary_bytes


def test_a_sliding_window_needs_a_mask_only_when_the_text_is_longer() -> None:
    run = point("modernbert", "mlm", attention="sdpa", batch=1)
    window, layers = 64, 6
    below = saved({**run, "seq": window - 1}) / (window - 1)
    above = saved({**run, "seq": 2 * window}) / (2 * window)
    assert above - below > layers * 2 * window


def test_deberta_keeps_scores_eagerly_whatever_the_job_says() -> None:
    run = point("deberta-v2", "mlm")
    assert saved({**run, "attention": "sdpa"}) == saved({**run, "attention": "eager"})


def test_t5s_position_bias_is_shared_by_its_layers_and_trained() -> None:
    names = {name for name in names_of(point("t5", "seq2seq")) if "relative_attention_bias" in name}
    assert names == {
        f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for side in ("encoder", "decoder")
    }


def test_t5_ties_its_head_even_where_the_config_says_no() -> None:
    assert count({"model_type": "t5", "tie_word_embeddings": False}, "seq2seq") == 60_506_624


def test_a_shorter_target_makes_the_decoder_cheaper() -> None:
    run = point("bart", "seq2seq")
    assert saved({**run, "target_seq": 64}) < 0.7 * saved({**run, "target_seq": 256})


def test_whispers_source_is_its_audio_window_not_the_jobs_length() -> None:
    run = point("whisper", "seq2seq", target_seq=64)
    assert saved({**run, "seq": 32}) == saved({**run, "seq": 4096})


@pytest.mark.parametrize(
    ("model_type", "head"), [("bert", "causal"), ("t5", "seqcls"), ("tapas", "mlm"), ("longt5", "seq2seq")]
)
def test_what_is_not_modelled_is_refused(model_type: str, head: str) -> None:
    with pytest.raises(Unsupported, match="no memory model"):
        count({"model_type": model_type}, head)
