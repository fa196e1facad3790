"""Routed experts that live and compute on the CPU: what the GPU is spared and what the host takes."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape
from memlint.estimate.host_experts import HostExperts, stored_bytes
from memlint.estimate.result import Estimate
from memlint.estimate.simulate import run_step, simulate
from memlint.hardware.parse import parse_target
from memlint.job import Checkpointing, Lora, Precision, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.units import GIB
from tests.estimate.jobs import architecture

HIDDEN, WIDTH, EXPERTS, LAYERS, RANK = 256, 512, 8, 3, 4
ELEMENTS = EXPERTS * 3 * HIDDEN * WIDTH
"""Elements of one layer's experts."""
ADAPTERS = EXPERTS * RANK * 3 * (HIDDEN + WIDTH)
"""Elements of the adapters on them."""

_MLA = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_theta": 10000,
}
V2_LITE: dict[str, Any] = {
    **_MLA,
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "topk_method": "greedy",
    "vocab_size": 102400,
    "tie_word_embeddings": False,
}
V3: dict[str, Any] = {
    **_MLA,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "n_group": 8,
    "topk_group": 4,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}


def tiny(model_type: str = "qwen3_moe", changes: dict[str, Any] | None = None, **lora: Any) -> TrainingJob:
    shape = architecture(
        model_type=model_type,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        moe_intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        vocab_size=1000,
        num_experts=EXPERTS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        head_dim=64,
    )
    training = Training(
        method="lora",
        lora=Lora(rank=RANK, targets=("q_proj",), **lora),
        precision=Precision(weights="bf16", autocast="bf16"),
        sequence_length=64,
    )
    job = TrainingJob(model="m", architecture=shape, training=training)
    return replace_fields(job, {"parallelism.offload": "experts", **(changes or {})})


def real(config: dict[str, Any]) -> Estimate:
    shape = read_config(config)
    assert isinstance(shape, Architecture)
    training = Training(
        method="lora",
        lora=Lora(rank=8, targets="all-linear", dtype="fp32"),
        precision=Precision(weights="bf16", autocast="bf16", trainable_weights="fp32"),
        checkpointing=Checkpointing(mode="full"),
        attention="sdpa",
        sequence_length=2048,
    )
    job = TrainingJob(model="m", architecture=shape, training=training)
    return simulate(replace_fields(job, {"parallelism.offload": "experts"}), parse_target("1xA100-80GB"))


@pytest.mark.parametrize("model_type", ["qwen3_moe", "mixtral"])
def test_the_gpu_holds_all_but_the_experts(model_type: str) -> None:
    on_gpu = simulate(tiny(model_type, {"parallelism.offload": "none"}))
    on_host = simulate(tiny(model_type))
    assert on_gpu.static["parameters"] - on_host.static["parameters"] == LAYERS * ELEMENTS * 2
    assert on_host.parameters == on_gpu.parameters


def test_adapters_of_all_experts_are_trained_on_the_host() -> None:
    on_gpu, on_host = simulate(tiny(changes={"parallelism.offload": "none"})), simulate(tiny())
    assert on_host.trainable_parameters - on_gpu.trainable_parameters == LAYERS * ADAPTERS
    assert on_host.static["optimizer_states"] == on_gpu.static["optimizer_states"]
    # bf16 weights, gradients and two Adam moments.
    assert on_host.host_bytes == pytest.approx(LAYERS * (ELEMENTS * 2 + ADAPTERS * 8), rel=1e-3)


