"""Jobs of the traced runs in ``traces_peft.jsonl``: PEFT's methods around several model types, on fake tensors.

Made by ``python -m benchmarks.peft_methods`` with transformers 5.24, peft 0.21.2 and torch 2.13.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.simulate import Step, run_step
from memlint.job import Lora, TrainingJob, replace_fields
from tests.estimate import traced

OBJECTIVES = {"causal": "causal-lm", "seq2seq": "seq2seq-lm", "seqcls": "sequence-classification"}


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    words = [point["method"], point["config"]["model_type"], point["precision"], point["checkpointing"]]
    words += [point["attention"]] * (point["attention"] != "sdpa") + [f"{point['batch']}x{point['seq']}"]
    words += ["default"] * (point.get("targets") == "default") + ["padding"] * point["padding"]
    return " ".join(words)


def adapter(point: dict[str, Any]) -> Lora | None:
    """The adapter of a run; None for prompts."""
    if "targets" not in point:
        return None
    targets = point["targets"]
    return Lora(rank=point["rank"], targets=targets if isinstance(targets, str) else tuple(targets), dtype="fp32")


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    base = traced.job({name: value for name, value in point.items() if name != "lora"})
    fields: dict[str, object] = {
        "method": point["method"],
        "lora": adapter(point),
        "virtual_tokens": point.get("tokens", 20),
        "objective": OBJECTIVES[point["head"]],
        "target_sequence_length": point.get("target_seq"),
        "padding": point["padding"],
    }
    return replace_fields(base, {f"training.{name}": value for name, value in fields.items()})


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated step of the same job on an A100."""
    return run_step(job(point), (8, 0), full=full)
