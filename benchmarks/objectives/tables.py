"""The table of the traced trainers: ``python -m benchmarks.accuracy --objectives tests/estimate``."""

from __future__ import annotations

import glob
import os
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.accuracy.tables import percent, table
from benchmarks.lines import read_lines
from memlint.estimate.simulate import Step
from tests.estimate import contrastive_points, ppo_points
from tests.estimate.objective_points import simulated

TRAINERS = {"1.16": "TRL 1.16.0", "1.9": "TRL 1.9.0", "0.24": "LLaMA-Factory 0.9.5"}
"""``trl`` of a point -> what ran."""
LIGER = "TRL 1.9.0 with Liger-Kernel 0.8.5's losses"
EMBEDDINGS = "sentence-transformers 6.2.0"
FIGURES = ("phase_peaks", "forward_end_bytes")
"""What was traced of a point; of whole updates of PPO the first alone."""
PPO = {"trl": "TRL 1.12.0", "llamafactory": "LLaMA-Factory 0.9.5"}


def objective_tables(folder: str) -> list[str]:
    """Errors by trainer and objective of the points in ``traces_objectives*.jsonl`` and its neighbours.

    Raises ValueError for a folder without any, and for a line that is no point.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(glob.glob(os.path.join(folder, "traces_objectives*.jsonl"))):
        for point in read_lines(path, ("objective", "options", "trl", *FIGURES)):
            trainer = (
                LIGER if point["options"].get("use_liger_kernel") else TRAINERS.get(point["trl"], f"TRL {point['trl']}")
            )
            for key in ((trainer, "all"), (trainer, point["objective"])):
                groups.setdefault(key, []).append(point)
    rows = [(trainer, objective, *_cells(points)) for (trainer, objective), points in groups.items()]
    for path in sorted(glob.glob(os.path.join(folder, "traces_ppo*.jsonl"))):
        updates = read_lines(path, FIGURES[:1])
        if updates:
            rows.append((PPO[updates[0].get("framework", "trl")], "ppo", *_update_cells(updates)))
    for path in sorted(glob.glob(os.path.join(folder, "traces_contrastive*.jsonl"))):
        embeddings = read_lines(path, FIGURES)
        if embeddings:
            rows.append((EMBEDDINGS, "contrastive", *_cells(embeddings, contrastive_points.simulated)))
    if not rows:
        raise ValueError(f"{folder} holds no points of trainers (traces_objectives*.jsonl and the like)")
    head = ("trainer", "objective", "points", "median error", "worst", "phase right", "worst forward end")
    return table(head, rows)


def _update_cells(points: list[dict[str, Any]]) -> tuple[str, ...]:
    """As :func:`_cells`, of whole updates: generation and scoring are phases too."""
    errors, right = [], 0
    for point in points:
        phases = {phase.phase: phase.peak_bytes for phase in ppo_points.simulated(point).timeline}
        traced = max(point["phase_peaks"], key=lambda name: point["phase_peaks"][name])
        highest = max(phases, key=lambda name: phases[name])
        errors.append(abs(phases[highest] / point["phase_peaks"][traced] - 1))
        right += highest == traced
    count = str(len(points))
    return count, percent(statistics.median(errors)), percent(max(errors)), f"{right} of {count}", "-"


def _cells(points: list[dict[str, Any]], simulate: Callable[[dict[str, Any]], Step] = simulated) -> tuple[str, ...]:
    errors, kept, right = [], [], 0
    for point in points:
        step = simulate(point)
        highest = max(step.timeline, key=lambda phase: phase.peak_bytes)
        traced = max(point["phase_peaks"].items(), key=lambda item: item[1])
        errors.append(abs(highest.peak_bytes / traced[1] - 1))
        kept.append(abs(step.forward_end_bytes / point["forward_end_bytes"] - 1))
        right += highest.phase == traced[0]
    return (
        str(len(points)),
        percent(statistics.median(errors)),
        percent(max(errors)),
        f"{right} of {len(points)}",
        percent(max(kept)),
    )
