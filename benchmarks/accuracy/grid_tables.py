"""The table of what ``python -m benchmarks.accuracy.grid --output FILE`` wrote."""

from __future__ import annotations

import json
import statistics
from typing import Any

from benchmarks.accuracy.tables import percent, table


def grid_tables(path: str) -> list[str]:
    """Errors by model type."""
    with open(path, encoding="utf-8") as handle:
        points: list[dict[str, Any]] = [json.loads(line) for line in handle if line.strip()]
    types: dict[str, list[dict[str, Any]]] = {"all": points}
    for point in points:
        types.setdefault(str(point["type"]), []).append(point)
    rows = [(name, *_cells(group)) for name, group in types.items() if group]
    return table(("model type", "points", "median error", "worst", "phase right"), rows)


def _cells(group: list[dict[str, Any]]) -> tuple[str, ...]:
    errors = [abs(float(point["error"])) for point in group]
    right = sum(point["phase"] == point["traced_phase"] for point in group)
    return str(len(group)), percent(statistics.median(errors)), percent(max(errors)), f"{right} of {len(group)}"
