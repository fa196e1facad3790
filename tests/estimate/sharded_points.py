"""Jobs of the runs in ``traces_sharded.jsonl``: FSDP2 as accelerate 1.15 applies it, traced as one rank of several.

A line is made like those of :mod:`tests.estimate.traced`, with ``shards`` ranks on a fake process group:
``python -m tests.estimate.sharded_points`` traces every line again and writes what it finds (torch 2.13).
"""

from __future__ import annotations

import json
import os
from typing import Any

from memlint.estimate.simulate import Step, run_step
from memlint.job import Lora, TrainingJob, replace_fields
from tests.estimate import family_points, traced

PATH = os.path.join(os.path.dirname(__file__), "traces_sharded.jsonl")
PHASES = ("forward", "loss", "backward", "clip", "optimizer")


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    tied = " tied" if point["config"].get("tie_word_embeddings") else ""
    kept = "" if point["reshard"] else " kept"
    return f"{family_points.title(point)} w{point['shards']}{tied}{kept}"


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    fields = {"parallelism.strategy": "fsdp", "parallelism.reshard_after_forward": point["reshard"]}
    return replace_fields(family_points.job(point), fields)


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated step of the same job on one A100 of several."""
    return run_step(job(point), (8, 0), world=point["shards"], full=full)


def retraced(point: dict[str, Any]) -> dict[str, int]:
    """Trace a run again and give its phase peaks; needs torch and transformers."""
    from memlint.measure.trace.run import trace
    from memlint.measure.trace.settings import TraceSettings

    weights, autocast = traced.PRECISIONS[point["precision"]]
    settings = TraceSettings(
        weights=weights,
        autocast=autocast,
        head=point["head"],
        batch=point["batch"],
        seq=point["seq"],
        checkpointing=point["checkpointing"],
        optimizer=point["optimizer"],
        attention=point["attention"],
        lora=Lora(**point["lora"]) if "lora" in point else None,
        shards=point["shards"],
        reshard_after_forward=point["reshard"],
    )
    result = trace(point["config"], settings, every_layer=True)
    return {name: result.phase_peaks[name] for name in PHASES if name in result.phase_peaks}


def main() -> None:
    """Trace every run of the file again."""
    lines = [{**point, "phase_peaks": retraced(point)} for point in traced.points(os.path.basename(PATH))]
    with open(PATH, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, sort_keys=True) + "\n" for line in lines)


if __name__ == "__main__":
    main()
