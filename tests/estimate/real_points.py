"""Models at their own size under settings drawn at random, as native job files: what ``memlint trace`` gave of each.

``traces_real.jsonl``: one run a line; ``model`` and ``training`` are those of a native job file. Made with transformers
5.24, peft 0.21.2, bitsandbytes 0.50.2 and torch 2.13. ``python -m tests.estimate.real_points FILE`` traces the
lines of a file (``model`` and ``training`` are enough) and writes them whole, in place.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from memlint.engine.source import Source, open_source
from memlint.estimate.result import Estimate

KEPT = Path(__file__).parent / "traces_real.jsonl"


def points(path: Path = KEPT) -> list[dict[str, Any]]:
    """The runs of one file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def title(point: dict[str, Any]) -> str:
    """A test's name for a run: what its training states."""
    training = point["training"]
    words = [point["model"]["model_type"], *(str(value) for name, value in training.items() if name != "objective")]
    return " ".join(words)


def opened(point: dict[str, Any], folder: Path) -> Source:
    """The job of a run as a file of it reads, for one A100."""
    path = folder / "job.yaml"
    text = {"memlint": 1, "model": point["model"], "training": point["training"], "hardware": {"target": "A100-80GB"}}
    path.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    return open_source(str(path), offline=True, isolated=True)


def figures(estimate: Estimate) -> dict[str, Any]:
    """What a run's line holds of an estimate."""
    return {
        "parameters": [estimate.parameters, estimate.trainable_parameters],
        "static": dict(estimate.static),
        "phase_peaks": {phase.phase: phase.peak_bytes for phase in estimate.timeline},
        "forward_end_bytes": estimate.forward_end_activation_bytes,
    }


def traced(point: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run's line from a trace; needs torch, transformers and, for 4 and 8 bits, bitsandbytes."""
    from memlint.measure.trace.job import trace_job

    source = opened(point, folder)
    estimate, _ = trace_job(source.job, source.target)
    return {"model": point["model"], "training": point["training"], **figures(estimate)}


def main(path: Path) -> None:
    """Trace every line of a file again."""
    with TemporaryDirectory() as folder:
        lines = [json.dumps(traced(point, Path(folder))) for point in points(path)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
