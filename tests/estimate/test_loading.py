"""A model that is quantised while it is loaded may pass through half precision on the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.result import Estimate
from memlint.estimate.simulate import simulate
from memlint.job import Lora, Quantization, Training, TrainingJob, replace_fields
from memlint.models.catalog import find
from memlint.models.config import read_config


def estimate(version: str, **changes: Any) -> Estimate:
    row = find("meta-llama/Llama-3.1-8B")
    assert row is not None and row.config is not None
    training = Training(method="qlora", lora=Lora(), quantization=Quantization(), sequence_length=512)
    job = TrainingJob(
        model="m",
        architecture=read_config(row.config),  # type: ignore[arg-type]
        versions={"transformers": version},
        training=training,
    )
    return simulate(replace_fields(job, {"training.checkpointing.mode": "full", **changes}))


@pytest.mark.parametrize("version", ["5.0.0", "5.3.0"])
def test_threads_may_run_ahead_of_the_quantiser(version: str) -> None:
    """transformers 5.0 to 5.3: the high end holds the whole model in half precision, all else stays."""
    raced, calm = estimate(version), estimate("5.24.0")
    assert raced.high_bytes > 2 * raced.parameters > calm.high_bytes
    assert (raced.allocated_bytes, raced.low_bytes) == (calm.allocated_bytes, calm.low_bytes)
    assert [o.name for o in raced.overheads if o.name not in {c.name for c in calm.overheads}] == ["loading"]


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        ("4.57.0", {}),
        ("5.4.0", {}),
        ("5.3.0", {"training.quantization.type": "gptq"}),
    ],
)
def test_other_releases_and_formats_do_not(version: str, changes: dict[str, Any]) -> None:
    assert "loading" not in [o.name for o in estimate(version, **changes).overheads]
