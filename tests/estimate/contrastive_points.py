"""Jobs of the traced runs in ``traces_contrastive.jsonl``: losses of sentence-transformers on fake tensors.

Made by ``python -m benchmarks.objectives.contrastive`` with sentence-transformers 6.2.0 beside transformers 5.24, peft
0.21.2 and torch 2.13. ``batch`` counts rows of ``columns`` texts each.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.simulate import Step, run_step
from memlint.job import TrainingJob, replace_fields
from tests.estimate import traced


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    words = [point["config"]["model_type"], point["precision"], point["checkpointing"], f"{point['columns']} columns"]
    words += ["lora"] * ("lora" in point) + ["padding"] * point["padding"] + [f"b{point['batch']}"]
    words += [point["attention"]] * (point["attention"] != "sdpa")
    if "pooling" in point:
        words.append(point["pooling"])
    words += ["accumulated"] * ("accumulation" in point)
    if "mini_batch" in point:
        words.append(f"mini {point['mini_batch']}")
    return " ".join(words)


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    return replace_fields(
        traced.job(point),
        {
            "training.objective": "contrastive",
            "training.columns": point["columns"],
            "training.pooling": point.get("pooling", "mean"),
            "training.embedding_mini_batch": point.get("mini_batch"),
            "training.padding": point["padding"],
            "training.gradient_accumulation_steps": point.get("accumulation", 1),
        },
    )


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated step of the same job on an A100."""
    return run_step(job(point), (8, 0), full=full)
