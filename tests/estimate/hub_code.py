"""What the tests of models whose code comes with the checkpoint share.

Their figures are traced: the operations of that code, in modules of the same shape, run on fake tensors as ``memlint
trace`` runs a model of transformers (torch 2.13), which has none of these.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob


def settings(
    weights: str, autocast: str | None, tokens: int, rows: int, lora: bool, mode: str, *, targets: tuple[str, ...]
) -> dict[str, Any]:
    """Changes of a job: dtypes, sequence length, micro batch, LoRA of rank 8, and none, reentrant or nonreentrant."""
    adapter = {"rank": 8, "targets": targets, "dropout": 0.0, "dtype": "fp32"} if lora else {}
    return {
        "training.precision.weights": weights,
        "training.precision.autocast": autocast,
        "training.sequence_length": tokens,
        "training.micro_batch_size": rows,
        "training.checkpointing.mode": "none" if mode == "none" else "full",
        "training.checkpointing.reentrant": mode == "reentrant",
        "training.method": "lora" if lora else "full",
        **{f"training.lora.{name}": value for name, value in adapter.items()},
    }


def peaks_of(job: TrainingJob, kernels: frozenset[str] | None = None) -> tuple[int, int]:
    """The higher peak of forward and loss, whose border a trace draws elsewhere, and that of backward. In bytes."""
    step = run_step(job, (8, 0), kernels=kernels)
    peaks = {phase.phase: phase.peak_bytes for phase in step.timeline}
    return max(peaks["forward"], peaks["loss"]), peaks["backward"]
