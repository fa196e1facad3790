"""What each key of DeepSpeed's ZeRO holds on the GPU, and when: DeepSpeed 0.19.8 runtime/zero."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from memlint.estimate.zero_gather import Block, Limits, gathered_bytes
from memlint.job import Precision
from tests.estimate.jobs import job

HALF = Precision(weights="bf16", autocast=None, master_weights=True)
MILLION = 1_000_000
SIZES = {
    "parallelism.reduce_bucket_elements": MILLION,
    "parallelism.persistence_threshold_elements": 0,
    "parallelism.prefetch_bucket_elements": MILLION,
    "parallelism.max_live_elements": 2 * MILLION,
    "parallelism.max_reuse_elements": 0,
}
LARGE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 2048}


def step(stage: int, world: int = 8, **changes: Any) -> Any:
    fields = {"parallelism.strategy": f"zero{stage}", "training.precision": HALF, "training.sequence_length": 32}
    named = {f"parallelism.{name}" if "." not in name else name: value for name, value in changes.items()}
    return run_step(job({**fields, **SIZES, **named}, **LARGE), None, world=world)


def phases(result: Any) -> dict[str, int]:
    return {phase.phase: phase.peak_bytes for phase in result.timeline}


def communication(result: Any, phase: str) -> int:
    return int(next(p for p in result.timeline if p.phase == phase).components["communication"])


class TestReduceBucket:
    @pytest.mark.parametrize("stage", [1, 2])
    def test_below_stage_3_it_is_there_in_the_backward_only(self, stage: int) -> None:
        small, large = (step(stage, reduce_bucket_elements=size) for size in (60 * MILLION, 70 * MILLION))
        assert phases(large)["forward"] == phases(small)["forward"]
        assert phases(large)["optimizer"] == phases(small)["optimizer"]
        assert phases(large)["backward"] - phases(small)["backward"] == pytest.approx(2 * 10 * MILLION, abs=1024)

    def test_in_stage_1_it_stays_from_one_micro_batch_to_the_last(self) -> None:
        accumulated: dict[str, Any] = {"training.gradient_accumulation_steps": 2}
        for overlap, buffers in ((False, 1), (True, 2)):
            result = step(1, overlap_comm=overlap, **accumulated)
            assert communication(result, "forward") == pytest.approx(buffers * 2 * MILLION, abs=1024)
        assert communication(step(2, **accumulated), "forward") == 0

    def test_in_stage_1_a_bucket_empties_the_gradients_before_a_rank_makes_room_for_its_own(self) -> None:
        small, large = (step(1, reduce_bucket_elements=size) for size in (MILLION, 5 * MILLION))
        assert phases(large)["backward"] < phases(small)["backward"]

    def test_in_stage_3_it_is_there_through_the_whole_step(self) -> None:
        small, large = (step(3, reduce_bucket_elements=size) for size in (MILLION, 5 * MILLION))
        for phase in ("forward", "optimizer"):
            assert phases(large)[phase] - phases(small)[phase] == pytest.approx(2 * 4 * MILLION, abs=1024)

    def test_it_is_whole_however_little_trains(self) -> None:
        lora: dict[str, Any] = {"training.method": "lora", "training.lora.rank": 4}
        small, large = (step(2, reduce_bucket_elements=size, **lora) for size in (MILLION, 100 * MILLION))
        more = communication(large, "backward") - communication(small, "backward")
        assert more == pytest.approx(2 * 99 * MILLION, rel=0.01)

    def test_overlapping_doubles_it_below_stage_3(self) -> None:
        one, two = (step(2, reduce_bucket_elements=50 * MILLION, overlap_comm=on) for on in (False, True))
        more = communication(two, "backward") - communication(one, "backward")
        assert more == pytest.approx(2 * 50 * MILLION, abs=1024)
        assert phases(step(3, overlap_comm=True)) == phases(step(3, overlap_comm=False))

    @pytest.mark.parametrize("stage", [1, 2, 3])
    @pytest.mark.parametrize("elements", [1000, MILLION, 5 * MILLION, 100 * MILLION])
    def test_one_layer_stands_for_all_wherever_the_bucket_is_full(self, stage: int, elements: int) -> None:
        fields = {"parallelism.strategy": f"zero{stage}", "training.precision": HALF, "training.sequence_length": 64}
        made = job({**fields, **SIZES, "parallelism.reduce_bucket_elements": elements}, **LARGE)
        quick, whole = (phases(run_step(made, None, world=8, full=full)) for full in (False, True))
        if stage > 1 and elements == 5 * MILLION:
            # The bucket that is full, or belongs to two ranks, in one layer counts in the first of them.
            assert whole["backward"] <= quick["backward"] <= whole["backward"] + 2 * elements
            del quick["backward"], whole["backward"]
        assert quick == whole

    @pytest.mark.parametrize("stage", [1, 2])
    def test_without_it_gradients_stay_with_their_parameters(self, stage: int) -> None:
        whole = step(stage, world=1, reduce_bucket_elements=70 * MILLION)
        without = step(stage, world=1, reduce_bucket_elements=70 * MILLION, contiguous_gradients=False)
        assert phases(without)["backward"] < phases(whole)["backward"]
        last = next(p for p in without.timeline if p.phase == "backward")
        assert last.components["gradients"] == pytest.approx(last.components["parameters"], rel=0.05)


class TestGathering:
    """ZeRO-3 gathers ahead until ``stage3_max_live_parameters`` are there."""

    def test_the_live_limit_decides_with_prefetching(self) -> None:
        sizes = [communication(step(3, max_live_elements=n * MILLION), "forward") for n in (2, 4, 8)]
        assert sizes[0] < sizes[1] < sizes[2]
        assert sizes[1] - sizes[0] == pytest.approx(2 * 2 * MILLION, rel=0.6), "to one parameter more or less"

    def test_nothing_is_gathered_ahead_without_it(self) -> None:
        ahead, alone = (step(3, prefetch_bucket_elements=size) for size in (MILLION, 0))
        assert communication(alone, "forward") < communication(ahead, "forward")

    def test_the_last_layers_stay_for_their_backward_within_the_reuse_distance(self) -> None:
        quiet = {"prefetch_bucket_elements": 0}
        near, far = (step(3, max_reuse_elements=size, **quiet) for size in (0, 20 * MILLION))
        assert communication(far, "backward") > communication(near, "backward") + 2 * 5 * MILLION

    def test_one_rank_gathers_nothing(self) -> None:
        bucket = 2 * MILLION
        assert communication(step(3, world=1), "forward") == pytest.approx(bucket, abs=512)

    def test_small_parameters_stay_whole(self) -> None:
        divided, whole = (step(3, persistence_threshold_elements=size) for size in (0, 300_000))
        assert whole.static["parameters"] > divided.static["parameters"]

    @pytest.mark.parametrize("recompute", [False, True])
    def test_never_more_than_the_model_and_a_copy(self, recompute: bool) -> None:
        layer: Block = (((100, 200), (300, 600)), 5, True)
        blocks: tuple[Block, ...] = ((((1000, 2000),), 1, False), layer, (((1000, 2000),), 1, False))
        for limits in (Limits(), Limits(0, 0, 0), Limits(100, 500, 200)):
            sizes = gathered_bytes(blocks, limits, recompute=recompute, tied=False)
            assert 2000 <= sizes[0] <= 2 * 8000
            assert 600 <= sizes[1] <= 2 * 8000

    def test_without_ahead_and_reuse_one_parameter_is_there_at_a_time(self) -> None:
        blocks: tuple[Block, ...] = ((((1000, 2000),), 1, False), (((100, 200), (300, 600)), 5, True))
        assert gathered_bytes(blocks, Limits(0, 0, 0), recompute=True, tied=False) == (2000, 600, 2000)


class TestStep:
    def test_a_sub_group_bounds_what_is_updated_at_once(self) -> None:
        whole, parts = (step(3, sub_group_elements=size) for size in (1000 * MILLION, MILLION))
        assert phases(parts)["optimizer"] < phases(whole)["optimizer"]
        assert phases(parts)["backward"] == phases(whole)["backward"]
        below = (step(2, sub_group_elements=size) for size in (1000 * MILLION, MILLION))
        assert len({phases(result)["optimizer"] for result in below}) == 1, "stages 1 and 2 have none"

    def test_gradients_are_flattened_and_then_copied_in_fp32(self) -> None:
        """2 bytes of flat copy and 4 of masters' dtype beside the 2 that were there; then FusedAdam adds nothing."""
        fused: dict[str, Any] = {"training.optimizer": "adamw-fused", "training.max_grad_norm": None}
        result = step(2, **fused)
        part = result.static["optimizer_states"] / 12
        optimizer = next(p for p in result.timeline if p.phase == "optimizer")
        norm = 8 * 2048 * 512
        assert optimizer.components["temporaries"] == pytest.approx(max(6 * part, norm), rel=0.01)

    def test_accumulating_holds_two_partitions_in_the_backward(self) -> None:
        one, two = (step(2, **{"training.gradient_accumulation_steps": n}) for n in (1, 4))
        backward = [next(p for p in r.timeline if p.phase == "backward").components["gradients"] for r in (one, two)]
        assert backward[1] - backward[0] == pytest.approx(one.static["gradients"], rel=0.01)
        assert phases(one)["optimizer"] == phases(two)["optimizer"]


