"""A config that names nothing of its model to train: the run ends at once, and a prediction of it is that of no run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.dialects.base import Problem
from memlint.estimate.adapters import OUTPUT_LAYERS
from memlint.estimate.versions import before

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.job import Lora, TrainingJob

MOST_NAMES = 8
"""Names of modules that a message lists."""


def names_nothing(job: TrainingJob, estimate: Estimate) -> Problem | None:
    """MEM003 where nothing of the model trains, because names in the config are those of no module or parameter.

    Without an adapter's place PEFT raises (peft 0.21 tuners_utils.py inject_adapter), without a parameter the loss has
    no gradient. Nothing is said where the model's own names are not known: of one computed as another, and of one that
    sees or hears under transformers before 4.52, which called its parts otherwise.
    """
    architecture = job.architecture
    if architecture is None or estimate.trainable_parameters or estimate.method != "simulated":
        return None
    parts = any(name.endswith("_config") for name in architecture.config if name != "quantization_config")
    if architecture.approximate is not None or (parts and before(job, "transformers", 4, 52)):
        return None
    if job.training.lora is not None:
        return _adapters(job, job.training.lora)
    patterns = job.training.trainable_patterns
    return _parameters(job, patterns) if job.training.method == "freeze" and patterns else None


def _adapters(job: TrainingJob, lora: Lora) -> Problem | None:
    if lora.targets in ("all-linear", "default") or lora.target_parameters:
        return None
    names, targets = linear_names(job), lora.targets
    if isinstance(targets, str):
        named, verb, instead = f"`{targets}`", "matches", _alike("modules", names)
    else:
        named = _listed(targets)
        verb, instead = "names" if len(targets) == 1 else "name", _choices(targets, names)
    message = f"{named:.200} {verb} no module of {_model(job)}, and PEFT refuses to start{instead}"
    return _problem(job, "training.lora.targets", message)


def _parameters(job: TrainingJob, patterns: tuple[str, ...]) -> Problem:
    verb = "names" if len(patterns) == 1 else "name"
    message = f"{_listed(patterns):.200} {verb} no parameter of {_model(job)}, and nothing is left to train"
    return _problem(job, "training.trainable_patterns", message + _alike("parameters", linear_names(job)))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names[:MOST_NAMES])


def _model(job: TrainingJob) -> str:
    assert job.architecture is not None
    return job.architecture.id or "the model"


def _problem(job: TrainingJob, field: str, message: str) -> Problem:
    origin = job.origin(field)
    file = origin.file if origin is not None else None
    return Problem(code="MEM003", key=origin.key if origin is not None else (), message=message, file=file)


def linear_names(job: TrainingJob) -> list[str]:
    """Full names of the model's linear layers but its head, of each kind of layer once."""
    from memlint.estimate.counts import parameter_records

    found = [r.name.removesuffix(".weight") for r in parameter_records(job) if r.base and len(r.shape) == 2]
    tables = ("embed", "wte", "wpe", "norm", *OUTPUT_LAYERS)
    return [name for name in found if not any(word in name.rpartition(".")[2] for word in tables)]


def _alike(kind: str, names: list[str]) -> str:
    return f"; its {kind} are called like `{names[-1]}`" if names else ""


def _choices(targets: tuple[str, ...], names: list[str]) -> str:
    from memlint.dialects.values import nearest

    leaves = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    if not leaves:
        return ""
    if len(targets) == 1:
        close = nearest(targets[0], leaves, cutoff=0.6)
        if close is not None:
            return f"; did you mean `{close}`?"
    listed = ", ".join(f"`{leaf}`" for leaf in leaves[:MOST_NAMES])
    return f"; it has {listed}{' and others' if len(leaves) > MOST_NAMES else ''}"
