"""Trace points one after another, with a line for each beside its simulation, and write them down."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.lines import Point, known_lines, replaced, write_lines
from memlint.estimate.simulate import Step

TRACED = ("parameters", "phase_peaks", "forward_end_bytes")
"""What a trace adds to a point; the rest describes it."""


def report(
    points: Iterable[Point],
    trace: Callable[[Point], Any],
    simulated: Callable[[Point], Step],
    title: Callable[[Point], str],
    phases: tuple[str, ...],
    output: str | None,
    part: bool = False,
) -> int:
    """Trace each point, print a line of it and a summary, and write the points with what was traced to ``output``.

    A point takes the place of the same one in that file. Those that were not traced stay in it where only a ``part`` was
    asked for, and until all others are traced.
    """
    errors: list[float] = []
    rows: list[Point] = []
    try:
        old = known_lines(output)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = 0
    for point in points:
        try:
            result = trace(point)
        except ImportError as error:
            print(f"{title(point)}: cannot be traced here: {error}", file=sys.stderr)
            return 2
        except Exception as problem:  # a point that cannot be traced is reported, not hidden
            print(f"{title(point)}: not traced: {type(problem).__name__}: {str(problem)[:200]}", file=sys.stderr)
            failed += 1
            continue
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
            write_lines(output, replaced(old, rows, _description), sort_keys=True)
    if not errors:
        print("no point is called so" if not failed else "no point could be traced", file=sys.stderr)
        return 2
    if output and not part and not failed:
        write_lines(output, rows, sort_keys=True)
    print(f"{len(errors)} points: median error {statistics.median(errors):.4%}, worst {max(errors):.3%}")
    return 1 if failed else 0


def _description(point: Point) -> str:
    return json.dumps({name: value for name, value in point.items() if name not in TRACED}, sort_keys=True)
