"""Dividing states over GPUs and moving them to the host: who holds what between the steps, and at the peak."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import Precision
from tests.estimate.jobs import job

HALF = Precision(weights="bf16", autocast=None, master_weights=True)
MIXED = Precision(weights="fp32", autocast="bf16")


def step(strategy: str, world: int, offload: str = "none", **changes: Any) -> Any:
    precision = HALF if strategy.startswith("zero") else MIXED
    fields = {"parallelism.strategy": strategy, "parallelism.offload": offload, "training.precision": precision}
    buffers = ("persistence_threshold", "prefetch_bucket", "max_reuse")
    sizes = {f"parallelism.{name}_elements": 0 for name in buffers}
    sizes["parallelism.reduce_bucket_elements"] = 1_000_000
    return run_step(job({**fields, **sizes, **changes}), None, world=world)


def peak(result: Any) -> int:
    return int(max(phase.peak_bytes for phase in result.timeline))


def test_ddp_holds_everything_and_buckets_as_large_as_the_gradients() -> None:
    alone, ddp = step("none", 1), step("ddp", 8)
    assert ddp.static == alone.static
    assert peak(ddp) - peak(alone) == alone.static["gradients"]
    viewed = step("ddp", 8, **{"parallelism.gradient_as_bucket_view": True})
    assert peak(viewed) == peak(alone)


def test_each_zero_stage_divides_one_thing_more() -> None:
    accumulated = {"training.gradient_accumulation_steps": 2}
    one, two, three = (step(f"zero{stage}", 8, **accumulated) for stage in (1, 2, 3))
    parameters = step("none", 1).static["parameters"] // 2
    assert one.static["optimizer_states"] == pytest.approx(12 * parameters / 2 / 8, rel=0.01)
    assert two.static["optimizer_states"] == three.static["optimizer_states"] == one.static["optimizer_states"]
    assert three.static["gradients"] == pytest.approx(one.static["gradients"] / 8, rel=0.02)
    # Whole gradients of every parameter that a rank owns something of: at most two more than its share.
    largest = max(record.numel for record in two.build.records if record.trainable) * 2
    assert 0 <= two.static["gradients"] - one.static["gradients"] / 8 <= 2 * largest
    assert three.static["parameters"] == pytest.approx(one.static["parameters"] / 8, rel=0.02)
    peaks = [{phase.phase: phase.peak_bytes for phase in result.timeline} for result in (one, two, three)]
    assert peaks[0]["backward"] > peaks[1]["backward"] > peaks[2]["backward"]
    first, second, third = (each["optimizer"] for each in peaks)
    assert first == second > third, "stage 1 keeps only its partition once the backward has reduced"


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp"])
def test_more_gpus_never_need_more_each(strategy: str) -> None:
    sizes = [peak(step(strategy, world)) for world in (2, 4, 8, 64)]
    assert sizes == sorted(sizes, reverse=True)


def test_shards_add_up_to_the_whole() -> None:
    whole = step("none", 1).static
    for world in (2, 8, 64):
        part = step("fsdp", world).static
        for name in ("parameters", "gradients", "optimizer_states"):
            assert whole[name] <= part[name] * world <= whole[name] * 1.02 + 64 * 1024 * world


def test_the_optimizer_on_the_host_leaves_the_gpu() -> None:
    kept, moved = step("zero2", 8), step("zero2", 8, "optimizer")
    assert moved.static["optimizer_states"] == 0
    share = sum(record.numel * record.count for record in kept.build.records) / 8
    assert moved.host_bytes == pytest.approx(kept.static["optimizer_states"] + 4 * share, rel=1e-4), "fp32 gradients"
    assert peak(moved) < peak(kept)


def test_frozen_layers_on_the_host_are_fetched_one_at_a_time() -> None:
    lora = {"training.method": "lora", "training.lora.rank": 8}
    kept, fetched = step("none", 1, **lora), step("none", 1, "parameters", **lora)
    assert fetched.static["parameters"] < kept.static["parameters"] / 10, "the adapters stay"
    assert fetched.static["optimizer_states"] == kept.static["optimizer_states"]
    assert peak(fetched) < peak(kept)
