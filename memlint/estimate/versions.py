"""Library versions of a job as numbers."""

from __future__ import annotations

from memlint.job import TrainingJob


def version_of(job: TrainingJob, name: str) -> tuple[int, ...]:
    """A library's version (``4.36.2`` -> (4, 36, 2)); empty where the job does not state it: the newest is meant."""
    stated = job.versions.get(name)
    if not stated:
        return ()
    numbers = []
    for part in str(stated).split("."):
        digits = "".join([c for c in part if c.isdigit()])
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def before(job: TrainingJob, name: str, *version: int) -> bool:
    """Whether the job states a version of the library older than ``version``."""
    found = version_of(job, name)
    return bool(found) and found < version
