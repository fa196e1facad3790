"""Models that hear or see and have no language model: memory against traces, parameters, and the shortcut over layers.

The lines of ``traces_media.jsonl`` are made like those of :mod:`tests.estimate.traced` with the heads ``ctc``,
``audio`` and ``image`` (AutoModelForCTC, AutoModelForAudioClassification, AutoModelForImageClassification); waveforms,
mel features and the pixels of convolutions have the dtype of the weights. ``benchmarks/accuracy/senses.py`` makes them
again.
"""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step
from memlint.job import Checkpointing, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.checkpoint import as_stored
from memlint.models.config import read_config
from tests.estimate.family_points import agrees_with_its_trace, is_extended_exactly, names_of, simulated, title
from tests.estimate.traced import points

POINTS = points("traces_media.jsonl")
TOLD = ("depths", "do_stable_layer_norm", "layer_type", "mask_time_prob")
"""Fields that tell points of one type apart."""


def named(run: dict[str, Any]) -> str:
    """A test's name for a run, with what else it states."""
    told = [key for key in ("freeze", "padding", "pixels") if run.get(key)]
    told += [part["model_type"] for part in run["config"].values() if isinstance(part, dict) and "model_type" in part]
    return " ".join([title(run), *told, *sorted(set(run["config"]) & set(TOLD))])


@pytest.mark.parametrize("run", POINTS, ids=named)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    agrees_with_its_trace(run)


@pytest.mark.parametrize("run", POINTS, ids=named)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    is_extended_exactly(run)


def point(model_type: str, **fields: Any) -> dict[str, Any]:
    start = next(p for p in POINTS if p["config"]["model_type"] == model_type)
    return {**start, **fields}


def job(model_type: str, changes: dict[str, Any] | None = None, **config: Any) -> TrainingJob:
    architecture = read_config({"model_type": model_type, **config})
    assert isinstance(architecture, Architecture), architecture
    return replace_fields(TrainingJob(model=model_type, architecture=architecture), changes or {})


def test_freezing_the_feature_encoder_frees_its_activations() -> None:
    frozen = simulated(point("wav2vec2", freeze=["feature_extractor"]))
    assert frozen.forward_end_bytes < simulated(point("wav2vec2")).forward_end_bytes / 2


def test_a_checkpointed_layer_that_saves_nothing_holds_nothing() -> None:
    frozen = point("wav2vec2", freeze=["feature_extractor"])
    again = {**frozen, "checkpointing": "nonreentrant"}
    assert simulated(again).forward_end_bytes < simulated(frozen).forward_end_bytes / 2


def test_without_masked_spans_there_is_no_vector_for_them() -> None:
    spans = {**point("wav2vec2")["config"], "mask_time_prob": 0.05}
    assert "wav2vec2.masked_spec_embed" in names_of(point("wav2vec2", config=spans))
    assert "wav2vec2.masked_spec_embed" not in names_of(point("wav2vec2"))


def test_a_model_without_language_says_what_its_step_is() -> None:
    architecture = job("wav2vec2").architecture
    assert architecture is not None
    found = as_stored(job("wav2vec2"), architecture)
    assert found.training.sequence_length == 1000
    assert any("CTC over frames of 20 ms" in sentence for sentence in found.assumptions)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "wav2vec2", "add_adapter": True}, "an adapter behind the encoder"),
        ({"model_type": "wav2vec2", "adapter_attn_dim": 16}, "adapters inside attention layers"),
        ({"model_type": "hubert", "conv_pos_batch_norm": True}, "a batch norm before the convolution of positions"),
    ],
)
def test_what_has_no_model_says_so_in_a_sentence(config: dict[str, Any], sentence: str) -> None:
    asked = job(**config)
    with pytest.raises(Unsupported, match=sentence):
        run_step(replace_fields(asked, {"training.checkpointing": Checkpointing()}))
