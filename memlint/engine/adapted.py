"""Adapters that name nothing of the model: PEFT ends the run, and a prediction without them is that of no run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.dialects.base import Problem
from memlint.estimate.adapters import OUTPUT_LAYERS
from memlint.estimate.versions import before

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.job import TrainingJob

MOST_NAMES = 8
"""Names of modules that a message lists."""


def names_nothing(job: TrainingJob, estimate: Estimate) -> Problem | None:
    """MEM003 where no adapter of the job has a place in its model (peft 0.21 tuners_utils.py inject_adapter raises).

    Nothing is said where the modules' own names are not known: of a model computed as another one, and of one that sees
    or hears under transformers before 4.52, which called its parts otherwise.
    """
    lora, architecture = job.training.lora, job.architecture
    if lora is None or architecture is None or estimate.trainable_parameters or estimate.method != "simulated":
        return None
    if lora.targets in ("all-linear", "default") or lora.target_parameters or architecture.approximate is not None:
        return None
    parts = any(name.endswith("_config") for name in architecture.config if name != "quantization_config")
    if parts and before(job, "transformers", 4, 52):
        return None
    origin = job.origin("training.lora.targets")
    names, targets = linear_names(job), lora.targets
    if isinstance(targets, str):
        named, verb, instead = f"`{targets}`", "matches", _alike(names)
    else:
        named = ", ".join(f"`{target}`" for target in targets[:MOST_NAMES])
        verb, instead = "names" if len(targets) == 1 else "name", _choices(targets, names)
    return Problem(
        code="MEM003",
        key=origin.key if origin is not None else (),
        message=f"{named:.200} {verb} no module of {architecture.id or 'the model'}, and PEFT refuses to start{instead}",
        file=origin.file if origin is not None else None,
    )


def linear_names(job: TrainingJob) -> list[str]:
    """Full names of the model's linear layers but its head, of each kind of layer once."""
    from memlint.estimate.counts import parameter_records

    found = [r.name.removesuffix(".weight") for r in parameter_records(job) if r.base and len(r.shape) == 2]
    tables = ("embed", "wte", "wpe", "norm", *OUTPUT_LAYERS)
    return [name for name in found if not any(word in name.rpartition(".")[2] for word in tables)]


def _alike(names: list[str]) -> str:
    return f"; its modules are called like `{names[-1]}`" if names else ""


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
