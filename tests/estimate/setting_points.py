"""Jobs of the runs in ``traces_settings.jsonl``: settings that meet in few runs, where each of them alone was right.

``python -m tests.estimate.setting_points`` traces every line again and writes what it finds; a line without figures
gets them, with ``--new`` no other does (transformers 5.24, peft 0.21.2, torch 2.13).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from memlint.job import TrainingJob, replace_fields
from tests.estimate import family_points, traced

NAME = "traces_settings.jsonl"


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    words = [f"every {point['every']}"] if "every" in point else []
    return " ".join([family_points.title(point), *words])


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    changes = {"training.checkpointing.every": point.get("every", 1), "training.max_grad_norm": 1.0}
    return replace_fields(family_points.job(point), changes)


def traced_again(point: dict[str, Any]) -> dict[str, Any]:
    """The line with the figures of its trace; needs torch and transformers."""
    from memlint.measure.trace.job import settings_of
    from memlint.measure.trace.run import trace

    result = trace(point["config"], settings_of(job(point), 1), every_layer=True)
    phases = ("forward", "loss", "backward", "clip", "optimizer")
    found = {name: size for name, size in result.phase_peaks.items() if name in phases}
    end = result.fwd_end_bytes - result.static_before_fwd_bytes
    return {**point, "forward_end_bytes": end, "parameters": result.parameters, "phase_peaks": found}


def main(new: bool) -> None:
    """Trace the runs of the file."""
    lines = [
        json.dumps(point if new and "phase_peaks" in point else traced_again(point), sort_keys=True)
        for point in traced.points(NAME)
    ]
    with open(os.path.join(os.path.dirname(__file__), NAME), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main("--new" in sys.argv)
