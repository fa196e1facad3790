"""Jobs of the runs in ``traces_{decoders,encoders,seq2seq,further,recent}.jsonl``: heads, target lengths, padding too.

The lines are made like those of :mod:`tests.estimate.traced`; ``head`` is ``trace_model``'s. Whisper's were traced with
mel features as input, which the tracer itself does not make.
"""

from __future__ import annotations

from typing import Any

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
}


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    return f"{traced.title(point)} {point['head']} {point['attention']} b{point['batch']}"


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    return replace_fields(
        traced.job(point),
        {
            "training.objective": OBJECTIVES[point["head"]],
            "training.target_sequence_length": point.get("target_seq"),
            "training.padding": bool(point.get("padding")),
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
    """Elements of all parameters."""
    return sum(record.count * record.numel for record in step.build.records)


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
