"""JSON-lines files of points: a bad line is named, and a run of some points leaves the others as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from memlint.measure.trace.lines import read_lines as read_lines

Point = dict[str, Any]


def known_lines(path: str | None, needed: Iterable[str] = ()) -> list[Point]:
    """As :func:`read_lines`; nothing where there is no such file."""
    return read_lines(path, needed) if path is not None and os.path.exists(path) else []


def add_line(path: str, point: Point) -> None:
    """Write a point behind those of a file."""
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(json.dumps(point) + "\n")


def write_lines(path: str, points: Iterable[Point], *, sort_keys: bool = False) -> None:
    """Write a file anew; it is whole or as it was."""
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(point, sort_keys=sort_keys) + "\n" for point in points)
    os.replace(beside, path)


def replaced(old: Iterable[Point], new: Iterable[Point], key: Callable[[Point], Hashable]) -> list[Point]:
    """The old points, each with the new one of the same key in its place; new ones without an old one come last."""
    made = {key(point): point for point in new}
    found = [made.pop(key(point), point) for point in old]
    return [*found, *made.values()]
