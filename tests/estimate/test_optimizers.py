"""States and temporaries of optimizers, against real ones whose storages were counted (``benchmarks/optimizers``)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from memlint.dialects.native_choices import OPTIMIZERS
from memlint.estimate.optimizer import rule_of, state_bytes, step_temporary_bytes
from memlint.estimate.optimizer_projected import low, step_bytes
from memlint.estimate.records import Record, Slot, slots_of
from memlint.estimate.simulate import simulate
from tests.estimate.jobs import job

with open(os.path.join(os.path.dirname(__file__), "optimizer_points.jsonl"), encoding="utf-8") as file:
    POINTS = [json.loads(line) for line in file]
LAYER = {
    "input_layernorm": (256,),
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
    "post_attention_layernorm": (256,),
    "mlp.up_proj": (700, 256),
    "mlp.down_proj": (256, 700),
}
PROJECTING = ("galore-adamw", "galore-adafactor", "apollo")
HALF = {"training.precision.weights": "bf16", "training.precision.autocast": None}


def slots(point: dict[str, Any]) -> list[Slot]:
    """The parameters of benchmarks/optimizers/kinds.py."""
    shapes = {"model.embed_tokens": (2000, 256)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in LAYER.items()}
    shapes |= {"model.norm": (256,)} | ({} if point["tied"] else {"lm_head": (2000, 256)})
    dtype = point["dtype"]
    rank = point["rank"] if point["optimizer"] in PROJECTING else 0
    return slots_of(
        [
            Record(name + ".weight", shape, dtype, True, dtype, 1, (0,), rank=rank if name.endswith("_proj") else 0)
            for name, shape in shapes.items()
        ]
    )


def named(point: dict[str, Any]) -> str:
    return f"{point['optimizer']} {point['dtype']}{' tied' if point['tied'] else ''}"


@pytest.mark.parametrize("point", POINTS, ids=named)
def test_states_are_those_of_the_real_optimizer(point: dict[str, Any]) -> None:
    parameters = sum(slot.count * slot.bytes for slot in slots(point))
    assert state_bytes(point["optimizer"], slots(point)) == pytest.approx(point["states"], abs=0.0005 * parameters)


@pytest.mark.parametrize("point", POINTS, ids=named)
def test_temporaries_of_a_step_are_those_of_the_real_optimizer(point: dict[str, Any]) -> None:
    name = point["optimizer"]
    if name in ("galore-adamw", "apollo"):
        found = step_bytes(name, slots(point), renews=False)  # the points are of a step between two renewals
    else:
        found = step_temporary_bytes(name, slots(point))
    parameters = sum(slot.count * slot.bytes for slot in slots(point))
    assert found == pytest.approx(point["temporaries"], abs=0.0005 * parameters)


def test_every_optimizer_of_the_job_file_has_a_rule_that_was_meant() -> None:
    like_adamw = {name for name in OPTIMIZERS if rule_of(name) is rule_of("adamw")}
    assert like_adamw == {
        *("adam", "adamax", "adamw", "adamw-foreach", "adopt", "nadam", "radam"),
        *("schedule-free-adamw", "schedule-free-radam"),
    }


def matrix(**fields: Any) -> Slot:
    return Slot(**{"shape": (4096, 1024), "dtype": "bf16", "grad_dtype": "bf16", "count": 1, "rank": 64, **fields})


def test_a_projection_of_fp32_gradients_holds_all_singular_vectors() -> None:
    half, full = (
        state_bytes("galore-adamw", [matrix()]),
        state_bytes("galore-adamw", [matrix(dtype="fp32", grad_dtype="fp32")]),
    )
    assert half == 2 * (64 * 1024) + 2 * 2 * (64 * 4096)
    assert full == 4 * (1024 * 1024) + 2 * 4 * (64 * 4096)


def test_a_rank_above_the_shorter_side_is_that_side() -> None:
    assert low(matrix(rank=5000)).shape == (1024, 4096)


def test_renewing_a_projection_takes_the_gradient_in_fp32_and_its_decomposition() -> None:
    between, renewing = (step_bytes("galore-adamw", [matrix()], renews=renews) for renews in (False, True))
    assert between == 2 * matrix().bytes + 3 * (2 * 64 * 4096)
    assert renewing == 3 * 4 * matrix().numel + 4 * 1024 * 1024 + 4 * 1024 + matrix().bytes


@pytest.mark.parametrize("optimizer", ["galore-adamw", "apollo"])
def test_embedding_and_head_keep_whole_states_beside_projected_layers(optimizer: str) -> None:
    found = simulate(job({**HALF, "training.optimizer": optimizer, "training.optimizer_rank": 8}))
    tables = 2 * 4096 * 256 * 2
    assert found.static["optimizer_states"] > 2 * tables
    assert (
        found.static["optimizer_states"]
        < simulate(job({**HALF, "training.optimizer": "adamw"})).static["optimizer_states"]
    )


def test_named_targets_alone_are_projected() -> None:
    def states(*targets: str) -> int:
        changes = {**HALF, "training.optimizer": "galore-adamw", "training.optimizer_targets": targets}
        return simulate(job({**changes, "training.optimizer_rank": 8})).static["optimizer_states"]

    assert states("all-linear") < states() < states("mlp") < states("no_such_layer")
    assert states("no_such_layer") == simulate(job({**HALF, "training.optimizer": "adamw"})).static["optimizer_states"]


def test_flash_adamw_keeps_8_bits_of_each_moment_and_of_the_rounding_error() -> None:
    n = matrix().numel
    assert state_bytes("flash-adamw", [matrix(rank=0)]) == 2 * (n + 2 * n // 32) + n
    assert state_bytes("flash-adamw", [matrix(rank=0, dtype="fp32")]) == 2 * (n + 2 * n // 32)


def test_rounding_errors_of_16_bit_weights_are_kept_by_optimi() -> None:
    slot = matrix(rank=0)
    assert state_bytes("adamw-optimi", [slot]) == 3 * slot.bytes
    assert state_bytes("adamw-optimi", [matrix(rank=0, dtype="fp32")]) == 2 * 2 * slot.bytes + 512


def test_lomo_steps_in_fp32_copies_and_not_where_weights_are_fp32() -> None:
    slot, full = matrix(rank=0), matrix(rank=0, dtype="fp32", grad_dtype="fp32")
    assert step_temporary_bytes("lomo", [slot]) == 2 * full.bytes - slot.bytes
    assert step_temporary_bytes("adalomo", [slot]) == 3 * full.bytes - slot.bytes
    assert step_temporary_bytes("lomo", [full]) == 0
    assert step_temporary_bytes("adalomo", [full]) == 2 * full.bytes


def test_a_step_inside_backward_takes_its_temporaries_there() -> None:
    def phases(optimizer: str) -> dict[str, int]:
        changes = {**HALF, "training.optimizer_in_backward": True, "training.max_grad_norm": None}
        found = simulate(job({**changes, "training.optimizer": optimizer, "training.sequence_length": 16}))
        return {phase.phase: phase.peak_bytes for phase in found.timeline}

    stepping, plain = phases("lomo"), phases("sgd")
    assert stepping["backward"] > plain["backward"] + 4096 * 256
    assert stepping["optimizer"] == plain["optimizer"]


@pytest.mark.parametrize("optimizer", ["lion-bnb", "rmsprop-bnb"])
def test_32_bit_optimizers_of_bitsandbytes_hold_fp32_and_step_in_place(optimizer: str) -> None:
    slot = matrix(rank=0)
    assert state_bytes(optimizer, [slot]) == 2 * slot.bytes
    assert step_temporary_bytes(optimizer, [slot]) == 0
