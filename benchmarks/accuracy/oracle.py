"""Reference points (one JSON object a line, see ../shared/oracle/README.md) turned into jobs and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.skipped import MOST_TOKENS, Inexpressible, Skipped, failure
from memlint.estimate.errors import Unsupported
from memlint.estimate.optimizer import RULES
from memlint.estimate.simulate import Step, run_step
from memlint.job import Checkpointing, Precision, Training, TrainingJob
from memlint.measure.trace.lines import numbered
from memlint.measure.trace.settings import CAPABILITY
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
CHECKPOINTING = {
    "none": Checkpointing(mode="none"),
    "nonreentrant": Checkpointing(mode="full", reentrant=False),
    "reentrant": Checkpointing(mode="full", reentrant=True),
}
ATTENTION = {name: name for name in ("eager", "sdpa", "flash")}
SIZES = ("peak_bytes", "param_bytes", "grad_bytes", "optim_bytes", "fwd_end_bytes", "static_before_fwd_bytes")
"""What a point is compared with."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One point beside its prediction; sizes in bytes."""

    point: dict[str, Any]
    predicted: int
    phase: str
    static: int
    forward_end: int
    phases: dict[str, int]
    parameters: int
    """Elements of the model."""

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


def read_points(path: str) -> list[dict[str, Any] | Skipped]:
    """Read a file of reference points; a line that holds none says so in its place."""
    return [
        Skipped(f"line {number}", "the line is no JSON object") if point is None else {"id": f"line {number}", **point}
        for number, point in numbered(path)
    ]


def job_of(point: dict[str, Any]) -> TrainingJob:
    """The job that a point describes. Raises Inexpressible with the reason where it describes none."""
    config = point.get("config")
    if not isinstance(config, dict):
        raise Inexpressible("config is no mapping")
    architecture = read_config({"model_type": point.get("model_type"), **config}, id=str(point.get("model")))
    if not isinstance(architecture, Architecture):
        raise Inexpressible(architecture[0].message)
    optimizer = _chosen(point, "optim", {**OPTIMIZERS, **{name: name for name in RULES}})
    return TrainingJob(
        model=str(point.get("model")),
        architecture=architecture,
        training=Training(
            objective=_chosen(point, "head", OBJECTIVES),
            micro_batch_size=_count(point, "batch"),
            sequence_length=_count(point, "seq"),
            precision=_chosen(point, "precision", PRECISIONS),
            optimizer=optimizer,
            checkpointing=_chosen(point, "ckpt", CHECKPOINTING),
            attention=_chosen(point, "attn", ATTENTION),
        ),
    )


def _chosen(point: dict[str, Any], name: str, known: dict[str, Any]) -> Any:
    value = point.get(name)
    if not isinstance(value, str) or value not in known:
        raise Inexpressible(f"{name} {value}" if name in point else f"{name} is not stated")
    return known[value]


def _count(point: dict[str, Any], name: str) -> int:
    value = point.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_TOKENS:
        raise Inexpressible(f"{name} {value} is no count" if name in point else f"{name} is not stated")
    return value


def _sizes(point: dict[str, Any]) -> None:
    """Raise Inexpressible where a point lacks a figure to compare with."""
    for name in SIZES:
        size = point.get(name)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise Inexpressible(f"{name} is no size")
    if not point["peak_bytes"] or not point["param_bytes"]:
        raise Inexpressible("a model of no bytes")
    if point["fwd_end_bytes"] <= point["static_before_fwd_bytes"]:
        raise Inexpressible("its forward leaves nothing")


def compare(point: dict[str, Any]) -> Comparison | Skipped:
    """Predict one point, or say why not."""
    try:
        _sizes(point)
        step = run_step(job_of(point), CAPABILITY)
    except (Inexpressible, Unsupported) as reason:
        return Skipped(str(point["id"]), str(reason))
    except Exception as problem:  # one point must not take the others' tables away; the table names it
        return Skipped(str(point["id"]), failure(problem))
    peak = max(step.timeline, key=lambda phase: phase.peak_bytes)
    return Comparison(
        point=point,
        predicted=peak.peak_bytes,
        phase=peak.phase,
        static=sum(step.static.values()),
        forward_end=step.forward_end_bytes,
        phases={phase.phase: phase.peak_bytes for phase in step.timeline},
        parameters=elements(step),
    )


def elements(step: Step) -> int:
    """Elements of the model of a simulated step, adapters left out."""
    return sum(record.count * record.numel for record in step.build.records if record.base)


def compare_all(path: str) -> tuple[list[Comparison], list[Skipped]]:
    """Predict every point of a file; those left out, with the reason, apart."""
    compared: list[Comparison] = []
    skipped: list[Skipped] = []
    for point in read_points(path):
        found = point if isinstance(point, Skipped) else compare(point)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            compared.append(found)
    return compared, skipped
