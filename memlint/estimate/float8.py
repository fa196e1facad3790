"""Float8 training: it has no model of its own and is computed as bf16, which an estimate says and allows for."""

from __future__ import annotations

from memlint.estimate.result import Estimate
from memlint.job import TrainingJob
from memlint.records import replace

UNCOMPILED = 81.77 / 47.77
"""Llama 3 8B on 8 H100s in float8, without torch.compile over with it, both in GiB: pytorch/torchtitan#812."""


def allowed_for(estimate: Estimate, job: TrainingJob) -> Estimate:
    """The estimate of a job in float8 with what is not counted; any other as it is."""
    if not job.training.precision.fp8:
        return estimate
    sentence = "float8 products are computed as bf16 ones: their scaled copies of inputs and weights are not counted"
    high = estimate.high_bytes
    if not job.training.compile:
        sentence += ", and without torch.compile the high end allows for what torchtitan measured of them"
        high += int((UNCOMPILED - 1) * estimate.allocated_bytes)
    return replace(estimate, high_bytes=high, assumptions=(*estimate.assumptions, sentence))
