"""The phases of a traced step: a micro batch's forward and backward, and what the optimizer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memlint.measure.trace.phases import label
from memlint.measure.trace.recorder import Recorder


def micro_batch(
    recorder: Recorder, compute: Callable[[Any], Any], parameters: list[Any], inputs: dict[str, Any], number: int
) -> dict[str, int]:
    """Run forward and backward of step ``number``; the numbers of the events at which they begin and end."""
    label(recorder, inputs.values(), "inputs")
    marks = {"begin": len(recorder.events)}
    recorder.enter("forward", number)
    loss = compute(inputs)
    marks["forward_end"] = len(recorder.events)
    recorder.enter("backward")
    loss.backward()
    marks["backward_end"] = len(recorder.events)
    label(recorder, [p.grad for p in parameters if p.grad is not None], "grads")
    return marks


def update(recorder: Recorder, parameters: list[Any], driver: Any, max_grad_norm: float | None) -> None:
    """Clip, step, and let the gradients go."""
    recorder.enter("clip")
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm, foreach=True)
    recorder.enter("optimizer")
    driver.step()
    label(recorder, [value for state in driver.state.values() for value in state.values()], "optim")
    recorder.enter("zero_grad")
    driver.zero_grad(set_to_none=True)
