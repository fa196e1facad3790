"""What the simulated step keeps for backward, tensor by tensor: the other side of a comparison with a trace.

The estimator's storages know a size and a component; where each was made is read from the call stack while one full
step runs, so that the estimator itself stays as it is.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from memlint.hardware.target import Target
from memlint.job import TrainingJob

_OPS = os.path.join("memlint", "estimate", "ops") + os.sep
_FAMILIES = os.path.join("memlint", "estimate", "families") + os.sep
_ESTIMATE = os.path.join("memlint", "estimate") + os.sep


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor kept from forward to backward. ``layer`` is None outside the layers; ``stack`` counts layer stacks."""

    bytes: int
    stack: int
    layer: int | None
    words: str


def simulated_kept(job: TrainingJob, target: Target | None = None) -> list[Kept]:
    """Run the simulated step with every layer and return what lives when forward and loss are done.

    Raises memlint.estimate.errors.Unsupported where the estimator has no model.
    """
    from memlint.estimate import step
    from memlint.estimate.engine import pool
    from memlint.estimate.env import Env
    from memlint.estimate.simulate import world_size

    live: dict[int, Kept] = {}
    result: list[Kept] = []
    place: list[int | None] = [None]
    stacks = [0, -1]
    first: list[int] = []
    make, call, boundary = pool.Pool.__init__, Env.call, step._phase

    def watch(storage: Any, size: int) -> None:
        # A storage tells of its beginning with its size, of its end with 0; an empty one of both with 0.
        if storage is not None and (size or id(storage) not in live):
            live[id(storage)] = Kept(storage.size, stacks[0], place[0], _words())
        elif storage is not None:
            del live[id(storage)]

    def watched(self: Any) -> None:
        make(self)
        self.watch = watch

    def layer(self: Any, f: Any, block: Any, index: int, *inputs: Any) -> Any:
        # A language model's layers are counted on from those of its tower, also from one that stands idle.
        if not first:
            first.append(index)
        if index <= stacks[1]:
            stacks[0] += 1
        stacks[1] = index
        place[0] = index - first[0]
        try:
            return call(self, f, block, index, *inputs)
        finally:
            place[0] = None

    def phase(tape: Any, name: str, *rest: Any) -> None:
        boundary(tape, name, *rest)
        if name == "forward":
            stacks[:] = [0, -1]
        if name == "loss":
            result.extend(live.values())

    with (
        mock.patch.object(pool.Pool, "__init__", watched),
        mock.patch.object(Env, "call", layer),
        mock.patch.object(step, "_phase", phase),
    ):
        capability = target.compute_capability if target is not None else None
        step.run_step(job, capability, world=world_size(job, target), full=True)
    return result


def _words() -> str:
    """The operation under way, and who in the model's family asked for it."""
    operation = caller = ""
    frame = sys._getframe(2)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not operation and _OPS in file:
            operation = name
        if _FAMILIES in file:
            caller = f"{os.path.basename(file).removesuffix('.py')}.{name}"
            break
        if _ESTIMATE not in file:
            break
        frame = frame.f_back  # type: ignore[assignment]
    return " in ".join(part for part in (operation, caller) if part) or "estimator"
