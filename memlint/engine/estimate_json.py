"""The contract's `estimate` object: one prediction with the job it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from memlint.document.model import Document
from memlint.engine.place import origin_place
from memlint.engine.whole_run import with_evaluation
from memlint.estimate.result import COMPONENTS, Estimate, Evaluation
from memlint.hardware.target import host_memory
from memlint.job import TrainingJob

if TYPE_CHECKING:
    from memlint.hardware.target import Target

VERSION = 1
"""Of this object's form; a breaking change gets a new number."""


def estimate_object(
    *,
    document: Document,
    companions: Mapping[str, Document],
    dialect: str,
    job: TrainingJob,
    estimate: Estimate,
    target: Target | None,
    usable: int | None,
    verdict: str,
    approximate: str | None = None,
) -> dict[str, Any]:
    """Return the object of CONTRACT.md, `estimate --output-format json`. Sizes in bytes, per GPU."""
    from memlint.dialects.native import to_native

    architecture = job.architecture
    native = to_native(job)
    native["origins"] = {name: origin_place(origin, document, companions) for name, origin in job.origins.items()}
    assumptions = [*job.assumptions, *estimate.assumptions]
    if approximate:
        assumptions.append(approximate)
    return {
        "version": VERSION,
        "file": document.path,
        "dialect": dialect,
        "model": {
            "id": architecture.id if architecture else None,
            "family": architecture.family if architecture else None,
            "model_type": architecture.model_type if architecture else None,
            "parameters": estimate.parameters,
            "trainable_parameters": estimate.trainable_parameters,
            "source": architecture.source if architecture else None,
        },
        "job": native,
        "method": estimate.method,
        "peak": {
            "allocated_bytes": estimate.allocated_bytes,
            "reserved_bytes": estimate.reserved_bytes,
            "device_bytes": estimate.device_bytes,
            "low_bytes": estimate.low_bytes,
            "high_bytes": estimate.high_bytes,
            "phase": estimate.phase,
            "components": {name: estimate.components.get(name, 0) for name in COMPONENTS},
        },
        "static": {name: estimate.static.get(name, 0) for name in ("parameters", "gradients", "optimizer_states")},
        "forward_end_activation_bytes": estimate.forward_end_activation_bytes,
        "timeline": [
            {
                "phase": phase.phase,
                "peak_bytes": phase.peak_bytes,
                "end_bytes": phase.end_bytes,
                "components": dict(phase.components),
            }
            for phase in estimate.timeline
        ],
        "overheads": [
            {
                "name": part.name,
                "low_bytes": part.low_bytes,
                "expected_bytes": part.expected_bytes,
                "high_bytes": part.high_bytes,
                "source": part.source,
            }
            for part in estimate.overheads
        ],
        "evaluation": evaluation_object(with_evaluation(estimate, job, target).evaluation),
        "host": {"bytes": estimate.host_bytes, "available_bytes": host_memory(job.hardware.host_memory, target)},
        "target": None
        if target is None
        else {"name": target.name, "spec": target.spec, "gpus": target.gpus, "usable_bytes": usable},
        "verdict": verdict,
        "assumptions": list(dict.fromkeys(assumptions)),
    }


def evaluation_object(evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Return a predicted evaluation; None where the run has none, or none that may need more than the step."""
    if evaluation is None:
        return None
    return {
        "micro_batch_size": evaluation.rows,
        "device_bytes": evaluation.device_bytes,
        "low_bytes": evaluation.low_bytes,
        "high_bytes": evaluation.high_bytes,
        "allocated_bytes": evaluation.allocated_bytes,
        "components": {name: evaluation.components.get(name, 0) for name in COMPONENTS},
    }
