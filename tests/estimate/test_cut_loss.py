"""Cut cross entropy: no logits, no gradients before the backward; beside traces of cut-cross-entropy's own Python."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import Step, run_step
from memlint.job import Lora, Precision, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 16384,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
TIED = {"tie_word_embeddings": True}
FULL = {"training.checkpointing.mode": "full"}
LORA: dict[str, Any] = {"training.method": "lora", "training.lora": Lora()}
TRACED = [
    pytest.param({}, {}, 237155328, 147410432, id="full"),
    pytest.param({}, TIED, 220378112, 147410432, id="a tied head"),
    pytest.param(FULL, {}, 158620672, 15049216, id="checkpointing"),
    pytest.param(LORA, {}, 283373568, 211496448, id="lora"),
    pytest.param({**LORA, **FULL}, {}, 153331712, 12952064, id="lora, checkpointing"),
]
"""Bytes at the backward's peak and at the end of the forward: two rows of 1024 tokens, bf16, SGD; memlint.measure.trace
over cut-cross-entropy 25.1.1 in place of Llama's head, its Triton kernels replaced by functions that do nothing."""


def step(changes: dict[str, Any], fields: dict[str, Any] | None = None, loss: str = "cut-cross-entropy") -> Step:
    architecture = read_config({**LLAMA, **(fields or {})})
    assert isinstance(architecture, Architecture)
    training = Training(
        micro_batch_size=2,
        sequence_length=1024,
        optimizer="sgd",
        loss=loss,
        precision=Precision(weights="bf16", autocast=None),
    )
    start = TrainingJob(model="m", architecture=architecture, training=training)
    return run_step(replace_fields(start, changes), (8, 0))


@pytest.mark.parametrize(("changes", "fields", "backward", "forward_end"), TRACED)
def test_the_step_is_that_of_the_packages_own_code(
    changes: dict[str, Any], fields: dict[str, Any], backward: int, forward_end: int
) -> None:
    found = step(changes, fields)
    peaks = {phase.phase: phase.peak_bytes for phase in found.timeline}
    # What is left are the position ids that checkpointed layers hold, and the kernels' locks.
    assert peaks["backward"] == pytest.approx(backward, rel=0.0005)
    assert found.forward_end_bytes == pytest.approx(forward_end, rel=0.001)


def test_ligers_loss_has_the_heads_gradient_when_the_forward_ends_and_this_one_not() -> None:
    """Liger keeps the states' gradient in place of the states."""
    head = 16384 * 512 * 2
    early = step({}, loss="fused").forward_end_bytes - step({}).forward_end_bytes
    # Two numbers a position and one a word are kept instead.
    assert head > early > 0.98 * head


def test_a_frozen_head_gets_no_gradient() -> None:
    head = 16384 * 512 * 2
    assert step(LORA).static["gradients"] < head
    trained = {"training.lora": Lora(modules_to_save=("lm_head",))}
    peaks = [max(p.peak_bytes for p in step({**LORA, **changes}).timeline) for changes in ({}, trained)]
    assert peaks[1] - peaks[0] >= 2 * head
