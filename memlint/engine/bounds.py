"""Sizes that no run has: a config may come from anybody, and an estimate takes time in proportion to some of them."""

from __future__ import annotations

from typing import Any, Iterator

from memlint.dialects.base import Problem
from memlint.job import Training, TrainingJob

MAX_TOKENS = 1 << 27
"""Tokens of one forward on one GPU: a hundred times what the largest fits."""

MAX_SCORED_ROWS = 4096
"""Rows of one forward whose log-probabilities are taken row by row: no preference run has a tenth of it."""

MAX_DRAWN_ROWS = 128
"""Rows of a micro batch whose varying lengths are drawn, 4096 times (estimate/varying_lengths.py)."""

MAX_REFLECTIONS = 512
"""Rank of an HRA adapter, each of whose columns is a step of its own (PEFT's default is 8)."""

_SCORED = frozenset({"dpo", "ipo", "simpo", "orpo", "cpo", "kto", "grpo", "rloo", "ppo"})
_UNREMARKABLE = 65536
"""No field has a lower bound than this (dialects/native_fields.py): below it nothing need be looked up."""


def beyond_bounds(job: TrainingJob) -> tuple[Problem, ...]:
    """Return MEM003 for each number of the job beyond the native job file's bounds, whatever dialect it came from."""
    found: list[Problem] = []
    training = job.training
    for section, record in (
        ("training", training),
        ("training.lora", training.lora),
        ("training.quantization", training.quantization),
        ("training.checkpointing", training.checkpointing),
        ("parallelism", job.parallelism),
    ):
        for name in getattr(record, "__slots__", ()):
            value = getattr(record, name)
            if value.__class__ is int and value > _UNREMARKABLE:
                found += _beyond(job, section, name, value)
    if not found:
        found += [_problem(job, at, message) for at, message in _together(training)]
    return tuple(found)


def _together(training: Training) -> Iterator[tuple[str, str]]:
    """Yield field and message of what is within its own bounds, and beyond what any run does beside the others."""
    rows, length, at = training.micro_batch_size, training.sequence_length, "training.micro_batch_size"
    if rows * (length + (training.target_sequence_length or 0)) > MAX_TOKENS:
        where = at if rows > 1 else "training.sequence_length"
        yield where, f"more than {MAX_TOKENS:,} tokens in one forward: micro batch {rows:,} x {length:,}"
    elif rows > MAX_SCORED_ROWS and training.objective in _SCORED:
        yield at, f"a micro batch of {rows:,}: more than {MAX_SCORED_ROWS:,} for `{training.objective}`"
    elif training.length_deviation and rows > MAX_DRAWN_ROWS:
        yield at, f"a micro batch of {rows:,} beside `length_deviation`: lengths are drawn for {MAX_DRAWN_ROWS} at most"
    deviation, mean = training.length_deviation, training.length_mean or 0
    if training.drops_long and deviation and mean > length + deviation:
        yield "training.length_mean", f"nearly every sample of {mean:,} tokens is longer than {length:,}, and left out"
    if training.method == "hra" and training.lora is not None and training.lora.rank > MAX_REFLECTIONS:
        yield "training.lora.rank", f"`hra` of rank {training.lora.rank:,}: more than {MAX_REFLECTIONS} reflections"


def _beyond(job: TrainingJob, section: str, name: str, value: int) -> list[Problem]:
    from memlint.dialects.native_fields import SECTIONS
    from memlint.dialects.values import bound_text, show

    field = SECTIONS[section.replace("checkpointing", "activation_checkpointing")].get(name)
    if field is None or field.maximum is None or value <= field.maximum:
        return []
    full = f"{section}.{name}"
    key = _key(job, full)
    shown = key[-1] if key else full
    return [_problem(job, full, f"`{shown}` must be at most {bound_text(field.maximum)}, not `{show(value)}`")]


def _key(job: TrainingJob, name: str) -> Any:
    origin = job.origin(name)
    return origin.key if origin is not None else ()


def _problem(job: TrainingJob, name: str, message: str) -> Problem:
    origin = job.origin(name)
    return Problem(code="MEM003", key=_key(job, name), message=message, file=origin.file if origin else None)
