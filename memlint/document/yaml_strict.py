"""What libyaml lets pass but the plain Python reader behind ``yaml.safe_load``, which the frameworks call, refuses.

PyYAML 6.0 scanner.py: ``scan_to_next_token`` and ``scan_plain_spaces`` move over spaces only, so that a tab anywhere
outside quotes, block scalars and comments is "a character that cannot start any token".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Iterable

from yaml.nodes import Node, ScalarNode

from memlint.document.positions import BOM

_LINE_REST = re.compile(r"[^\r\n]*")
_MAX_LINES = 5000
"""Lines with a tab that are looked at."""
_HASH = re.compile(r"(?<![^ \t\r\n])#")


def refused_place(text: str, roots: Iterable[Node], base: int) -> tuple[str, int] | None:
    """Return what ``yaml.safe_load`` would stumble over and its offset, or None; costs two searches in a good text."""
    inner_mark = text.find(BOM, 1)
    if inner_mark >= 0:
        return "a byte order mark in the middle of the text, which yaml.safe_load takes for part of a word", inner_mark
    if "\t" not in text:
        return None
    tab = _refused_tab(text, roots, base)
    return None if tab is None else ("a tab between words, which yaml.safe_load refuses; use spaces", tab)


def _refused_tab(text: str, roots: Iterable[Node], base: int) -> int | None:
    scalars: list[tuple[int, int, bool]] = []
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, ScalarNode):
            start, end = node.start_mark.index + base, node.end_mark.index + base
            if node.style in ("|", ">"):  # the header line is not yet part of the text
                header = _LINE_REST.match(text, start)
                start = header.end() if header else start
            scalars.append((start, end, bool(node.style)))
        else:
            for child in node.value:
                pending.extend(child if isinstance(child, tuple) else (child,))
    scalars.sort()
    starts = [start for start, _, _ in scalars]

    def around(offset: int) -> tuple[int, int, bool] | None:
        at = bisect_right(starts, offset) - 1
        return scalars[at] if at >= 0 and offset < scalars[at][1] else None

    at = text.find("\t")
    for _ in range(_MAX_LINES):
        if at < 0:
            break
        scalar = around(at)
        if scalar is not None and scalar[2]:
            at = text.find("\t", scalar[1])
            continue
        line_start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
        if not any(around(found.start()) is None for found in _HASH.finditer(text, line_start, at)):
            return at
        line = _LINE_REST.match(text, at)
        at = text.find("\t", line.end() if line else at + 1)
    return None