@pytest.mark.parametrize(
    ("form", "size"),
    [
        ("bf16", 2 * ELEMENTS),
        ("int8", ELEMENTS + 4 * EXPERTS * (2 * WIDTH + HIDDEN)),
        ("fp8", ELEMENTS + 4 * ELEMENTS // 128**2),
        ("rawint4", ELEMENTS // 2 + ELEMENTS // 16),
        ("mxfp4", ELEMENTS // 2 + ELEMENTS // 32),
    ],
)
def test_the_host_holds_experts_in_their_format(form: str, size: int) -> None:
    held = simulate(tiny(changes={"parallelism.expert_format": form})).host_bytes
    assert held == pytest.approx(LAYERS * (size + ADAPTERS * 8), rel=1e-3)
    shapes = (EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
    assert sum(stored_bytes(shape, form) for shape in shapes) == size


def test_nothing_that_grows_with_an_expert_is_saved_on_the_gpu() -> None:
    narrow, wide = (run_step(replace_width(tiny(), width)) for width in (WIDTH, 4 * WIDTH))
    assert [p.peak_bytes for p in narrow.timeline] == [p.peak_bytes for p in wide.timeline]


def replace_width(job: TrainingJob, width: int) -> TrainingJob:
    assert job.architecture is not None
    changed = architecture(**{**job.architecture.config, "moe_intermediate_size": width})
    return TrainingJob(
        model="m", architecture=changed, training=job.training, parallelism=job.parallelism, hardware=job.hardware
    )


def test_experts_trained_in_full_take_gradients_and_states_of_the_host() -> None:
    on_host = simulate(tiny(changes={"training.method": "full", "training.lora": None}))
    assert on_host.host_bytes == pytest.approx(LAYERS * ELEMENTS * 8, rel=1e-3)
    assert on_host.trainable_parameters == on_host.parameters


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2"])
def test_one_process_holds_the_experts_of_all(strategy: str) -> None:
    changes = {"parallelism.strategy": strategy}
    two = simulate(tiny(changes=changes), parse_target("2xA100-80GB"))
    assert two.host_bytes == simulate(tiny()).host_bytes


def test_equal_layers_are_what_they_are_when_each_runs() -> None:
    whole, short = run_step(tiny(), full=True), run_step(tiny())
    assert [p.peak_bytes for p in whole.timeline] == [p.peak_bytes for p in short.timeline]


def test_a_model_without_routed_experts_says_so() -> None:
    job = replace_fields(TrainingJob(model="m", architecture=architecture()), {"parallelism.offload": "experts"})
    assert any("no effect on `llama`" in said for said in simulate(job).assumptions)


def test_deepseek_v2_lite_takes_what_ktransformers_publishes() -> None:
    """KTransformers' user guide of fine-tuning: 6.08 GB with LoRA in bf16."""
    result = real(V2_LITE)
    assert result.parameters == pytest.approx(15.71e9, rel=1e-3)
    assert result.low_bytes < 6.08e9 < result.high_bytes


def test_deepseek_v3_fits_where_its_experts_do_not() -> None:
    """KTransformers' user guide of fine-tuning: 70 GB over all GPUs, of the whole model's 671 billion parameters."""
    result = real(V3)
    assert result.parameters == pytest.approx(671.03e9, rel=1e-3)
    assert result.high_bytes < 70e9
    assert 1200 * GIB < result.host_bytes < 1300 * GIB


@pytest.mark.parametrize(("world", "rows"), [(1, 1), (4, 8)])
def test_rank_0_gathers_the_rows_of_all_ranks(world: int, rows: int) -> None:
    """base.py: torch.cat of what it gathered; alone it copies bf16 rows as they are."""
    build = Build(tiny(changes={"parallelism.strategy": "ddp"}), world)
    experts = HostExperts(build, "experts", EXPERTS, HIDDEN, WIDTH)
    tape = Tape()
    tape.grad_enabled = False
    x, ids, weights = tape.new((64, HIDDEN), "bf16"), tape.new((64, 2), "int64"), tape.new((64, 2), "fp32")
    before = tape.pool.live
    tape.pool.begin()
    out = experts(tape, x, ids, weights)
    assert tape.pool.live - before == 64 * HIDDEN * 2
    scattered = 64 * HIDDEN * 2 if world > 1 else 0
    assert tape.pool.peak - before == rows * 64 * HIDDEN * 2 + scattered
    assert out.shape == x.shape
