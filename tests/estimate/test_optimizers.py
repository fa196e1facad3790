"""States and temporaries of optimizers, against real ones whose storages were counted (``benchmarks/optimizers``)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from memlint.dialects.native_choices import OPTIMIZERS
from memlint.estimate.optimizer import OLD_BLOCK_8BIT, paged_bytes, rule_of, state_bytes, step_temporary_bytes
from memlint.estimate.optimizer_projected import low, step_bytes
from memlint.estimate.records import Record, Slot, is_embedding, slots_of
from memlint.estimate.simulate import simulate
from memlint.job import TrainingJob, replace_fields
from memlint.models.config import read_config
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


def test_embeddings_keep_32_bit_states_where_the_trainer_asks_for_it() -> None:
    table = Record("model.embed_tokens.weight", (2048, 256), "bf16", True, "bf16", 1, (0,))
    head = Record("lm_head.weight", (2048, 256), "bf16", True, "bf16", 1, (0,))
    quantised = 2 * (2048 * 256 + 4 * 2048)  # codes, and an fp32 scale for 256 of them
    assert state_bytes("adamw-8bit", slots_of([table, head])) == 2 * quantised
    asked = slots_of([table, head], fp32_embedding_states=True)
    assert state_bytes("adamw-8bit", asked) == 2 * 4 * 2048 * 256 + quantised
    assert state_bytes("adamw", asked) == state_bytes("adamw", slots_of([table, head]))


def test_what_deepspeed_flattens_is_no_embedding_any_more() -> None:
    training = {"training.optimizer": "adamw-8bit", "training.precision.weights": "bf16"}
    training |= {"training.precision.autocast": None, "training.precision.master_weights": True}
    for strategy, differs in (("none", True), ("zero0", False), ("zero2", False)):
        one = job({**training, "parallelism.strategy": strategy})
        other = job({**training, "parallelism.strategy": strategy, "training.fp32_embedding_states": True})
        assert (simulate(one).components != simulate(other).components) is differs, strategy


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert", "t5", "opt", "mamba", "gemma3n_text", "gpt_neox"])
def test_embeddings_are_those_of_transformers(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from memlint.estimate.counts import parameter_records

    objective = {"bert": "masked-lm", "t5": "seq2seq-lm"}.get(model_type, "causal-lm")
    head = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}.get(model_type, "AutoModelForCausalLM")
    with torch.device("meta"):
        model = getattr(transformers, head).from_config(transformers.AutoConfig.for_model(model_type))
    real = {tuple(m.weight.shape) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    started = replace_fields(
        TrainingJob(model=model_type, architecture=read_config({"model_type": model_type})),
        {"training.objective": objective},
    )
    built = [r for r in parameter_records(started) if is_embedding(r)]
    assert {record.shape for record in built} == real


def test_only_large_states_are_paged_and_no_copies_of_weights() -> None:
    small, large = Slot((64, 512), "fp32", "fp32", 4), Slot((512, 512), "fp32", "fp32", 1)
    assert paged_bytes("adamw-8bit", [small, large]) == 0
    assert paged_bytes("paged-adamw-8bit", [small]) == 0
    assert paged_bytes("paged-adamw-8bit", [small, large]) == 2 * 512 * 512
    assert paged_bytes("paged-adamw", [small, large]) == 2 * 4 * 512 * 512
    assert paged_bytes("paged-lion", [large]) == 4 * 512 * 512


def test_the_low_end_keeps_what_cannot_be_paged() -> None:
    zero = {"parallelism.strategy": "zero2", "training.precision.weights": "bf16", "training.precision.autocast": None}
    zero |= {"training.precision.master_weights": True}
    plain = simulate(job({**zero, "training.optimizer": "adamw-8bit"}))
    paged = simulate(job({**zero, "training.optimizer": "paged-adamw-8bit"}))
    moved = paged.host_bytes
    assert 0 < moved < paged.components["optimizer_states"] / 2
    assert plain.low_bytes - paged.low_bytes == pytest.approx(moved, rel=0.05)


def test_blocks_of_2048_values_share_a_scale_before_bitsandbytes_044() -> None:
    large = Slot((4096, 4096), "bf16", "bf16", 1)
    assert state_bytes("adamw-8bit", [large], block=OLD_BLOCK_8BIT) == 2 * (4096 * 4096 + 4 * 4096 * 2)
    start = job({**HALF, "training.optimizer": "adamw-8bit"})
    newest, old, next_one = [
        simulate(replace_fields(start, {"versions": versions})).static["optimizer_states"]
        for versions in ({}, {"bitsandbytes": "0.43.3"}, {"bitsandbytes": "0.44.0"})
    ]
    assert old < newest == next_one


@pytest.mark.parametrize("name", ["adamw-for-loop", "grokadamw"])
def test_a_loop_holds_the_last_temporary_of_the_parameter_before(name: str) -> None:
    """Counted on the CPU (benchmarks/optimizers): two equal matrices that are the largest take three of them."""
    shapes = [(50, 64), (999, 501), (999, 501), (501, 999)]
    records = [Record(f"m{i}.weight", s, "fp32", True, "fp32", 1, (0,)) for i, s in enumerate(shapes)]
    assert step_temporary_bytes(name, slots_of(records)) == 6_007_296
