"""Baichuan: ALiBi in a mask of every head (13B), a head whose rows are normalised (second edition), one W_pack."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.kernels import XFORMERS
from memlint.estimate.simulate import parameter_records, run_step, simulate
from memlint.job import TrainingJob, replace_fields
from memlint.models import catalog
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from tests.estimate.hub_code import peaks_of, settings

TARGETS = ("W_pack", "o_proj")
SMALL: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 1376,
    "tie_word_embeddings": False,
}
FIRST, SECOND = 64000, 125696
"""Rows of the two editions' embeddings."""

TRACED = [
    # edition, weights, autocast, tokens, rows, LoRA, checkpointing, xformers; peaks of forward and loss, of backward
    (FIRST, "bf16", None, 256, 1, False, "none", False, 543696896, 601525248),
    (FIRST, "fp32", "bf16", 300, 2, False, "nonreentrant", False, 1384458240, 1363997696),
    (FIRST, "bf16", "bf16", 500, 1, True, "reentrant", False, 418309120, 481391104),
    (SECOND, "bf16", None, 256, 2, False, "none", False, 1398784000, 1528491008),
    (SECOND, "fp32", None, 256, 1, False, "none", False, 2222694400, 2995468288),
    (SECOND, "fp32", "bf16", 256, 1, False, "none", False, 2168828928, 3005200384),
    (SECOND, "fp32", "fp16", 300, 2, False, "reentrant", False, 2575949824, 2962595840),
    (SECOND, "bf16", "bf16", 500, 2, True, "nonreentrant", False, 1680322560, 1678643712),
    (SECOND, "bf16", None, 1024, 1, True, "reentrant", False, 961539584, 1217410560),
    (SECOND, "bf16", None, 1024, 1, False, "none", False, 1673638400, 1930557952),
    (SECOND, "bf16", "bf16", 500, 1, False, "reentrant", True, 1473084928, 2129460224),
    (SECOND, "bf16", None, 1024, 1, True, "none", True, 1024969216, 1280840192),
]
"""The operations of modeling_baichuan.py in the same modules, run on fake tensors as ``memlint trace`` runs a model of
transformers (torch 2.13), which has no Baichuan of its own.
"""


def job(vocabulary: int, **changes: Any) -> TrainingJob:
    config = {"model_type": "baichuan", **SMALL, "vocab_size": vocabulary, "model_max_length": 4096}
    architecture = read_config(config)
    assert isinstance(architecture, Architecture)
    padded = replace_fields(TrainingJob(model="own", architecture=architecture), {"training.padding": True})
    return replace_fields(padded, changes)


@pytest.mark.parametrize("point", TRACED, ids=lambda p: " ".join(map(str, p[:8])))
def test_a_step_needs_what_its_trace_shows(point: tuple[Any, ...]) -> None:
    vocabulary, *given, xformers, forward, backward = point
    kernels = frozenset({XFORMERS}) if xformers else None
    made, backwards = peaks_of(job(vocabulary, **settings(*given, targets=TARGETS)), kernels)
    assert backwards == pytest.approx(backward, rel=5e-5)
    if given[1] is None:
        # Under autocast accelerate copies the outputs in fp32, which the trace of a bare model does not show.
        assert made == pytest.approx(forward, rel=5e-5)


def test_the_masks_matrix_for_every_head_is_there_in_every_step() -> None:
    short, long = (job(FIRST, **{"training.sequence_length": tokens}) for tokens in (512, 1024))
    fixed = [run_step(one, (8, 0)).static["parameters"] for one in (short, long)]
    assert fixed[1] - fixed[0] == SMALL["num_attention_heads"] * (1024**2 - 512**2) * 4


def test_adapters_go_by_the_names_of_the_code_on_the_hub() -> None:
    for model in ("baichuan-inc/Baichuan2-7B-Chat", "baichuan-inc/Baichuan2-13B-Chat"):
        row = catalog.find(model)
        assert row is not None
        architecture = read_config(row.config)
        assert isinstance(architecture, Architecture)
        packed = {"training.method": "lora", "training.lora.rank": 8, "training.lora.targets": ("W_pack",)}
        adapted = replace_fields(TrainingJob(model=model, architecture=architecture), packed)
        trained = [r for r in parameter_records(adapted) if r.trainable]
        h = architecture.hidden_size
        assert {r.shape for r in trained} == {(8, h), (3 * h, 8)}


def test_only_the_second_edition_asks_for_xformers() -> None:
    for vocabulary, asked in ((FIRST, frozenset()), (SECOND, {XFORMERS})):
        assert run_step(job(vocabulary), (8, 0)).asked == asked


def test_an_estimate_says_what_the_code_does_not_have() -> None:
    said = simulate(job(SECOND, **{"training.attention": "flash", "training.sequence_length": 1024})).assumptions
    assert "the code that comes with the model has no flash attention: computed as it is written" in said
    assert any("xformers is not pinned" in sentence for sentence in said)
