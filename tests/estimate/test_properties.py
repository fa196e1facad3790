"""What must hold for every job: monotony, sums, and the block shortcut."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step, simulate
from memlint.job import Precision, replace_fields
from tests.estimate.exact_jobs import SETUPS, WORLD, configs, starting
from tests.estimate.jobs import job

PRECISIONS = (
    Precision(weights="bf16", autocast=None),
    Precision(weights="fp32", autocast=None),
    Precision(weights="fp32", autocast="bf16"),
)
TYPES = ("llama", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "stablelm", "cohere")

setups = st.fixed_dictionaries(
    {
        "training.precision": st.sampled_from(PRECISIONS),
        "training.micro_batch_size": st.integers(1, 4),
        "training.sequence_length": st.sampled_from((64, 200, 512)),
        "training.checkpointing.mode": st.sampled_from(("none", "full")),
        "training.checkpointing.reentrant": st.booleans(),
        "training.attention": st.sampled_from(("eager", "sdpa", "flash")),
        "training.optimizer": st.sampled_from(("adamw", "adamw-fused", "adamw-8bit", "sgd", "lion", "adafactor")),
        "training.gradient_accumulation_steps": st.sampled_from((1, 4)),
        "training.method": st.sampled_from(("full", "lora")),
        "training.loss": st.sampled_from(("standard", "fused", "chunked")),
    }
)


def _job(kind: str, changes: dict[str, Any], layers: int = 8) -> Any:
    changes = dict(changes)
    if changes["training.method"] == "lora":
        changes["training.lora.rank"] = 8
    return job(changes, model_type=kind, num_hidden_layers=layers, pad_token_id=0)


def _peak(kind: str, changes: dict[str, Any], layers: int = 8) -> int:
    return max(phase.peak_bytes for phase in run_step(_job(kind, changes, layers)).timeline)


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(TYPES), changes=setups)
def test_the_block_shortcut_equals_the_full_run(kind: str, changes: dict[str, Any]) -> None:
    quick, whole = (run_step(_job(kind, changes), full=full) for full in (False, True))
    assert quick.timeline == whole.timeline
    assert quick.static == whole.static
    assert quick.forward_end_bytes == whole.forward_end_bytes


PLAIN = [name for name, changes in SETUPS.items() if not str(changes.get("parallelism.strategy")).startswith("zero")]
"""ZeRO's buckets fill at any of equal layers, so that the shortcut counts a full one at each."""


@settings(max_examples=80, deadline=None)
@given(job=st.sampled_from(list(configs())), name=st.sampled_from(PLAIN))
def test_the_block_shortcut_equals_the_full_run_of_every_type(job: tuple[str, dict[str, Any]], name: str) -> None:
    """Layers of several kinds in any order, towers before a language model, layers that share what others made."""
    start = starting(*job)
    if start is None:
        return
    changed = replace_fields(start, SETUPS[name])
    world = WORLD if changed.parallelism.strategy != "none" else 1
    try:
        quick, whole = (run_step(changed, (8, 0), world=world, full=full) for full in (False, True))
    except Unsupported:
        return
    assert quick.timeline == whole.timeline
    assert quick.static == whole.static
    assert quick.forward_end_bytes == whole.forward_end_bytes
    assert quick.host_bytes == whole.host_bytes


def test_fsdp_that_wraps_the_whole_model_gathers_all_its_layers() -> None:
    one_unit = {"parallelism.strategy": "fsdp", "parallelism.wrap": "none", "training.precision": PRECISIONS[0]}
    step = run_step(job(one_unit), world=8)
    whole = sum(record.count * record.numel * 2 for record in step.build.records)
    assert step.timeline[0].components["communication"] >= whole


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(TYPES), changes=setups)
def test_components_sum_to_the_peak(kind: str, changes: dict[str, Any]) -> None:
    estimate = simulate(_job(kind, changes))
    assert sum(estimate.components.values()) == estimate.allocated_bytes
    assert all(size >= 0 for size in estimate.components.values())
    for phase in estimate.timeline:
        assert sum(phase.components.values()) == phase.peak_bytes
        assert phase.end_bytes <= phase.peak_bytes
    assert estimate.low_bytes <= estimate.device_bytes <= estimate.high_bytes


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(TYPES),
    changes=setups,
    field=st.sampled_from(("training.micro_batch_size", "training.sequence_length")),
)
def test_more_batch_or_length_never_needs_less(kind: str, changes: dict[str, Any], field: str) -> None:
    assert _peak(kind, {**changes, field: changes[field] * 2}) >= _peak(kind, changes)


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(TYPES), changes=setups)
def test_more_layers_never_need_less(kind: str, changes: dict[str, Any]) -> None:
    assert _peak(kind, changes, 12) >= _peak(kind, changes, 8)


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(TYPES), changes=setups)
def test_checkpointing_needs_no_more_than_its_own_recomputation(kind: str, changes: dict[str, Any]) -> None:
    without = _peak(kind, {**changes, "training.checkpointing.mode": "none"})
    with_it = _peak(kind, {**changes, "training.checkpointing.mode": "full"})
    tokens = changes["training.micro_batch_size"] * changes["training.sequence_length"]
    # Saved inputs of the layers, and with autocast their weights' copies made again for one layer.
    allowance = 8 * tokens * 256 * 4 + 4 * (3 * 256 * 704 + 4 * 256 * 256)
    assert with_it <= without + allowance


def test_nothing_is_alive_after_the_step_but_what_rests() -> None:
    step = run_step(job())
    assert step.timeline[-1].end_bytes == sum(step.static.values()) + 2 * 1 * 256 * 8
