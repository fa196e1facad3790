"""What memlint says of the points that DeepSpeed's real engine was run on."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.lines import known_lines
from benchmarks.zero.points import Spec, job_of
from memlint.estimate.simulate import run_step

FILE = os.path.join(os.path.dirname(__file__), "points.jsonl")


def kept(path: str = FILE) -> list[dict[str, Any]]:
    """The points of a file, with the real engine's peaks; none where there is no such file."""
    return known_lines(path, ("name", "spec", "peaks"))


def predicted(spec: Spec, *, full: bool = False) -> dict[str, int]:
    """memlint's peak bytes of a point's phases, as real kernels run; ``step()`` measures norms, clips and updates."""
    step = run_step(job_of(spec), world=spec["world"], full=full)
    peaks = {phase.phase: phase.peak_bytes for phase in step.one_kernel}
    return {
        "forward": max(peaks["forward"], peaks["loss"]),
        "backward": peaks["backward"],
        "step": max(peaks.get("clip", 0), peaks["optimizer"]),
    }


def compared(row: dict[str, Any]) -> dict[str, float]:
    """Relative difference of each phase's peak."""
    ours = predicted(row["spec"])
    return {phase: ours[phase] / size - 1 for phase, size in row["peaks"].items()}
