"""Trace points one after another, with a line for each beside its simulation, and write them down."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from memlint.estimate.simulate import Step

Point = dict[str, Any]


def report(
    points: Iterable[Point],
    trace: Callable[[Point], Any],
    simulated: Callable[[Point], Step],
    title: Callable[[Point], str],
    phases: tuple[str, ...],
    output: str | None,
) -> int:
    """Trace each point, print a line of it and a summary, and write the points with what was traced to ``output``."""
    errors: list[float] = []
    rows: list[Point] = []
    for point in points:
        result = trace(point)
        traced = {name: result.phase_peaks[name] for name in phases if name in result.phase_peaks}
        point["parameters"], point["phase_peaks"] = result.parameters, traced
        if hasattr(result, "fwd_end_bytes"):
            point["forward_end_bytes"] = result.fwd_end_bytes - result.static_before_fwd_bytes
        rows.append(point)
        step = simulated(point)
        own = {phase.phase: phase.peak_bytes for phase in step.timeline}
        most, highest = max(traced.values()), max(own, key=lambda name: own[name])
        errors.append(abs(own[highest] / most - 1))
        each = " ".join(f"{name} {own[name] / size - 1:+.3%}" for name, size in traced.items())
        kept = f" kept {step.forward_end_bytes - point['forward_end_bytes']:+}" if "forward_end_bytes" in point else ""
        print(
            f"{title(point):76} traced {most:11} simulated {own[highest] / most - 1:+.3%} {highest:10} ({each}){kept}",
            flush=True,
        )
        if output:
            with open(output, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    print(f"{len(errors)} points: median error {statistics.median(errors):.4%}, worst {max(errors):.3%}")
    return 0
