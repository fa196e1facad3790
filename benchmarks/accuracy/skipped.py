"""Rows and points that are not compared, each with its reason."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_TOKENS = 10**8
"""Longest sequence, and most rows of a micro batch, that a job may have (schemas/job.schema.json)."""


class Inexpressible(Exception):
    """A row that cannot be said as a job; the text says why."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not predicted, and why."""

    id: str
    reason: str


def failure(problem: Exception) -> str:
    """The reason of a row on which memlint itself failed."""
    return f"memlint failed: {type(problem).__name__}: {str(problem)[:80]}"


def by_reason(skipped: Sequence[Skipped]) -> list[tuple[str, int, str]]:
    """Reason, number of rows and their names, the most frequent reason first."""
    groups: dict[str, list[str]] = {}
    for item in skipped:
        groups.setdefault(item.reason, []).append(item.id)
    ranked = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [(reason, len(ids), ", ".join(spans(ids))) for reason, ids in ranked]


def spans(ids: Iterable[str]) -> list[str]:
    """Names in order, neighbours such as ``run-001``, ``run-002``, ``run-003`` as ``run-001 to 003``."""
    named = [re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL) for name in ids]
    parts = [(match.group(1), match.group(2)) for match in named if match is not None]
    found: list[str] = []
    for _, run in itertools.groupby(
        enumerate(parts), key=lambda item: (item[1][0], len(item[1][1]), int(item[1][1] or 0) - item[0])
    ):
        members = [prefix + digits for _, (prefix, digits) in run]
        last = re.search(r"\d+\Z", members[-1])
        found += [f"{members[0]} to {last.group()}"] if len(members) > 2 and last is not None else members
    return found
