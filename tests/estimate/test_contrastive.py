"""Training of text embeddings against sentence-transformers' own losses traced on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step, simulate
from memlint.job import Checkpointing, Training, TrainingJob, replace_fields
from tests.estimate.contrastive_points import job, simulated, title
from tests.estimate.traced import architecture, peak, phases_of, points

POINTS = points("traces_contrastive.jsonl")


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    step = simulated(run)
    phases, traced = phases_of(step), run["phase_peaks"]
    assert peak(phases)[1] == pytest.approx(peak(traced)[1], rel=0.001)
    assert phases["backward"] == pytest.approx(traced["backward"], rel=0.001)
    if "mini_batch" not in run:
        assert phases["loss"] == pytest.approx(traced["loss"], rel=0.001)
    assert phases["optimizer"] == pytest.approx(traced["optimizer"], rel=0.001)
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.001)


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_parameters_are_those_of_the_model_without_a_head(run: dict[str, Any]) -> None:
    records = simulated(run).build.records
    assert sum(r.count * r.numel for r in records if r.base) == run["parameters"]


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    short, full = simulated(run), simulated(run, full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
    assert short.forward_end_bytes == full.forward_end_bytes


@pytest.mark.parametrize("run", [p for p in POINTS if p["columns"] == 2], ids=title)
def test_more_columns_and_more_rows_never_take_less(run: dict[str, Any]) -> None:
    given = job(run)
    sizes = [
        peak(phases_of(run_step(replace_fields(given, {"training.columns": columns}), (8, 0))))[1]
        for columns in (2, 3, 4, 6)
    ]
    assert sizes == sorted(sizes)
    wide = replace_fields(given, {"training.micro_batch_size": 2 * run["batch"]})
    assert peak(phases_of(run_step(wide, (8, 0))))[1] >= sizes[0]


def small(**fields: Any) -> TrainingJob:
    run = next(p for p in POINTS if p["config"]["model_type"] == "bert" and p["precision"] == "fp32")
    return replace_fields(job(run), {f"training.{name}": value for name, value in fields.items()})


def highest(given: TrainingJob) -> int:
    return simulate(given).allocated_bytes


def test_a_mini_batch_takes_the_place_of_the_batch_in_memory() -> None:
    whole = highest(small(micro_batch_size=256))
    cached = [highest(small(micro_batch_size=256, embedding_mini_batch=rows)) for rows in (8, 32, 128)]
    assert cached == sorted(cached)
    assert cached[-1] < whole
    few, many = (highest(small(micro_batch_size=rows, embedding_mini_batch=32)) for rows in (64, 1024))
    assert few <= many < 1.1 * few


def test_a_mini_batch_that_is_no_smaller_than_the_batch_is_the_batch() -> None:
    assert highest(small(embedding_mini_batch=16)) == highest(small(embedding_mini_batch=64))


def test_the_last_token_costs_two_more_tensors_of_all_tokens_than_the_first() -> None:
    mean, first, last = (highest(small(pooling=kind)) for kind in ("mean", "cls", "last-token"))
    assert mean <= first < last


def test_the_gradients_of_one_column_wait_for_those_of_the_other() -> None:
    step = run_step(small(gradient_accumulation_steps=2))
    once = run_step(small())
    before, after = phases_of(once)["backward"], phases_of(step)["backward"]
    assert after - before == once.static["gradients"]


def test_the_components_sum_to_the_peak() -> None:
    for run in POINTS[:12]:
        for phase in simulated(run).timeline:
            assert sum(phase.components.values()) == phase.peak_bytes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallelism.strategy": "zero3"}, "divided"),
        ({"parallelism.strategy": "fsdp"}, "divided"),
        ({"training.optimizer_in_backward": True}, "optimizer in backward"),
    ],
)
def test_what_has_no_model_says_so(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        run_step(replace_fields(small(), changes), world=8)


@pytest.mark.parametrize("kind", ["t5", "whisper", "vit", "mamba", "esm", "mobilebert"])
def test_types_without_a_model_of_it_say_so(kind: str) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    training = Training(objective="contrastive", checkpointing=Checkpointing())
    given = TrainingJob(model="tiny", architecture=architecture({"model_type": kind, **sizes}), training=training)
    with pytest.raises(Unsupported, match="contrastive"):
        run_step(given)


@pytest.mark.parametrize(
    "kind",
    ["albert", "camembert", "convbert", "deberta-v2", "ernie", "eurobert", "gte", "jina_embeddings_v3", "layoutlm"]
    + ["megatron-bert", "nomic_bert", "nystromformer", "rembert", "roberta-prelayernorm", "roformer", "squeezebert"]
    + ["gemma3_text", "qwen2", "qwen2_moe", "opt", "olmo2"],
)
def test_further_types_have_a_body_to_embed_with(kind: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    given = TrainingJob(
        model="tiny",
        architecture=architecture({"model_type": kind, **sizes, "vocab_size": 256}),
        training=Training(objective="contrastive", micro_batch_size=4, sequence_length=64),
    )
    short, full = run_step(given), run_step(given, full=True)
    assert [p.peak_bytes for p in short.timeline] == [p.peak_bytes for p in full.timeline]
    assert short.timeline[-1].end_bytes == full.timeline[-1].end_bytes
