"""Layers that add to one tensor's gradient, or hold one input in attributes, run once for all of their kind."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.engine.graph import Visit
from memlint.estimate.engine.shared import Shared, shared
from memlint.estimate.engine.tape import Node, Tape
from memlint.estimate.simulate import run_step
from memlint.job import replace_fields
from tests.estimate.exact_jobs import start_of

ADAPTED = {"training.method": "qlora", "training.precision.weights": "fp16", "training.quantization.type": "int8"}
SETUPS: dict[str, dict[str, Any]] = {
    "whole": {},
    "checkpointed": {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": False},
    "reentrant": {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": True},
    "eight bits": ADAPTED,
    "eight bits checkpointed": {**ADAPTED, "training.checkpointing.mode": "full"},
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("model_type", ["t5", "umt5", "bart", "mbart", "whisper", "mllama", "bert"])
def test_one_layer_stands_for_all(model_type: str, name: str) -> None:
    if (model_type, name) == ("mllama", "reentrant"):
        pytest.skip("PyTorch refuses it: tests/estimate/test_reentrant.py")
    job = replace_fields(start_of(model_type), SETUPS[name])
    quick, whole = (run_step(job, full=full) for full in (False, True))
    assert quick.timeline == whole.timeline
    assert quick.forward_end_bytes == whole.forward_end_bytes


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("model_type", ["bloom", "gpt_neo", "mpt", "falcon"])
def test_what_a_layer_leaves_to_the_next_is_freed_once_where_only_some_are_checkpointed(
    model_type: str, every: int
) -> None:
    fields = {"training.checkpointing.every": every, "training.attention": "eager"}
    job = replace_fields(start_of(model_type), {**SETUPS["checkpointed"], **fields})
    quick, whole = (run_step(job, full=full) for full in (False, True))
    assert quick.timeline == whole.timeline


@pytest.mark.parametrize("model_type", ["albert", "deberta-v2", "gemma", "t5"])
def test_gradients_of_one_tensor_wait_for_the_last_before_they_are_accumulated(model_type: str) -> None:
    job = replace_fields(start_of(model_type), {"training.gradient_accumulation_steps": 2})
    quick, whole = (run_step(job, full=full) for full in (False, True))
    assert quick.timeline == whole.timeline
    held = {phase.phase: phase.end_bytes for phase in quick.timeline}
    once = {phase.phase: phase.end_bytes for phase in run_step(start_of(model_type)).timeline}
    assert held["backward"] == once["backward"]


def test_the_last_layer_of_a_decoder_is_not_run_apart() -> None:
    # The encoder's states get their first gradient from it.
    tape = _Watching()
    run_step(replace_fields(start_of("whisper"), SETUPS["checkpointed"]), tape=tape)
    assert len(tape.blocks) == 2
    assert tape.sums == 1


def test_a_tensor_without_a_history_is_shared_as_it_is() -> None:
    tape = Tape()
    frozen = tape.new((4, 8), "fp32")
    assert shared(tape, frozen) is frozen
    assert not tape.nodes


class _Watching(Tape):
    """A tape that remembers which equal blocks run backward, and whose gradients are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: set[int] = set()
        self.sums = 0

    def execute(self, node: Node) -> None:
        if isinstance(node, Visit):
            self.blocks.add(id(node.block))
        self.sums += isinstance(node, Shared)
        super().execute(node)
