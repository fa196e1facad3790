"""Reference points (one JSON object a line, see ../shared/oracle/README.md) turned into jobs and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memlint.estimate.simulate import run_step
from memlint.job import Checkpointing, Precision, Training, TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

PRECISIONS = {
    "bf16": Precision(weights="bf16", autocast=None),
    "fp16": Precision(weights="fp16", autocast=None),
    "fp32": Precision(weights="fp32", autocast=None),
    "bf16-autocast": Precision(weights="fp32", autocast="bf16"),
    "fp16-autocast": Precision(weights="fp32", autocast="fp16"),
}
OPTIMIZERS = {"adamw": "adamw", "adam8bit": "adamw-8bit", "adamw-fused": "adamw-fused"}
OBJECTIVES = {
    "causal": "causal-lm",
    "mlm": "masked-lm",
    "seqcls": "sequence-classification",
    "tokcls": "token-classification",
    "seq2seq": "seq2seq-lm",
}
A100 = (8, 0)
"""The points' attention kernels are picked as an A100 would."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One point beside its prediction; sizes in bytes."""

    point: dict[str, Any]
    predicted: int
    phase: str
    static: int
    forward_end: int
    phases: dict[str, int]

    @property
    def error(self) -> float:
        """Relative error of the allocated peak."""
        return self.predicted / int(self.point["peak_bytes"]) - 1

    @property
    def static_error(self) -> float:
        """Relative error of parameters, gradients and optimizer states together."""
        truth = sum(int(self.point[name]) for name in ("param_bytes", "grad_bytes", "optim_bytes"))
        return self.static / truth - 1

    @property
    def forward_end_error(self) -> float:
        """Relative error of what forward leaves alive beyond the static part."""
        truth = int(self.point["fwd_end_bytes"]) - int(self.point["static_before_fwd_bytes"])
        return self.forward_end / truth - 1


def read_points(path: str) -> list[dict[str, Any]]:
    """Read a file of reference points."""
    with open(path, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.strip()]


def job_of(point: dict[str, Any]) -> TrainingJob:
    """The job that a point describes."""
    architecture = read_config({"model_type": point["model_type"], **point["config"]}, id=point["model"])
    if not isinstance(architecture, Architecture):
        raise ValueError(f"{point['id']}: {architecture}")
    mode = point["ckpt"]
    return TrainingJob(
        model=point["model"],
        architecture=architecture,
        training=Training(
            objective=OBJECTIVES[point["head"]],
            micro_batch_size=point["batch"],
            sequence_length=point["seq"],
            precision=PRECISIONS[point["precision"]],
            optimizer=OPTIMIZERS.get(point["optim"], point["optim"]),
            checkpointing=Checkpointing(mode="none" if mode == "none" else "full", reentrant=mode == "reentrant"),
            attention=point["attn"],
        ),
    )


def compare(point: dict[str, Any]) -> Comparison:
    """Predict one point."""
    step = run_step(job_of(point), A100)
    peak = max(step.timeline, key=lambda phase: phase.peak_bytes)
    return Comparison(
        point=point,
        predicted=peak.peak_bytes,
        phase=peak.phase,
        static=sum(step.static.values()),
        forward_end=step.forward_end_bytes,
        phases={phase.phase: phase.peak_bytes for phase in step.timeline},
    )


def compare_all(path: str) -> Iterator[Comparison]:
    """Predict every point of a file."""
    for point in read_points(path):
        yield compare(point)
