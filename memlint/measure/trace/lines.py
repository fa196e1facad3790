"""Files with one point as a JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def numbered(path: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each line that is not blank with its number: the object it holds, None where it holds none. Raises OSError."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            try:
                point = json.loads(line)
            except (ValueError, RecursionError):
                point = None
            yield number, point if isinstance(point, dict) else None


def read_lines(path: str, needed: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The objects of a file, blank lines left out.

    Raises OSError, and ValueError with file and line for a line that is no object or lacks a field of ``needed``.
    """
    wanted = tuple(needed)
    found: list[dict[str, Any]] = []
    for number, point in numbered(path):
        if point is None:
            raise ValueError(f"{path}:{number}: the line is no JSON object")
        lacking = [name for name in wanted if name not in point]
        if lacking:
            raise ValueError(f"{path}:{number}: the point has no {', '.join(f'`{name}`' for name in lacking)}")
        found.append(point)
    return found
