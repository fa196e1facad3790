"""Path patterns of the settings: ``*`` within a folder, ``**`` across folders, ``?`` one character, ``[...]`` a set."""

from __future__ import annotations

import re

_CACHE: dict[str, re.Pattern[str]] = {}


def matches(path: str, pattern: str) -> bool:
    """Whether a slash-separated relative ``path`` matches ``pattern``.

    A pattern without a slash matches a name at any depth (``*.json``, ``vendor``); a pattern that matches a folder
    matches everything below it, as in ``.gitignore``.
    """
    compiled = _CACHE.get(pattern)
    if compiled is None:
        compiled = _CACHE[pattern] = re.compile(translate(pattern) + r"(?:/.*)?\Z")
    return compiled.match(path) is not None


def matches_any(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether ``path`` matches at least one of ``patterns``."""
    return any(matches(path, pattern) for pattern in patterns)


def translate(pattern: str) -> str:
    """Return a regular expression for the paths that ``pattern`` itself matches, without an end."""
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
