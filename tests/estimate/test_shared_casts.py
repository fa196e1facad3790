"""Half copies that autocast caches of a weight used more than once, inside and outside of checkpoints."""

from __future__ import annotations

import pytest

from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.simulate import run_step
from memlint.job import replace_fields
from tests.estimate.exact_jobs import start_of

WIDTH = 64


class _Counting(Tape):
    """A tape that counts what reaches the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.autocast = "bf16"
        self.reached: list[str] = []

    def _accumulate(self, leaf: Leaf, grad: Tensor, cast: bool = False) -> None:
        self.reached.append(grad.dtype)
        super()._accumulate(leaf, grad, cast)


def backward(checkpointed: list[bool], *, reentrant: bool = False, twice: bool = True) -> _Counting:
    """A chain of products with one weight, after one with another, whose backward has run."""
    tape = _Counting()
    tape.counts_twice = twice
    first, weight = (Weight(name, (WIDTH, WIDTH), "fp32", True, None) for name in ("first", "shared"))
    x = linear(tape, tape.new((2, 8, WIDTH), "fp32"), first)
    for inside in checkpointed:
        if inside:
            x = tape.checkpoint(lambda x: linear(tape, linear(tape, x, weight), weight), (x,), reentrant=reentrant)
        else:
            x = linear(tape, x, weight)
    tape.autocast = None
    tape.cast_cache.clear()
    root, x = x, None  # type: ignore[assignment]
    tape.run_backward(root, tape.new(root.shape, "bf16"))
    return tape


@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("inside", [[True, True, True], [False, True], [True, False], [True, False, True]])
def test_the_gradients_of_all_uses_become_one(inside: list[bool], twice: bool) -> None:
    # One for each of the two weights.
    tape = backward(inside, twice=twice)
    assert tape.reached == ["fp32", "fp32"]
    assert not [node for node in tape.pending if node.grad is not None]


def test_each_reentrant_checkpoint_is_an_autocast_of_its_own() -> None:
    assert backward([True, True, True], reentrant=True).reached == ["fp32"] * 4


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("autocast", ["bf16", None])
def test_one_hybrid_layer_stands_for_all(autocast: str | None, reentrant: bool) -> None:
    fields = {
        "training.checkpointing.mode": "full",
        "training.checkpointing.reentrant": reentrant,
        "training.precision.weights": "fp32" if autocast else "bf16",
        "training.precision.autocast": autocast,
    }
    job = replace_fields(start_of("zamba2"), fields)
    quick, whole = (run_step(job, full=full) for full in (False, True))
    assert quick.timeline == whole.timeline
    assert quick.forward_end_bytes == whole.forward_end_bytes
