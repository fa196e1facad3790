"""A step of a model that torch.compile has taken whole; that the rule is inductor's is held in tests/measure."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.compiled import compiled_step
from memlint.estimate.engine.compiled_tape import CompiledTape
from memlint.estimate.simulate import Step, run_step, simulate
from memlint.job import Precision, TrainingJob, replace_fields
from tests.estimate.jobs import job

HALF = Precision(weights="bf16", autocast=None)
ROWS = 2 * 256
LOGITS = ROWS * 4096
"""Rows, tokens and words of the jobs below."""


def compiled(changes: dict[str, Any] | None = None, **fields: Any) -> TrainingJob:
    return job({"training.compile": True, "training.micro_batch_size": 2, **(changes or {})}, **fields)


def step_of(wanted: TrainingJob) -> Step:
    step = compiled_step(wanted, (8, 0), 1)
    assert step is not None
    return step


def peak(step: Step, phase: str) -> int:
    return next(p.peak_bytes for p in step.timeline if p.phase == phase)


def test_a_layer_keeps_products_their_operands_and_sums() -> None:
    more, fewer = (
        step_of(compiled({"training.precision": HALF}, num_hidden_layers=n)).forward_end_bytes for n in (9, 8)
    )
    hidden, heads, wide = 256, 8, 704
    # The layer's input and its middle sum, two normed operands, queries and the repeated keys and values, attention's
    # result; gate, up and their product: two bytes each. A row's two deviations and its logarithm a head: four.
    kept = ROWS * (2 * (8 * hidden + 3 * wide) + 4 * (2 + heads))
    random_states = 2 * 512
    assert more - fewer == kept + random_states


def test_half_logits_stay_beside_zeros_and_a_gradient() -> None:
    step = step_of(compiled({"training.precision": HALF}))
    assert peak(step, "backward") - peak(step, "forward") == pytest.approx(2 * 2 * LOGITS, rel=0.01)


def test_under_autocast_the_gradient_overwrites_the_half_logits_and_the_zeros_are_fp32() -> None:
    step = step_of(compiled())
    assert peak(step, "backward") == pytest.approx(peak(step, "forward"), rel=0.001)
    older = step_of(replace_fields(compiled(), {"versions": {"torch": "2.5.1"}}))
    grown = peak(older, "backward") - peak(step, "backward")
    assert grown == pytest.approx(2 * LOGITS, rel=0.05), "nothing is donated before torch 2.6"


@pytest.mark.parametrize(
    "changes",
    [
        {"training.compile": False},
        {"training.objective": "dpo"},
        {"framework": "torchtune 0.6"},
        {"parallelism.strategy": "zero3"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_model_that_is_not_one_graph_has_no_such_step(changes: dict[str, Any]) -> None:
    assert compiled_step(compiled(changes), (8, 0), 1) is None


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("mode", ["none", "full"])
@pytest.mark.parametrize("precision", [HALF, Precision(weights="fp32", autocast="bf16")], ids=["half", "autocast"])
@pytest.mark.parametrize("words", [512, 32768])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "gpt2"])
def test_compiling_never_raises_the_prediction_where_there_is_a_mask_anyway(
    method: str, mode: str, precision: Precision, words: int, model_type: str
) -> None:
    changes = {
        "training.padding": True,
        "training.method": method,
        "training.checkpointing.mode": mode,
        "training.precision": precision,
        "training.sequence_length": 512,
        "training.lora.targets": "all-linear",
    }
    fields: dict[str, Any] = {"model_type": model_type, "vocab_size": words}
    if method == "full":
        del changes["training.lora.targets"]
    wanted = compiled(changes, **fields)
    eager, with_compile = simulate(replace_fields(wanted, {"training.compile": False})), simulate(wanted)
    # The tape holds all that fused gradients are made of until the last of them is laid down: under eager attention a
    # little more than there is.
    assert with_compile.allocated_bytes <= eager.allocated_bytes * (1.005 if model_type == "gemma2" else 1)
    assert with_compile.low_bytes <= with_compile.device_bytes <= with_compile.high_bytes
    assert with_compile.high_bytes >= eager.device_bytes


def test_a_compiled_model_always_has_a_mask() -> None:
    changes = {"training.checkpointing.mode": "full", "training.precision": HALF}
    masked, bare = (step_of(compiled({**changes, "training.attention": kind})) for kind in ("sdpa", "flash"))
    assert masked.forward_end_bytes - bare.forward_end_bytes == 2 * 2 * 256 * 256


def test_accumulated_gradients_stand_beside_those_that_the_graph_gives_back() -> None:
    once, twice = (
        step_of(compiled({"training.gradient_accumulation_steps": n, "training.sequence_length": 16})) for n in (1, 2)
    )
    gradients = once.static["gradients"]
    assert peak(twice, "backward") - peak(once, "backward") == pytest.approx(gradients, rel=0.01)


def test_a_half_embedding_gathers_its_gradient_in_fp32() -> None:
    wanted = compiled({"training.precision": HALF, "training.sequence_length": 16}, vocab_size=32768)
    table = 32768 * 256
    step = step_of(wanted)
    eager = run_step(wanted, (8, 0), tape=None)
    assert peak(step, "backward") - eager.timeline[-1].end_bytes == pytest.approx(4 * table, rel=0.05)


@pytest.mark.parametrize("mode", ["none", "full"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_one_layer_stands_for_all(mode: str, method: str) -> None:
    changes: dict[str, Any] = {"training.checkpointing.mode": mode, "training.precision": HALF}
    if method == "lora":
        changes |= {"training.method": "lora", "training.lora.targets": "all-linear"}
    wanted = compiled(changes)
    timelines = [
        run_step(wanted, (8, 0), full=full, one_kernel_silu=True, tape=CompiledTape()).timeline
        for full in (True, False)
    ]
    assert [p.peak_bytes for p in timelines[0]] == [p.peak_bytes for p in timelines[1]]


def test_nothing_is_left_but_gradients() -> None:
    wanted = compiled()
    assert step_of(wanted).timeline[-1].end_bytes == run_step(wanted, (8, 0)).timeline[-1].end_bytes + ROWS * 8


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"training.objective": "dpo", "training.reference_model": "copy"}, "dpo"),
        ({"training.objective": "grpo"}, "grpo"),
        ({"parallelism.strategy": "fsdp", "parallelism.gpus": 2}, "fsdp"),
    ],
)
def test_what_is_not_followed_is_said_and_moves_the_low_end_alone(changes: dict[str, Any], word: str) -> None:
    plain = simulate(replace_fields(compiled(changes), {"training.compile": False}))
    found = simulate(compiled(changes))
    assert found.allocated_bytes == plain.allocated_bytes
    assert found.low_bytes < plain.low_bytes
    assert found.high_bytes == plain.high_bytes
    assert any("torch.compile" in text and word in text for text in found.assumptions)


def test_a_family_that_is_not_held_to_the_partitioner_moves_its_low_end_alone() -> None:
    fields = {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 32768,
    }
    eager, with_compile = simulate(compiled({"training.compile": False}, **fields)), simulate(compiled(**fields))
    assert with_compile.allocated_bytes == eager.allocated_bytes
    assert with_compile.low_bytes < eager.low_bytes
    assert with_compile.high_bytes == eager.high_bytes


class TestTorchtune:
    """Layers compiled one by one (families/torchtune_compiled.py)."""

    @staticmethod
    def layer(method: str, targets: tuple[str, ...] = ()) -> int:
        """What one more layer keeps at the end of forward."""
        changes = {"framework": "torchtune 0.4", "training.precision": HALF, "training.method": method}
        if method == "lora":
            changes |= {"training.lora.targets": targets, "training.lora.rank": 4, "training.lora.dtype": "bf16"}
        more, fewer = (run_step(compiled(changes, num_hidden_layers=n), (8, 0)).forward_end_bytes for n in (9, 8))
        return more - fewer

    def test_a_layer_keeps_what_the_partitioner_saves_of_it(self) -> None:
        hidden, heads, wide = 256, 8, 704
        whole = ROWS * (2 * (8 * hidden + 3 * wide) + 4 * heads)
        assert self.layer("full") == whole
        # Only what an adapter reads: the first normed operand, and the narrow tensor of each.
        adapted = self.layer("lora", ("q_proj", "v_proj"))
        assert adapted == whole - ROWS * 2 * (hidden + wide) + 2 * ROWS * 2 * 4
        assert self.layer("lora", ("q_proj", "k_proj", "v_proj", "output_proj", "mlp")) == whole + 7 * ROWS * 2 * 4

    @pytest.mark.parametrize("mode", ["none", "full"])
    def test_one_layer_stands_for_all(self, mode: str) -> None:
        wanted = compiled({"framework": "torchtune 0.4", "training.checkpointing.mode": mode})
        timelines = [run_step(wanted, (8, 0), full=full).timeline for full in (True, False)]
        assert [p.peak_bytes for p in timelines[0]] == [p.peak_bytes for p in timelines[1]]

    def test_gate_up_and_their_product_live_beside_two_more_of_their_size(self) -> None:
        changes = {"framework": "torchtune 0.4", "training.precision": HALF, "training.checkpointing.mode": "full"}
        narrow, wider = (
            run_step(compiled(changes, intermediate_size=width, vocab_size=64), (8, 0)) for width in (4096, 8192)
        )
        grown = peak(wider, "backward") - peak(narrow, "backward")
        weights = sum(wider.static[key] - narrow.static[key] for key in ("parameters", "optimizer_states"))
        gradients = wider.static["gradients"] - narrow.static["gradients"]
        # Seven layers' gradients and one of three of the last; what is kept of gate and up, and their gradients.
        one = gradients // 8
        assert grown - weights == pytest.approx(7 * one + one // 3 + 4 * ROWS * 2 * 4096, rel=0.01)
