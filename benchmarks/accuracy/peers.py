"""Other estimators beside memlint, on the rows that each can express.

They are installed in a virtual environment of their own (``--peers DIR``), never in memlint's: vramcalc 0.1.2 and
torch-preflight 0.5.0 from PyPI. accelerate's estimate-memory is taken from the environment at hand, where it comes with
the extra ``measure``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.accuracy.measured import Prediction
from benchmarks.accuracy.oracle import Comparison, job_of
from benchmarks.accuracy.peer_worker import PEERS
from benchmarks.accuracy.tables import percent, table
from memlint.job import TrainingJob

REQUIREMENTS = {"vramcalc": "vramcalc==0.1.2", "torch_preflight": "torch-preflight==0.5.0"}
"""Module -> what installs it. A further peer: a line here, and a function in ``peer_worker.py`` with its name in PEERS."""
Case = tuple[str, int, float]
"""Traced or measured, the figure in bytes, and memlint's absolute error."""
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_worker.py")


def peer_tables(folder: str, comparisons: Sequence[Comparison], predictions: Sequence[Prediction]) -> list[str]:
    """Mean and worst absolute error of each peer, and memlint's on the same rows."""
    asked = [settings_of(job_of(c.point), c.parameters) for c in comparisons]
    cases: list[Case] = [("traced", int(c.point["peak_bytes"]), abs(c.error)) for c in comparisons]
    for p in predictions:
        if p.row.graded and p.row.measured_bytes is not None:
            asked.append(settings_of(p.job, p.estimate.parameters))
            cases.append(("measured", p.row.measured_bytes, abs(p.error or 0.0)))
    answers = _ask(_environment(folder), asked) + _ask(sys.executable, asked)
    rows = []
    for kind in ("traced", "measured"):
        for peer in PEERS:
            rows += _rows(kind, peer, cases, [a for a in answers if a["peer"] == peer])
    head = ("against", "peer", "rows it can express", "its mean", "its worst", "memlint's mean", "memlint's worst")
    text = "Errors are absolute and relative to the figure; a peer's own prediction of the peak, overheads included."
    return [text, "", *table(head, rows)]


def _rows(kind: str, peer: str, cases: Sequence[Case], answers: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    pairs = [
        (abs(answer["bytes"] / cases[answer["case"]][1] - 1), cases[answer["case"]][2])
        for answer in answers
        if cases[answer["case"]][0] == kind
    ]
    if not pairs:
        return [(kind, peer, "0", "-", "-", "-", "-")]
    theirs, ours = [a for a, _ in pairs], [b for _, b in pairs]
    shown = (statistics.mean(theirs), max(theirs), statistics.mean(ours), max(ours))
    return [(kind, peer, str(len(pairs)), *map(percent, shown))]


def settings_of(job: TrainingJob, parameters: int) -> dict[str, Any]:
    """The plain settings that a peer's adapter reads; ``parameters``: elements of the model."""
    training, a = job.training, job.architecture
    assert a is not None
    return {
        "config": {key: value for key, value in a.config.items() if isinstance(value, (int, float, str, bool))},
        "model_type": a.model_type,
        "parameters": parameters,
        "objective": training.objective,
        "method": training.method,
        "quantized": training.quantization is not None,
        "rank": training.lora.rank if training.lora is not None else None,
        "batch": training.micro_batch_size,
        "length": training.sequence_length,
        "weights": training.precision.weights,
        "autocast": training.precision.autocast,
        "checkpointing": training.checkpointing.mode != "none",
        "attention": training.attention,
        "optimizer": training.optimizer,
        "loss": training.loss,
        "strategy": job.parallelism.strategy,
        "accumulation": training.gradient_accumulation_steps,
    }


def _environment(folder: str) -> str:
    """Python of the peers' environment, made when it is not there or lacks one of them."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        _run([sys.executable, "-m", "venv", folder])
    if subprocess.run([python, "-c", f"import {', '.join(REQUIREMENTS)}"], capture_output=True).returncode:
        _run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS.values()])
    return python


def _run(command: list[str], text: str = "") -> Any:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True)


def _ask(python: str, asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    text = "\n".join(json.dumps(settings) for settings in asked)
    done = _run([python, WORKER], text)
    for refusal, count in Counter(done.stderr.splitlines()).items():
        print(f"{count} x {refusal}", file=sys.stderr)  # a peer that is asked wrongly looks like one that cannot
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
