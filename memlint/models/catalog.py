"""The bundled catalog: shapes of popular models, one JSON line each, found by text search and parsed alone.

``catalog.jsonl`` is written by ``benchmarks/generate/catalog.py``. A row is ``{"id", "config", "source"}``, or
``{"id", "as", "source"}`` for a mirror or fine-tune of the same shape, where ``set`` changes single fields
(a longer vocabulary) and ``quantization`` says that the checkpoint is stored quantised.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

_TEXT: list[str] = []


class Row(NamedTuple):
    """One model of the catalog."""

    id: str
    config: dict[str, Any]
    source: str


def _text() -> str:
    if not _TEXT:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "catalog.jsonl")
        with open(path, encoding="utf-8") as stream:
            text = "\n" + stream.read()
        _TEXT[:] = [text, text.lower()]
    return _TEXT[0]


def _line(model_id: str) -> dict[str, Any] | None:
    text = _text()
    start = text.find(f'\n{{"id":"{model_id}",')
    if start < 0:  # the hub, too, takes an ID whatever its case
        start = _TEXT[1].find(f'\n{{"id":"{model_id.lower()}",')
    if start < 0:
        return None
    row: dict[str, Any] = json.loads(text[start + 1 : text.find("\n", start + 1)])
    return row


def find(model_id: str) -> Row | None:
    """Return the row of a model, mirrors resolved; None when the catalog does not have it."""
    if '"' in model_id or "\n" in model_id or "\\" in model_id:
        return None
    row = _line(model_id)
    if row is None:
        return None
    if "as" not in row:
        return Row(row["id"], row["config"], row["source"])
    original = _line(row["as"])
    assert original is not None, row["as"]  # the generator checks that every "as" has a row
    config = {**original["config"], **row.get("set", {})}
    if "quantization" in row:
        config["quantization_config"] = row["quantization"]
    return Row(row["id"], config, f"shape of {row['as']} ({row['source']}); {original['source']}")


def model_ids() -> list[str]:
    """Return every ID of the catalog, in order."""
    return [line[7 : line.index('"', 7)] for line in _text().splitlines() if line]


def rows() -> list[dict[str, Any]]:
    """Return every line of the catalog as it is stored."""
    return [json.loads(line) for line in _text().splitlines() if line]


def near(model_id: str) -> str | None:
    """Return the catalog ID that is most like ``model_id``; None when none is close."""
    from difflib import get_close_matches

    known = model_ids()
    lower = {name.lower(): name for name in known}
    found = get_close_matches(model_id.lower()[:200], lower, n=1, cutoff=0.75)
    if found:
        return lower[found[0]]
    tail = model_id.lower().rsplit("/", 1)[-1]
    by_tail = {name.lower().rsplit("/", 1)[-1]: name for name in known}
    return by_tail.get(tail)
