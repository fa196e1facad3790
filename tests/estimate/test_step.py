"""A model is made once for several steps, none of which sees another."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.engine.tape import Tape
from memlint.estimate.errors import Unsupported
from memlint.estimate.kernels import HUB, OPTIONAL
from memlint.estimate.step import Prepared, Step
from memlint.job import replace_fields
from tests.estimate.exact_jobs import SETUPS, WORLD, configs, starting

OTHERS = ("qwen3_5", "qwen3_5_moe", "lfm2_vl", "apertus")
"""Types of further families whose layers may use optional packages."""
ALL = frozenset([*OPTIONAL, HUB])


def _seen(step: Step) -> tuple[object, ...]:
    timelines = step.timeline, step.one_kernel
    return (*timelines, step.static, step.forward_end_bytes, step.host_bytes, step.asked, step.missing)


@pytest.mark.parametrize(
    "setup", ["full accumulated", "lora checkpointed", "dpo lora", "qlora reentrant", "fsdp", "zero3"]
)
def test_a_second_step_of_one_model_is_that_of_a_new_one(setup: str) -> None:
    asking, world = 0, WORLD if setup in ("fsdp", "zero3") else 1
    for key in configs():
        start = starting(*key) if key[0] in ("hybrid", "mamba") or key[1]["model_type"] in OTHERS else None
        if start is None:
            continue
        job = replace_fields(start, SETUPS[setup])
        try:
            prepared = Prepared(job, (8, 0), world=world)
            first = prepared.run()
        except Unsupported:
            continue
        if not first.asked:
            continue
        asking += 1
        second = prepared.again().run(one_kernel_silu=True, kernels=ALL)
        assert _seen(second) == _seen(Prepared(job, (8, 0), world=world).run(one_kernel_silu=True, kernels=ALL)), key
        assert _seen(prepared.again().run()) == _seen(first), key
    assert asking > 12


@pytest.mark.parametrize("setup", ["lora", "lora checkpointed"])
def test_layers_that_ask_for_no_package_are_not_run_again(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    begin = Tape.begin_block

    def counted(self: Tape, *given: Any, **options: Any) -> Any:
        ran.append(self)
        return begin(self, *given, **options)

    monkeypatch.setattr(Tape, "begin_block", counted)
    layers = {"layer_types": ["linear_attention", "full_attention"] * 4, "num_hidden_layers": 8}
    start = starting("hybrid", {"model_type": "qwen3_5_text", **layers})
    assert start is not None
    prepared = Prepared(replace_fields(start, SETUPS[setup]), (8, 0))
    prepared.run()
    first = len(ran)
    prepared.again().run(one_kernel_silu=True, kernels=ALL)
    assert first - 1 == len(ran) - first
