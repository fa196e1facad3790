"""A model's parameters, without a step."""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.families import registry
from memlint.estimate.records import Record
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture


def parameter_records(job: TrainingJob) -> list[Record]:
    """Every parameter of a job's model, undivided."""
    build = Build(job)
    registry.build_model(job, build, Env.of(job, None))
    return build.records


def count_parameters(architecture: Architecture) -> int:
    """Elements of a model as transformers builds it, tied weights once.

    Raises:
        Unsupported: there is no model of this architecture.
    """
    records = parameter_records(TrainingJob(model=architecture.id or "", architecture=architecture))
    return sum(r.count * r.numel for r in records)
