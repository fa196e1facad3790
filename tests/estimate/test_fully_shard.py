"""FSDP2's buffers phase by phase, against traces of PyTorch's own fully_shard as one rank of two and of eight."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from tests.estimate.jobs import job
from tests.estimate.sharded_points import retraced, simulated, title
from tests.estimate.traced import phases_of, points

POINTS = points("traces_sharded.jsonl")
SMALL = 8192
"""Position ids, padded labels and the loss's own scalars, which the simulation leaves out."""


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_every_phase_agrees_with_the_trace(run: dict[str, Any]) -> None:
    phases = phases_of(simulated(run))
    for name, size in run["phase_peaks"].items():
        assert abs(phases[name] - size) <= SMALL, name


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    short, full = simulated(run), simulated(run, full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
    assert short.forward_end_bytes == full.forward_end_bytes


@pytest.mark.measure
@pytest.mark.parametrize("run", [r for r in POINTS if r["config"]["model_type"] == "llama"][:6:2], ids=title)
def test_the_trace_still_says_so(run: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert retraced(run) == run["phase_peaks"]


def step(strategy: str, **fields: Any) -> Any:
    return run_step(job({"parallelism.strategy": strategy, **fields}), None, world=8)


def test_a_tied_embedding_is_gathered_and_reduced_once() -> None:
    tied = run_step(job({"parallelism.strategy": "fsdp"}, tie_word_embeddings=True), None, world=8)
    apart = step("fsdp")
    assert tied.timeline[-1].peak_bytes < apart.timeline[-1].peak_bytes


def test_hsdp_holds_what_it_all_reduces_until_the_backward_ends() -> None:
    short = {"training.sequence_length": 16, "training.max_grad_norm": None}
    plain = step("fsdp", **short)
    held = run_step(job({"parallelism.strategy": "hsdp", "parallelism.shard": 8, **short}), None, world=16)
    assert held.static == plain.static
    assert held.timeline[2].peak_bytes > plain.timeline[2].peak_bytes
    assert held.timeline[2].end_bytes == plain.timeline[2].end_bytes
