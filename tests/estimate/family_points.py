"""Jobs of the runs in ``traces_{decoders,encoders,seq2seq,further,recent}.jsonl``: heads, target lengths, padding too.

The lines are made like those of :mod:`tests.estimate.traced`; ``head`` is ``trace_model``'s. Whisper's were traced with
mel features as input, which the tracer itself does not make.
"""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.families import registry
from memlint.estimate.simulate import Step, run_step
from memlint.job import TrainingJob, replace_fields
from tests.estimate import traced

OBJECTIVES = {
    "causal": "causal-lm",
    "mlm": "masked-lm",
    "seqcls": "sequence-classification",
    "tokcls": "token-classification",
    "seq2seq": "seq2seq-lm",
    "image": "image-classification",
    "pixels": "token-classification",
    "written": "seq2seq-lm",
    "pairs": "causal-lm",
    "ctc": "causal-lm",
    "audio": "sequence-classification",
}


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    words = [name for name in ("accumulation", "train_last") if name in point]
    return " ".join([f"{traced.title(point)} {point['head']} {point['attention']} b{point['batch']}", *words])


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    last = "train_last" in point
    return replace_fields(
        traced.job(point),
        {
            "training.objective": OBJECTIVES[point["head"]],
            "training.target_sequence_length": point.get("target_seq"),
            "training.padding": bool(point.get("padding")),
            "training.freeze": tuple(point.get("freeze", ())),
            "training.gradient_accumulation_steps": point.get("accumulation", 1),
            **({"training.method": "freeze", "training.trainable_layers": point["train_last"]} if last else {}),
            "training.image_pixels": point.get("pixels"),
        },
    )


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated step of the same job on an A100."""
    return run_step(job(point), (8, 0), full=full)


def phases_of(point: dict[str, Any], step: Step) -> dict[str, int]:
    """Peak of each phase; heads that call CrossEntropyLoss themselves take their loss in the traced forward phase."""
    phases = traced.phases_of(step)
    if "loss" not in point["phase_peaks"]:
        phases["forward"] = max(phases["forward"], phases.pop("loss"))
    return phases


def parameters_of(step: Step) -> int:
    """Elements of the model's own parameters: a trace counts them before it adds an adapter."""
    return sum(record.count * record.numel for record in step.build.records if record.base)


def names_of(point: dict[str, Any]) -> set[str]:
    """Names of the parameters that run as they are: repeated layers appear once."""
    return {record.name for record in simulated(point, full=True).build.records}


def count(config: dict[str, Any], head: str = "causal") -> int:
    """Elements of a model with the head it is trained with, tied weights once."""
    start = TrainingJob(model="counted", architecture=traced.architecture(config))
    start = replace_fields(start, {"training.objective": OBJECTIVES[head]})
    build = Build(start)
    registry.build_model(start, build, Env.of(start, None))
    return sum(record.count * record.numel for record in build.records)


def agrees_with_its_trace(run: dict[str, Any]) -> None:
    """Hold parameters, peak, phase and every phase of a simulated run to its traced point."""
    step = simulated(run)
    assert parameters_of(step) == run["parameters"]
    phase, reference = traced.peak(run["phase_peaks"])
    predicted_phase, predicted = traced.peak(phases_of(run, step))
    assert predicted == pytest.approx(reference, rel=0.001)
    assert predicted_phase == phase
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.002)
    for name, reference in run["phase_peaks"].items():
        assert phases_of(run, step)[name] == pytest.approx(reference, rel=0.005), name


def is_extended_exactly(run: dict[str, Any]) -> None:
    """Hold a run that extends one layer for all equal ones to the run of every layer."""
    short, full = simulated(run), simulated(run, full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
    assert short.forward_end_bytes == full.forward_end_bytes
