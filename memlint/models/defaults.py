"""The class defaults of transformers' config classes, read one model_type at a time from ``defaults.jsonl``."""

from __future__ import annotations

import json
import os
from typing import Any

_TEXT: list[str] = []
_ENTRIES: dict[str, dict[str, Any] | None] = {}


def _text() -> str:
    """Read the data file once a process (about 0.3 MB, under a millisecond); no line but the wanted one is parsed."""
    if not _TEXT:
        with open(
            os.path.join(os.path.dirname(os.path.abspath(__file__)), "defaults.jsonl"), encoding="utf-8"
        ) as stream:
            _TEXT.append(stream.read())
    return _TEXT[0]


def class_defaults(model_type: str) -> dict[str, Any] | None:
    """Return the entry of one model_type (see benchmarks/generate/model_defaults.py), None when there is none.

    The entry is shared: callers must not change it.
    """
    if model_type not in _ENTRIES:
        _ENTRIES[model_type] = None
        if len(model_type) <= 100 and model_type.isprintable() and '"' not in model_type:
            text = _text()
            start = text.find(f'\n{{"type":"{model_type}",')
            if start >= 0:
                _ENTRIES[model_type] = json.loads(text[start + 1 : text.find("\n", start + 1)])
    return _ENTRIES[model_type]


def transformers_version() -> str:
    """Return the transformers version whose classes the data follows."""
    first = _text().split("\n", 1)[0]
    version: str = json.loads(first)["transformers"]
    return version


def known_types() -> list[str]:
    """Return every model_type that has defaults, in order."""
    return [line[9 : line.index('"', 9)] for line in _text().splitlines()[1:]]
