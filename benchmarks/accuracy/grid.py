"""The simulation against traces of the real code over a grid of model types and setups.

    python -m benchmarks.accuracy.grid [--types llama,qwen3] [--limit N] [--output FILE]

Each point builds the real transformers model on fake tensors and runs two steps, which takes seconds; the whole grid
takes more than an hour. What was traced goes to a JSON-lines file, line by line (points that it holds already are not
run again); ``python -m benchmarks.accuracy --grid FILE`` simulates the same jobs and makes the tables.
``grid_points.jsonl`` beside this module holds every third and every fifth point, and more of the published models.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.accuracy.grid_models import HEADED, REAL, TYPES
from benchmarks.accuracy.grid_tables import FIELDS, compared
from benchmarks.lines import add_line, known_lines
from memlint.job import Lora, Precision, Training, TrainingJob, replace_fields
from memlint.measure.trace.from_job import settings_of
from memlint.models.architecture import Architecture
from memlint.models.catalog import find
from memlint.models.config import read_config

HALF = Precision(weights="bf16", autocast=None)
SINGLE = Precision(weights="fp32", autocast=None)
AUTOCAST = Precision(weights="fp32", autocast="bf16")
SETUPS: dict[str, dict[str, Any]] = {
    "bf16": {"training.precision": HALF},
    "bf16 eager": {"training.precision": HALF, "training.attention": "eager"},
    "bf16 checkpointing": {"training.precision": HALF, "training.checkpointing.mode": "full"},
    "bf16 reentrant eager": {
        "training.precision": HALF,
        "training.attention": "eager",
        "training.checkpointing.mode": "full",
        "training.checkpointing.reentrant": True,
    },
    "bf16 padding": {"training.precision": HALF, "training.padding": True},
    "bf16 accumulation": {"training.precision": HALF, "training.gradient_accumulation_steps": 2},
    "bf16 adamw short": {"training.precision": HALF, "training.optimizer": "adamw", "training.sequence_length": 64},
    "bf16 8-bit short": {
        "training.precision": HALF,
        "training.optimizer": "adamw-8bit",
        "training.sequence_length": 64,
    },
    "fp32": {"training.precision": SINGLE},
    "fp32 checkpointing": {"training.precision": SINGLE, "training.checkpointing.mode": "full"},
    "autocast": {"training.precision": AUTOCAST},
    "autocast eager": {"training.precision": AUTOCAST, "training.attention": "eager"},
    "autocast checkpointing": {"training.precision": AUTOCAST, "training.checkpointing.mode": "full"},
    "lora": {"training.precision": HALF, "training.method": "lora", "training.lora": Lora()},
    "lora dropout autocast": {
        "training.precision": AUTOCAST,
        "training.method": "lora",
        "training.lora": Lora(rank=8, dropout=0.05),
    },
    "lora checkpointing": {
        "training.precision": HALF,
        "training.method": "lora",
        "training.lora": Lora(),
        "training.checkpointing.mode": "full",
    },
}
EAGER_ONLY = (
    *("gemma2", "bloom", "deberta-v2", "openai-gpt", "roformer", "rembert", "mvp"),
    *("mimo_v2_flash", "t5gemma", "convbert", "granite_swa", "granitemoe_swa", "squeezebert", "nystromformer"),
)


UNCHECKPOINTED = ("albert", "openai-gpt", "ctrl", "squeezebert")
"""Types whose class offers no activation checkpointing."""
LARGE = ("bf16 checkpointing", "autocast checkpointing", "lora", "lora checkpointing", "bf16 padding")
"""Setups of the models at their own size, at 2048 tokens."""
Point = tuple[str, str, TrainingJob, dict[str, Any]]


def points(types: list[str] | None) -> Iterator[Point]:
    """Every (name, setup, job, HF config) of the grid; batches of one and two rows take turns."""
    small = [(kind, "causal-lm", fields) for kind, fields in TYPES.items()]
    small += [(kind, objective, fields) for kind, (objective, fields) in HEADED.items()]
    number = 0
    for kind, objective, fields in small:
        if types and kind not in types:
            continue
        for name in SETUPS:
            if kind in UNCHECKPOINTED and SETUPS[name].get("training.checkpointing.mode"):
                continue
            number += 1
            batch = 1 + number % 2
            yield kind, f"{name} b{batch}", job_of({"model_type": kind, **fields}, name, batch, objective), fields
    for name in REAL:
        if types and name not in types:
            continue
        row = find(name)
        assert row is not None, name
        for setup in LARGE:
            config = dict(row.config)
            length = {"training.sequence_length": 2048}
            yield name, setup, replace_fields(job_of(config, setup, 1, "causal-lm"), length), config


def job_of(config: dict[str, Any], setup: str, batch: int, objective: str) -> TrainingJob:
    """The job of one point."""
    kind = str(config["model_type"])
    architecture = read_config(config)
    assert isinstance(architecture, Architecture), architecture
    start = TrainingJob(
        model=kind,
        architecture=architecture,
        training=Training(
            micro_batch_size=batch,
            sequence_length=512,
            target_sequence_length=256 if objective == "seq2seq-lm" else None,
            objective=objective,
            optimizer="sgd",
            attention="eager" if kind in EAGER_ONLY else "sdpa",
        ),
    )
    return replace_fields(start, SETUPS[setup])


def traced(kind: str, setup: str, job: TrainingJob, config: dict[str, Any]) -> dict[str, Any]:
    """Trace one point: what its line in the file holds."""
    from memlint.measure.trace.run import trace

    result = trace({**config, "model_type": job.model}, settings_of(job, 1))
    return {
        "type": kind,
        "setup": setup,
        "peak": result.peak_bytes,
        "phase": result.peak_phase,
        "parameters": result.parameters,
    }


def none_unknown(asked: list[str] | None, known: Iterable[str]) -> None:
    """Raise ValueError where a name is asked for that the grid does not have."""
    wrong = [name for name in asked or () if name not in known]
    if wrong:
        raise ValueError(f"the grid has no model {', '.join(wrong)}: see benchmarks/accuracy/grid_models.py")


def main() -> int:
    """Run the grid and print a line a point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--types", type=lambda text: text.split(","), help="model types, or IDs of published models")
    parser.add_argument("--limit", type=int, help="stop when the file holds so many points")
    parser.add_argument("--every", type=int, default=1, help="only every N-th point")
    parser.add_argument("--output", help="JSON-lines file of all points; those in it are not run again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        rows = known_lines(options.output, FIELDS)
        none_unknown(options.types, (*TYPES, *HEADED, *REAL))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    done = {(row["type"], row["setup"]) for row in rows}
    for number, point in enumerate(points(options.types)):
        if number % options.every or (options.limit is not None and len(rows) >= options.limit) or point[:2] in done:
            continue
        try:
            row = traced(*point)
        except Exception as problem:  # a point that cannot be traced is reported, not hidden
            print(f"{point[0]:14} {point[1]:28} not traced: {type(problem).__name__}: {str(problem)[:80]}", flush=True)
            continue
        rows.append(row)
        if options.output:
            add_line(options.output, row)
        found = compared(row, point[2])
        print(f"{found.name:24} {found.setup:28} {found.error:+8.3%} {found.phase}/{found.traced_phase}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
