"""Reentrant checkpoints of layers that share something with a graph by keyword, which end in an error of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.engine.predict import predict
from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from tests.estimate.exact_jobs import start_of

REENTRANT = {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": True}


def deberta(**fields: Any) -> TrainingJob:
    """DeBERTa v3's sort of model, small."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 4}
    relative = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 64, "vocab_size": 2048}
    found = read_config({"model_type": "deberta-v2", **sizes, **relative, **fields})
    assert isinstance(found, Architecture)
    return replace_fields(start_of("deberta-v2"), {"architecture": found, **REENTRANT})


def test_the_states_of_images_are_given_to_several_layers() -> None:
    job = replace_fields(start_of("mllama"), REENTRANT)
    with pytest.raises(Unsupported, match=r"`mllama` with reentrant checkpoints .* the states of the images"):
        run_step(job)


def test_one_layer_that_looks_at_images_runs_through_their_graph_once() -> None:
    job = replace_fields(start_of("mllama"), {**REENTRANT, "training.checkpointing.every": 4})
    assert run_step(job).timeline


@pytest.mark.parametrize("fields", [{"training.checkpointing.reentrant": False}, {"training.images": 0}])
def test_without_reentry_or_without_images_it_trains(fields: dict[str, Any]) -> None:
    assert run_step(replace_fields(start_of("mllama"), {**REENTRANT, **fields})).timeline


def test_deberta_v3_norms_its_relative_positions_before_its_layers() -> None:
    with pytest.raises(Unsupported, match="the normed table of relative positions"):
        run_step(deberta(norm_rel_ebd="layer_norm"))
    assert run_step(deberta()).timeline


@pytest.mark.parametrize("reentrant", [True, False])
def test_keys_and_values_of_a_layer_that_is_not_checkpointed(reentrant: bool) -> None:
    types = ["sliding_attention", "full_attention"] * 3
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 6}
    config = {"model_type": "gemma3n_text", **sizes, "layer_types": types, "num_kv_shared_layers": 2, "head_dim": 32}
    config.update(num_key_value_heads=1, vocab_size=256, activation_sparsity_pattern=[0.0] * 6)
    found = read_config(config)
    assert isinstance(found, Architecture)
    changes = {"architecture": found, **REENTRANT, "training.checkpointing.reentrant": reentrant}
    every_layer = replace_fields(start_of("gemma3n_text"), changes)
    assert run_step(every_layer).timeline
    job = replace_fields(every_layer, {"training.checkpointing.every": 2})
    if not reentrant:
        assert run_step(job).timeline
        return
    with pytest.raises(Unsupported, match="frees nothing of a micro batch when it is over"):
        run_step(job)


def test_the_user_is_told_what_to_set() -> None:
    estimate, why = predict(deberta(norm_rel_ebd="layer_norm"), None)
    assert estimate is not None
    assert why is not None and "`use_reentrant` to false" in why
