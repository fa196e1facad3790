"""Jobs of the traced updates in ``traces_ppo*.jsonl``: PPO's real trainers on fake tensors, generation included.

Made by ``python -m benchmarks.objectives.ppo_grid`` with TRL 1.12.0, the last release that has the trainer, and, under
``framework: llamafactory``, with LLaMA-Factory 0.9.5 and the step of TRL 0.9.6 that it asks for, beside transformers
5.24, peft 0.21.2 and torch 2.13.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.simulate import Step, run_step
from memlint.job import TrainingJob, replace_fields
from tests.estimate import traced

PHASES = ("generation", "scoring", "forward", "loss", "backward", "optimizer")


def title(point: dict[str, Any]) -> str:
    """A test's name for an update."""
    words = [point.get("framework", "trl"), point["config"]["model_type"], point["precision"]]
    words += ["lora"] * ("lora" in point) + ["padding"] * point["padding"]
    words += ["checkpointing"] * (point["checkpointing"] != "none") + [f"reward {point['reward']}"]
    words += [
        f"b{point['batch']}x{point['accumulation']}",
        f"{point['seq'] - point['completion']}+{point['completion']}",
    ]
    words += [f"{point['mini_batches']} mini"] * (point["mini_batches"] > 1) + [f"r{point['rollout_batch']}"]
    words += [f"scored by {scorer['model_type']}" for scorer in (point.get("scorer"),) if scorer]
    return " ".join(words)


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that an update traced."""
    own = point.get("framework") == "llamafactory"
    autocast = traced.PRECISIONS[point["precision"]][1]
    return replace_fields(
        traced.job(point),
        {
            # LLaMA-Factory's amp_context asks torch.autocast for no dtype, which takes fp16 where accelerate sets none.
            "training.precision.autocast": "fp16" if own and autocast is None else autocast,
            "framework": "llama-factory 0.9.5" if own else "trl 1.12",
            "versions": {"trl": "0.9.6" if own else "1.12"},
            "training.objective": "ppo",
            "training.reference_model": "adapter" if "lora" in point else "copy",
            "training.reward_model": point["reward"],
            "training.value_model": "head" if own else "copy",
            "training.padding": point["padding"],
            "training.completion_length": point["completion"],
            "training.gradient_accumulation_steps": point["accumulation"],
            "training.mini_batches": point["mini_batches"],
            "training.rollouts": point["batch"] * point["accumulation"] * point.get("buffer", 1),
            "training.rollout_batch_size": point["rollout_batch"],
            "training.max_grad_norm": None,
            "scorer": traced.architecture(point["scorer"]) if "scorer" in point else None,
        },
    )


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated update of the same job on an A100."""
    return run_step(job(point), (8, 0), full=full)
