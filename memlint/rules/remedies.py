"""Changes of a job that lower its peak, as native fields; the rules and the plan choose among them.

Each function returns the change, or None where it does not apply: already on, or contradicted by method or target.
Order of preference (DESIGN.md, Remedies): mixed precision, fused loss and attention, activation checkpointing, lighter
optimizer, smaller micro batch, sharding.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.findings import Help
from memlint.rules.context import Context

Changes = Mapping[str, Any]

SHOWN = 3
"""Help lines under one out-of-memory finding: more is noise; `memlint plan` lists all."""

_HEAVY = {"adamw", "adamw-fused", "adamw-foreach", "paged-adamw", "adam", "lion", "muon", "rmsprop", "adagrad"}


def _half(context: Context) -> str:
    return "fp16" if context.target is not None and context.target.bf16 is False else "bf16"


def mixed_precision(context: Context) -> Changes | None:
    """Autocast where the forward runs in fp32."""
    precision = context.job.training.precision
    if precision.weights != "fp32" or precision.autocast is not None or precision.fp8:
        return None
    half = _half(context)
    return {"training.precision.autocast": half, "training.precision.grad_scaler": half == "fp16"}


def half_frozen_weights(context: Context) -> Changes | None:
    """Half-precision base weights where the base is frozen and not quantised."""
    training = context.job.training
    frozen = training.method not in ("full", "qlora")
    if not frozen or training.precision.weights != "fp32" or training.quantization is not None:
        return None
    return {"training.precision.weights": _half(context)}


def fused_attention(context: Context) -> Changes | None:
    """Fused attention instead of eager."""
    return {"training.attention": "sdpa"} if context.job.training.attention == "eager" else None


def fused_loss(context: Context) -> Changes | None:
    """A loss that never holds all logits."""
    return {"training.loss": "fused"} if context.job.training.loss == "standard" else None


def checkpointing(context: Context) -> Changes | None:
    """Checkpoint every layer."""
    return {"training.checkpointing.mode": "full"} if context.job.training.checkpointing.mode == "none" else None


def lighter_optimizers(context: Context) -> list[Changes]:
    """8-bit AdamW, then Adafactor, in place of an optimizer with full-size states."""
    if context.job.training.optimizer not in _HEAVY:
        return []
    return [{"training.optimizer": "adamw-8bit"}, {"training.optimizer": "adafactor"}]


def smaller_micro_batch(context: Context) -> Changes | None:
    """The largest divisor of the micro batch that fits, accumulation raised to match; the smallest where none fits."""
    training = context.job.training
    rows, steps = training.micro_batch_size, training.gradient_accumulation_steps
    chosen: Changes | None = None
    for smaller in (size for size in range(rows // 2, 0, -1) if rows % size == 0):
        chosen = {
            "training.micro_batch_size": smaller,
            "training.gradient_accumulation_steps": steps * (rows // smaller),
        }
        if context.verdict == "fits":
            return chosen
        trial = context.try_changes(chosen)
        if trial is not None and context.judge(trial.estimate) == "fits":
            return chosen
    return chosen


def sharding(context: Context) -> list[Changes]:
    """ZeRO 2, then FSDP, then ZeRO 3, over GPUs that now hold everything each."""
    parallelism = context.job.parallelism
    if context.gpus < 2 or parallelism.strategy not in ("none", "ddp"):
        return []
    if parallelism.tensor > 1 or parallelism.pipeline > 1:
        return []
    if context.job.training.quantization is not None:
        return []
    return [{"parallelism.strategy": strategy} for strategy in ("zero2", "fsdp", "zero3")]


def in_order(context: Context) -> list[tuple[Changes, str]]:
    """Every remedy that applies, best first, with its name in words."""
    singles: list[tuple[Changes | None, str]] = [
        (mixed_precision(context), "mixed precision"),
        (half_frozen_weights(context), "half-precision frozen weights"),
        (fused_attention(context), "fused attention"),
        (fused_loss(context), "a fused loss"),
        (checkpointing(context), "activation checkpointing"),
    ]
    found = [(changes, words) for changes, words in singles if changes is not None]
    found += [(changes, f"the optimizer {changes['training.optimizer']}") for changes in lighter_optimizers(context)]
    smaller = smaller_micro_batch(context)
    if smaller is not None:
        found.append((smaller, "a smaller micro batch with more accumulation"))
    found += [(changes, f"sharding with {changes['parallelism.strategy']}") for changes in sharding(context)]
    return found


def fitting(context: Context) -> tuple[Help, ...]:
    """Help lines that make the job fit: single changes first; else changes added one after the other until it fits."""
    if context.estimate is None:
        return ()
    candidates = in_order(context)
    trials = []
    for changes, words in candidates:
        trial = context.try_changes(changes)
        if trial is not None:
            trials.append((changes, words, trial))
    fits = [
        context.help(trial, otherwise=words) for _, words, trial in trials if context.judge(trial.estimate) == "fits"
    ]
    if fits:
        return tuple(fits[:SHOWN])
    return _together(context, [(changes, words) for changes, words, trial in trials if trial.text])


def _together(context: Context, candidates: list[tuple[Changes, str]]) -> tuple[Help, ...]:
    assert context.estimate is not None
    chosen: dict[str, Any] = {}
    names: list[str] = []
    lowest = context.estimate.device_bytes
    best = None
    for changes, words in candidates:
        if any(name in chosen for name in changes):
            continue
        trial = context.try_changes({**chosen, **changes})
        # A step that does not lower the peak by itself may still be needed later; one that raises it is not.
        if trial is None or not trial.text or trial.estimate.device_bytes >= lowest:
            continue
        chosen.update(changes)
        names.append(words)
        lowest, best = trial.estimate.device_bytes, trial
        if context.judge(trial.estimate) == "fits":
            break
    return (context.help(best, otherwise=" with ".join(names)),) if best is not None else ()
