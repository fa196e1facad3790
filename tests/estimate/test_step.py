"""A model is made once for several steps, none of which sees another."""

from __future__ import annotations

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.kernels import HUB, OPTIONAL
from memlint.estimate.step import Prepared, Step
from memlint.job import replace_fields
from tests.estimate.exact_jobs import SETUPS, configs, starting

OTHERS = ("qwen3_5", "qwen3_5_moe", "lfm2_vl", "apertus")
"""Types of further families whose layers may use optional packages."""
ALL = frozenset([*OPTIONAL, HUB])


def _seen(step: Step) -> tuple[object, ...]:
    timelines = step.timeline, step.one_kernel
    return (*timelines, step.static, step.forward_end_bytes, step.host_bytes, step.asked, step.missing)


@pytest.mark.parametrize("setup", ["full accumulated", "lora checkpointed", "dpo lora", "qlora reentrant"])
def test_a_second_step_of_one_model_is_that_of_a_new_one(setup: str) -> None:
    asking = 0
    for key in configs():
        start = starting(*key) if key[0] in ("hybrid", "mamba") or key[1]["model_type"] in OTHERS else None
        if start is None:
            continue
        job = replace_fields(start, SETUPS[setup])
        try:
            prepared = Prepared(job, (8, 0))
            first = prepared.run()
        except Unsupported:
            continue
        if not first.asked:
            continue
        asking += 1
        second = prepared.again().run(one_kernel_silu=True, kernels=ALL)
        assert _seen(second) == _seen(Prepared(job, (8, 0)).run(one_kernel_silu=True, kernels=ALL)), key
        assert _seen(prepared.again().run()) == _seen(first), key
    assert asking > 12
