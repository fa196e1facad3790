"""Path patterns of the settings: ``*`` within a folder, ``**`` across folders, ``?`` one character, ``[...]`` a set."""

from __future__ import annotations

import re
from typing import Any, Callable

_CACHE: dict[str, tuple[Callable[[str], Any] | None, ...]] = {}
"""Pattern -> a test for each of its steps, None for ``**``."""


def matches(path: str, pattern: str) -> bool:
    """Whether a slash-separated relative ``path`` matches ``pattern``.

    A pattern without a slash matches a name at any depth (``*.json``, ``vendor``); a pattern that matches a folder
    matches everything below it, as in ``.gitignore``. Takes time in proportion to both: settings may be anybody's,
    and a regular expression for ``*a*a*a*a*b`` may never end.
    """
    steps = _CACHE.get(pattern)
    if steps is None:
        steps = _CACHE[pattern] = _steps(pattern)
    names = path.split("/")
    reached = {0}
    for number, step in enumerate(steps):
        if step is None:
            first = min(reached) + (number == len(steps) - 1)
            reached = set(range(first, len(names) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(names) and step(names[at])}
        if not reached:
            return False
    return bool(steps)


def _steps(pattern: str) -> tuple[Callable[[str], Any] | None, ...]:
    from fnmatch import translate as expression  # without exponential backtracking, and with any set of characters

    pattern = pattern.replace("\\", "/").removeprefix("./").rstrip("/").replace("[^", "[!")
    parts = pattern.lstrip("/").split("/") if pattern else []
    if len(parts) == 1 and "/" not in pattern:
        parts = ["**", *parts]
    return tuple(None if part == "**" else re.compile(expression(part)).match for part in parts)


def matches_any(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether ``path`` matches at least one of ``patterns``."""
    return any(matches(path, pattern) for pattern in patterns)


def translate(pattern: str) -> str:
    """Return a regular expression for the paths that ``pattern`` itself matches, without an end.

    For many patterns at once (``.gitignore``); the caller bounds their wildcards and tests that they compile.
    """
    pattern = pattern.replace("\\", "/").removeprefix("./").rstrip("/")
    anywhere = "/" not in pattern
    pattern = pattern.lstrip("/")
    out = ["(?:.*/)?" if anywhere else ""]
    index = 0
    while index < len(pattern):
        char = pattern[index]
        if pattern.startswith("**/", index):
            out.append("(?:.*/)?")
            index += 3
        elif pattern.startswith("**", index):
            out.append(".*")
            index += 2
        elif char == "*":
            out.append("[^/]*")
            index += 1
        elif char == "?":
            out.append("[^/]")
            index += 1
        elif char == "[" and (end := pattern.find("]", index + 2)) != -1:
            inside = pattern[index + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out.append("[^" + inside[1:] + "]" if inside[0] in "!^" else "[" + inside + "]")
            index = end + 1
        else:
            out.append(re.escape(char))
            index += 1
    return "".join(out)