SUMS = Precision(weights="bf16", autocast=None, master_weights=True, gradients="fp32")


class TestDtypesOfGradients:
    """grad_accum_dtype, communication_data_type, immediate_grad_update."""

    def test_summed_in_fp32_stage_1_keeps_all_sums_on_every_rank(self) -> None:
        plain, sums = step(1), step(1, **{"training.precision": SUMS})
        elements = sum(record.numel * record.count for record in sums.build.records)
        assert phases(sums)["forward"] - phases(plain)["forward"] == pytest.approx(4 * elements, rel=0.01)
        assert sums.static["gradients"] == pytest.approx(6 * elements, rel=0.01), "beside those of each backward"
        at_once = step(1, immediate_gradients=True, **{"training.precision": SUMS})
        assert at_once.static["gradients"] == pytest.approx(4 * elements, rel=0.01)
        assert phases(at_once)["backward"] < phases(sums)["backward"]

    def test_summed_in_fp32_stages_2_and_3_keep_a_part_of_twice_the_size(self) -> None:
        for stage in (2, 3):
            plain, sums = step(stage), step(stage, **{"training.precision": SUMS})
            share = sum(record.numel * record.count for record in sums.build.records) / 8
            assert sums.static["gradients"] == pytest.approx(4 * share, rel=0.01)
            assert sums.static["optimizer_states"] == plain.static["optimizer_states"]

    @pytest.mark.parametrize("stage", [1, 2, 3])
    def test_another_dtype_on_the_wire_is_one_more_copy_of_a_bucket(self, stage: int) -> None:
        bucket = 5 * MILLION
        plain, wire = (step(stage, reduce_bucket_elements=bucket, communication_dtype=d) for d in (None, "fp32"))
        more = phases(wire)["backward"] - phases(plain)["backward"]
        assert 0 < more <= 4 * bucket + 2 * bucket * (stage == 3)

    def test_masters_are_a_copy_in_whatever_dtype(self) -> None:
        bare = step(2, **{"training.precision": Precision(weights="bf16", autocast=None, optimizer="bf16")})
        share = sum(record.numel * record.count for record in bare.build.records) / 8
        assert bare.static["optimizer_states"] == pytest.approx(6 * share, rel=0.01)

    def test_without_zero_gradients_are_flattened_and_stepped_in_fp32(self) -> None:
        result = step(0, **{"training.max_grad_norm": None})
        elements = sum(record.numel * record.count for record in result.build.records)
        at = {phase.phase: phase.components for phase in result.timeline}
        assert at["optimizer"]["temporaries"] >= 4 * elements
        assert result.static["optimizer_states"] == pytest.approx(12 * elements, rel=0.01)
