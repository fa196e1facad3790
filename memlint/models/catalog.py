"""The bundled catalog: shapes of popular models, one JSON line each, found by text search and parsed alone.

``catalog.jsonl`` is written by ``benchmarks/generate/catalog.py``. A row is ``{"id", "config", "source"}``, or
``{"id", "as", "source"}`` for a mirror or fine-tune of the same shape, where ``set`` changes single fields
(a longer vocabulary) and ``quantization``, a key of :data:`QUANTIZATIONS`, says how the checkpoint is quantised.
"""

from __future__ import annotations

import json
import os
from typing import Any

from memlint.records import dataclass

_TEXT: list[str] = []

QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "nf4": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
    },
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
"""quantization_config of the quantised copies in the catalog, as their publishers write it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the catalog."""

    id: str
    config: dict[str, Any]
    source: str


def _text() -> str:
    if not _TEXT:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "catalog.jsonl")
        with open(path, encoding="utf-8") as stream:
            text = "\n" + stream.read()
        _TEXT.append(text)
    return _TEXT[0]


def _line(model_id: str) -> dict[str, Any] | None:
    text = _text()
    start = text.find(f'\n{{"id":"{model_id}",')
    if start < 0:  # the hub, too, takes an ID whatever its case
        start = text.lower().find(f'\n{{"id":"{model_id.lower()}",')
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
        config["quantization_config"] = dict(QUANTIZATIONS[row["quantization"]])
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
    tail = model_id.lower().rsplit("/", 1)[-1]
    same_tail = [name for name in known if name.lower().rsplit("/", 1)[-1] in (tail, tail + "-hf")]
    if same_tail:
        own = [name for name in same_tail if "as" not in (_line(name) or {})]
        return own[0] if own else str((_line(same_tail[0]) or {}).get("as"))
    lower = {name.lower(): name for name in known}
    found = get_close_matches(model_id.lower()[:200], lower, n=1, cutoff=0.75)
    return lower[found[0]] if found else None
