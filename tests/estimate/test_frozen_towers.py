"""Frozen image towers: what stands while they run, and what Llama 3.2 Vision's tower makes of its layers."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import Checkpointing, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from tests.estimate.test_vision_family import job, peak
from tests.estimate.vision_configs import CONFIGS

WIDE = {"hidden_size": 1024, "intermediate_size": 4096}
TILES = {
    "image_size": 560,
    "num_global_layers": 8,
    "hidden_size": 1280,
    "attention_heads": 16,
    "intermediate_size": 5120,
    "vision_output_dim": 3840,
}
FORWARDS: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any], int]] = [
    (
        *("mllama", "vision_model", TILES),
        *({"num_hidden_layers": 3}, {"micro_batch_size": 2, "sequence_length": 64, "image_pixels": 560**2}, 1419137536),
    ),
    (
        *("qwen3_vl", "visual", {**WIDE, "num_heads": 8}, {"num_hidden_layers": 2}),
        *({"image_pixels": 640**2}, 490994176),
    ),
    (
        *("mistral3", "vision_tower", {**WIDE, "num_attention_heads": 8, "image_size": 336}),
        *({"num_hidden_layers": 2}, {"image_pixels": 336**2, "attention": "eager"}, 370486272),
    ),
]
"""Wide frozen towers before a small language model, two images a row: the forward phase of traces in bf16. No graph
holds what such a tower makes; the names of its forward do until it returns.
"""


def altered(kind: str, tower: dict[str, Any], text: dict[str, Any]) -> Architecture:
    """A small config with other fields in its tower and its language model."""
    config = CONFIGS[kind]
    parts = {"vision_config": {**config["vision_config"], **tower}, "text_config": {**config["text_config"], **text}}
    architecture = read_config({**config, **parts})
    assert isinstance(architecture, Architecture), architecture
    return architecture


@pytest.mark.parametrize(("kind", "frozen", "tower", "text", "training", "traced"), FORWARDS)
def test_a_frozen_towers_forward_holds_what_its_own_names_hold(
    kind: str, frozen: str, tower: dict[str, Any], text: dict[str, Any], training: dict[str, Any], traced: int
) -> None:
    architecture = altered(kind, tower, text)
    start = {"micro_batch_size": 1, "sequence_length": 700, "images": 2, "freeze": (frozen,), **training}
    changes = {f"training.{name}": value for name, value in start.items()}
    step = run_step(replace_fields(job(kind, changes), {"architecture": architecture}), (8, 0))
    forward = next(phase.peak_bytes for phase in step.timeline if phase.phase == "forward")
    assert forward == pytest.approx(traced, rel=0.0001)


def test_a_trained_projector_of_mllama_is_unwound_behind_the_embedding() -> None:
    """MllamaTextModel embeds its tokens after the tower has run, so that their gradient is made before the tower's."""
    architecture = altered("mllama", TILES, {"num_hidden_layers": 3})
    start = {"sequence_length": 64, "images": 2, "image_pixels": 560**2, "freeze": ("vision_model",)}
    changes = {f"training.{name}": value for name, value in start.items()}
    whole = {"architecture": architecture, "training.checkpointing": Checkpointing(mode="full")}
    step = run_step(replace_fields(job("mllama", changes), whole), (8, 0))
    assert peak(step) == pytest.approx(5125489664, rel=0.0001)


def test_cross_attention_layers_beyond_the_depth_are_not_there() -> None:
    """The class makes the layers of its depth; a shortened config names more of them by its defaults."""
    architecture = altered("mllama", {}, {"num_hidden_layers": 3, "cross_attention_layers": [1, 4, 5]})
    for images in (0, 1):
        changes = {"architecture": architecture, "training.images": images}
        records = run_step(replace_fields(job("mllama"), changes), full=True).build.records
        found = [record.name for record in records if record.name.startswith("model.language_model.layers.")]
        assert {name.split(".")[3] for name in found} == {"0", "1", "2"}
