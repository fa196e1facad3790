"""Jobs of the traced runs in ``traces_objectives*.jsonl``: real trainers on fake tensors.

Made by ``python -m benchmarks.objectives``, with TRL 1.16.0, with 1.9.0 and, under ``--llamafactory``, with
LLaMA-Factory 0.9.5 beside transformers 5.24, peft 0.21.2 and torch 2.13. ``batch`` counts samples, or pairs where the
trainer takes pairs; ``options`` are the fields of the trainer's config that differ from its defaults.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.simulate import Step, run_step
from memlint.job import TrainingJob, replace_fields
from tests.estimate import traced

NATIVE = {"sft": "causal-lm", "rloo": "grpo", "simpo": "dpo"}
"""Trainer -> objective, where the names differ."""
FUSED = ("sft", "dpo", "kto", "grpo", "rloo")
"""Trainers with TRL's fused head."""


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    words = [point["objective"], point["config"]["model_type"], point["precision"], point["checkpointing"]]
    words += ["lora"] * ("lora" in point) + [point["reference"]] * (point["reference"] != "none")
    words += ["padding"] * point["padding"] + [f"b{point['batch']}"] + [str(v) for v in point["options"].values()]
    words += [f"trl {point['trl']}"] * (point["trl"] != "1.16")
    words += [f"liger {point[name]}" for name in ("liger",) if name in point]
    return " ".join(words)


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    objective = point["objective"]
    plain = objective == "cpo" and point["options"].get("cpo_alpha") == 0
    fused = FUSED if point["trl"] == "1.16" else () if "loss_type" in point["options"] else ("sft",)
    loss = "fused" if point["options"].get("use_liger_kernel") else "chunked" if objective in fused else "standard"
    own = point["options"].get("loss")
    loss = loss if own is None else "token-weighted" if own == "v1" else own
    return replace_fields(
        traced.job(point),
        {
            "framework": {"llamafactory": "llama-factory 0.9.5"}.get(point.get("framework", ""), "trl"),
            "versions": {"trl": point["trl"], **({"liger-kernel": point["liger"]} if "liger" in point else {})},
            "training.objective": "dpo" if plain else NATIVE.get(objective, objective),
            "training.loss": loss,
            "training.reference_model": point["reference"],
            "training.padding": point["padding"],
            "training.completion_length": point.get("completion"),
        },
    )


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated step of the same job on an A100."""
    return run_step(job(point), (8, 0), full=full)
