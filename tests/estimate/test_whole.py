"""Parts of layers that are counted as a whole do what their operations do one by one."""

from __future__ import annotations

from typing import Any, Callable, Hashable

import pytest

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.engine.whole import Part, Whole, describe, whole
from memlint.estimate.ops.basic import add, mul, scale
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.simulate import run_step
from memlint.job import replace_fields
from tests.estimate.exact_jobs import start_of

AGAIN = {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": False}
ADAPTED = {
    "training.method": "qlora",
    "training.precision.weights": "bf16",
    "training.precision.autocast": None,
    "training.quantization.type": "nf4",
    "training.lora.targets": "all-linear",
    "training.lora.dropout": 0.1,
}
SETUPS: dict[str, dict[str, Any]] = {
    "autocast": {},
    "autocast checkpointed": AGAIN,
    "half": {"training.precision.weights": "bf16", "training.precision.autocast": None},
    "reentrant": {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": True},
    "adapted": ADAPTED,
    "adapted checkpointed": {**ADAPTED, **AGAIN},
    "adapted under autocast": {**ADAPTED, **AGAIN, "training.precision.autocast": "bf16"},
    "eager": {**AGAIN, "training.attention": "eager"},
}


class Plain(Tape):
    """A tape on which every operation is a node of its own."""

    ran = 0

    def execute(self, node: Node) -> None:
        self.ran += 1
        super().execute(node)


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("model_type", ["gemma3n", "gemma3n_text", "gemma4", "gemma4_text"])
def test_a_step_is_the_same_to_the_byte(model_type: str, name: str) -> None:
    job = replace_fields(start_of(model_type), SETUPS[name])
    counted, plain = run_step(job), run_step(job, tape=Plain())
    assert counted.timeline == plain.timeline
    assert counted.one_kernel == plain.one_kernel
    assert counted.forward_end_bytes == plain.forward_end_bytes


class Layer:
    """Two products, the second of which trains."""

    def __init__(self) -> None:
        self.frozen = Weight("frozen", (64, 32), "bf16", False, None)
        self.trained = Weight("trained", (32, 64), "bf16", True, "bf16")

    def describe(self, weights: list[Any]) -> Hashable:
        return describe(self.frozen, weights), describe(self.trained, weights)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        inner = linear(f, x, self.frozen)
        return add(f, linear(f, scale(f, mul(f, inner, inner)), self.trained), x)


def _peaks(tape: Tape, action: Callable[[Tape, Tensor], Tensor]) -> list[Any]:
    start = Weight("start", (2, 48, 32), "bf16", True, "bf16")
    given = scale(tape, start)
    out = scale(tape, action(tape, given))
    forward = tape.pool.peak, tape.pool.peak_components, tape.pool.live
    tape.pool.begin()
    grad = tape.like(out)
    del given
    tape.run_backward(out, grad)
    return [forward, tape.pool.peak, tape.pool.peak_components, tape.pool.components]


def test_its_gradients_go_to_its_input_and_its_parameters() -> None:
    layers = [Layer(), Layer()]
    parts = [Part("pair", layer) for layer in layers]
    tape = Tape()
    counted = _peaks(tape, lambda f, x: whole(f, parts[1], layers[1], whole(f, parts[0], layers[0], x)))
    others = [Layer(), Layer()]
    assert counted == _peaks(Tape(), lambda f, x: others[1](f, others[0](f, x)))
    assert len(tape.wholes) == 1, "what one has been measured for the other is taken for"
    assert all(layer.trained.node is not None and layer.trained.node.grad is not None for layer in layers)


def test_what_keeps_a_tensor_of_its_own_is_not_counted_as_a_whole() -> None:
    layer, kept = Layer(), []

    def keeping(f: Tape, x: Tensor) -> Tensor:
        kept.append(scale(f, x))
        return layer(f, x)

    tape = Tape()
    out = whole(tape, Part("keeping", layer), keeping, scale(tape, Weight("start", (2, 32), "bf16", True, "bf16")))
    assert isinstance(out.node, Node)
    assert not isinstance(out.node, Whole)


def test_layers_of_different_kinds_share_what_was_measured() -> None:
    tape, plain = Tape(), Plain()
    job = replace_fields(start_of("gemma3n_text"), SETUPS["adapted checkpointed"])
    run_step(job, tape=tape)
    run_step(job, tape=plain)
    operations = sum(len(profile.backward) for profile in tape.wholes.values())
    assert tape.wholes and not any(profile.spoilt for profile in tape.wholes.values())
    assert operations < plain.ran / 4
