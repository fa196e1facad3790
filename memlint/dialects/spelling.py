"""Keys that are nearly keys: MEM002 of every dialect on the Hugging Face side."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from memlint.dialects.base import Problem
from memlint.dialects.values import nearest, show
from memlint.job import KeyPath


def near_misses(
    data: Mapping[str, Any],
    relevant: Iterable[str],
    known: frozenset[str],
    *,
    prefix: KeyPath = (),
    file: str | None = None,
) -> list[Problem]:
    """Return MEM002 for keys that are no key of the framework but nearly one that matters to memory.

    ``known`` holds every key the framework accepts, so that a real key which resembles another is never reported.
    """
    names = [name for name in relevant if name not in data]
    problems = []
    for key in data:
        if not isinstance(key, str) or key in known or len(key) > 60:
            continue
        folded = key.strip().lower().replace("-", "_")
        match = folded if folded in names else nearest(folded, names, cutoff=0.87)
        if match is not None:
            problems.append(
                Problem(
                    code="MEM002",
                    key=(*prefix, key),
                    message=f"unknown key `{show(key)}`; did you mean `{match}`?",
                    label="has no effect",
                    file=file,
                    on_key=True,
                )
            )
    return problems
