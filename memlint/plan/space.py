"""Which remedies a job has: its options, dimension by dimension, in the handbook's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from memlint.plan import options, options_scale, options_zero
from memlint.plan.options_checkpointing import checkpointing
from memlint.plan.remedy import Remedy
from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob

DIMENSIONS = (
    "precision",
    "frozen-weights",
    "attention",
    "loss",
    "checkpointing",
    "optimizer",
    "step-in-backward",
    "batch",
    "evaluation",
    "buckets",
    "gathering",
    "persistence",
    "sub-group",
    "sharding",
    "tensor",
)
"""In the order in which an expert tries them, which is also the order of a plan's steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """Options that exclude each other; leaving the job as it is always is one more."""

    name: str
    remedies: tuple[Remedy, ...]
    """The strongest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What decides which remedies exist."""

    job: TrainingJob
    target: Target | None
    gpus: int
    """GPUs of the run."""
    parameters: int
    """Elements of the model, for FLOPs; 0 where unknown."""
    gpus_of_node: int = 1
    evaluation: bool = False
    """The run's evaluation does not surely fit beside its weights and states."""
    wide: bool = False
    """Offer tensor parallelism too: nothing else divides enough."""
    faster: bool = False
    """Offer changes that spend memory on speed too: no checkpointing, a larger micro batch."""


def remedy_space(setting: Setting) -> tuple[Dimension, ...]:
    """Return the dimensions in which the job has at least one option."""
    made = {
        "precision": options.mixed_precision(setting.job, setting.target),
        "frozen-weights": options.half_frozen_weights(setting.job, setting.target),
        "attention": options.fused_attention(setting.job),
        "loss": options.fused_loss(setting.job),
        "checkpointing": checkpointing(setting.job, setting.parameters, faster=setting.faster),
        "optimizer": options.optimizers(setting.job),
        "step-in-backward": options.step_in_backward(setting.job),
        "batch": options_scale.micro_batches(setting.job, faster=setting.faster),
        "evaluation": options_scale.evaluation_batches(setting.job) if setting.evaluation else (),
        "buckets": options_zero.buckets(setting.job),
        "gathering": options_zero.gathering(setting.job, setting.parameters),
        "persistence": options_zero.persistence(setting.job),
        "sub-group": options_zero.sub_group(setting.job, setting.parameters, setting.gpus),
        "sharding": options_scale.sharding(setting.job, setting.gpus),
        "tensor": (
            options_scale.tensor_parallel(setting.job, setting.gpus, setting.gpus_of_node) if setting.wide else ()
        ),
    }
    versions = setting.job.versions
    able = {name: tuple(one for one in made[name] if has_versions(one, versions)) for name in DIMENSIONS}
    return tuple(Dimension(name=name, remedies=able[name]) for name in DIMENSIONS if able[name])


def has_versions(remedy: Remedy, versions: Mapping[str, str]) -> bool:
    """Whether no library that the job names is too old for a remedy; an unnamed one counts as the newest."""
    from memlint.dialects.values import version_tuple

    for library, first in remedy.needs.items():
        own = version_tuple(versions.get(library))
        if own and own < version_tuple(first):
            return False
    return True


def all_remedies(setting: Setting) -> tuple[Remedy, ...]:
    """Return every remedy of the space on its own, in the handbook's order."""
    return tuple(remedy for dimension in remedy_space(setting) for remedy in dimension.remedies)
