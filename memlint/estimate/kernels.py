"""Optional packages whose GPU kernels keep less than the PyTorch code that stands in for them.

transformers 5.24 takes a package's function when it can be imported and its own PyTorch one otherwise
(integrations/hub_kernels.py, use_kernel_func_from_hub_with_fallback); activations.py does the same for xIELU. A job has
a package when its project names it, when the settings do, or when its framework cannot run it without.
"""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from memlint.estimate.versions import before
from memlint.job import TrainingJob
from memlint.records import replace
from memlint.units import gib

FLA = "flash-linear-attention"
CONV = "causal-conv1d"
MAMBA = "mamba-ssm"
XIELU = "xielu"
XFORMERS = "xformers"

OPTIONAL = (FLA, CONV, MAMBA, XIELU, XFORMERS)
"""By their names on the package index (xielu: from its repository alone)."""

HUB = "kernels"
"""What only the least of a step has: functions that the package ``kernels`` loads on request (``use_kernels``)."""

ALIASES = {"fla-core": FLA}
"""The part of flash-linear-attention that holds its operators."""

ABSENT = "none"
"""As a version: the package is not installed."""

PACKED_IN_AXOLOTL = {"nemotron_h": (MAMBA, CONV), "falcon_h1": (MAMBA, CONV)}
"""Model types for which axolotl 0.19 refuses packed rows without these packages (monkeypatch/models/nemotron_h/
modeling.py:87, monkeypatch/models/falcon_h1/modeling.py:269 and :282)."""


def package(name: str) -> str | None:
    """The optional package that a name means, in any spelling; None where it means another one."""
    plain = name.lower().replace("_", "-")
    plain = ALIASES.get(plain, plain)
    return plain if plain in OPTIONAL else None


def installed(job: TrainingJob) -> frozenset[str]:
    """The optional packages that a job runs with, as far as its project, the settings or its framework say so."""
    return (_stated(job, True) | brought(job)) - ruled_out(job)


def ruled_out(job: TrainingJob) -> frozenset[str]:
    """What is stated not to be installed."""
    return _stated(job, False)


def _stated(job: TrainingJob, present: bool) -> frozenset[str]:
    named = [package(name) for name, version in job.versions.items() if (version != ABSENT) == present]
    return frozenset([name for name in named if name is not None])


def brought(job: TrainingJob) -> frozenset[str]:
    """What the framework itself installs or cannot run the job without."""
    if job.framework.partition(" ")[0] != "axolotl":
        return frozenset()
    # Requires-Dist of axolotl from 0.15 on (0.17 on: but for aarch64); packed rows of qwen3_next and qwen3_5 raise
    # without it in any case (0.19 monkeypatch/models/qwen3_next/modeling.py:152, qwen3_5/modeling.py:142).
    found = set() if before(job, "axolotl", 0, 15) and not job.training.packing else {FLA}
    if job.training.packing and job.architecture is not None:
        found.update(PACKED_IN_AXOLOTL.get(job.architecture.model_type, ()))
    return frozenset(found)


def exactly(job: TrainingJob, versions: Mapping[str, str]) -> TrainingJob:
    """The job on a machine that has these optional packages and no other."""
    others = {name: version for name, version in job.versions.items() if package(name) is None}
    return replace(job, versions={**others, **dict.fromkeys(OPTIONAL, ABSENT), **versions})


def least(job: TrainingJob, missing: Iterable[str]) -> frozenset[str]:
    """The packages with which a job keeps least: all that are not ruled out."""
    found = frozenset(OPTIONAL) - ruled_out(job)
    return found | {HUB} if FLA in missing else found


def sentences(job: TrainingJob, asked: Iterable[str]) -> tuple[str, ...]:
    """What an estimate says of packages that nobody names and its framework brings."""
    names = sorted(brought(job).intersection(asked) - _stated(job, True) - ruled_out(job))
    framework = job.framework.partition(" ")[0]
    return (f"{listed(names)} taken as installed: {framework} requires it for this job",) if names else ()


def sentence(missing: Iterable[str], allocated: int, low: int) -> str:
    """What an estimate says of the packages it does without: their names, and both peaks in GiB."""
    names = sorted(missing)
    are, them = ("is", "it") if len(names) == 1 else ("are", "them")
    return (
        f"{listed(names)} {are} not pinned: predicted with plain PyTorch code, {gib(allocated)} GiB allocated; "
        f"with {them} {gib(low)} GiB, which the low end allows for (setting `versions` says what is installed)"
    )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
