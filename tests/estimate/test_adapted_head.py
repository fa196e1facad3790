"""Adapters beside the head, seen by losses that make no logits."""

from __future__ import annotations

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import Lora
from tests.estimate.jobs import job


@pytest.mark.parametrize("loss", ["fused", "chunked", "cut-cross-entropy"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_loss_without_logits_takes_the_base_matrix_of_an_adapted_head(loss: str, tied: bool) -> None:
    """peft's BaseTunerLayer.weight: the branch beside the head takes no part."""
    lora = {"training.method": "lora", "training.lora": Lora(targets=("lm_head", "q_proj")), "training.loss": loss}
    plain = {**lora, "training.lora": Lora(targets=("q_proj",))}
    adapted, bare = (run_step(job(changes, tie_word_embeddings=tied)) for changes in (lora, plain))
    assert adapted.forward_end_bytes == bare.forward_end_bytes
