"""Trace a training job, and put the trace into the contract's form of an estimate (method ``traced``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from memlint.errors import SettingError, UserError, first_line
from memlint.estimate.result import COMPONENTS, PHASES, Estimate, PhasePeak
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.measure.trace.from_job import hf_config, settings_of
from memlint.measure.trace.result import TraceResult

MEANING = {
    "params": "parameters",
    "buffers": "parameters",
    "grads": "gradients",
    "optim": "optimizer_states",
    "inputs": "inputs",
    "activations": "activations",
    "recompute_activations": "activations",
    "cast_weights": "activations",
    "logits_loss": "logits",
    "temporaries": "temporaries",
    "kernel_workspace": "temporaries",
    "communication": "communication",
}
"""Component of a trace -> component of an estimate."""


def trace_job(
    job: TrainingJob,
    target: Target | None = None,
    *,
    every_layer: bool = False,
    trust_remote_code: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[Estimate, TraceResult]:
    """Trace the job's model in transformers' own code; returns the estimate and the account behind it.

    Raises UserError for a job that a trace cannot follow, naming the setting.
    """
    from memlint.estimate.simulate import world_size
    from memlint.measure.trace.run import trace

    config = hf_config(job)
    settings = settings_of(job, world_size(job, target))
    remote = _remote_code(job, config, trust_remote_code)
    try:
        result = trace(config, settings, every_layer=every_layer, remote=remote, progress=progress)
    except UserError:
        raise
    except Exception as error:
        if os.environ.get("MEMLINT_DEBUG"):
            raise
        raise SettingError(
            f"transformers' code of `{config['model_type']}` does not run on fake tensors with these settings"
            f" ({first_line(error)}); MEMLINT_DEBUG=1 shows where",
            "model",
        ) from None
    return to_estimate(job, target, result), result


def _remote_code(job: TrainingJob, config: Mapping[str, Any], trusted: bool) -> str | None:
    """Where code that a model brings along is to be loaded from; None for a model that transformers knows.

    Raises UserError where such code would be needed and the user has not allowed it.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if kind in CONFIG_MAPPING:
        return None
    if not config.get("auto_map"):
        raise SettingError(f"this transformers has no model type `{kind}`, so there is no code to trace", "model")
    if not trusted:
        raise SettingError(
            f"the model type `{kind}` is code of the model's own repository, which memlint does not run; pass"
            " --trust-remote-code if you trust it",
            "model",
        )
    if not isinstance(job.model, str):
        raise SettingError(
            f"an inline config brings no code along; name the repository or folder of the `{kind}` model", "model"
        )
    return job.model


def components_of(parts: Mapping[str, int]) -> dict[str, int]:
    """Components of a trace under the names of an estimate; the sum is the same."""
    totals = dict.fromkeys(COMPONENTS, 0)
    for name, size in parts.items():
        totals[MEANING[name]] += size
    return totals


def to_estimate(job: TrainingJob, target: Target | None, result: TraceResult) -> Estimate:
    """Put a trace into the contract's form; overheads outside the allocated peak are the estimator's."""
    from memlint.estimate.overhead import device_interval
    from memlint.estimate.simulate import world_size

    phases = [phase for phase in PHASES if phase in result.phase_peaks]
    top = max(phases, key=lambda phase: result.phase_peaks[phase])
    allocated = result.phase_peaks[top]
    # What one kernel computes on CUDA appears in a trace as its parts; the low end is without them.
    low = allocated - result.phase_decomposed.get(top, 0)
    settled = result.static_before_fwd_bytes + result.grad_bytes
    interval = device_interval(
        job,
        target,
        world=world_size(job, target),
        allocated=allocated,
        allocated_low=low,
        allocated_high=allocated,
        churn=max(0, allocated - settled),
    )
    return Estimate(
        method="traced",
        parameters=result.parameters,
        trainable_parameters=result.trainable_parameters,
        allocated_bytes=allocated,
        reserved_bytes=interval.reserved,
        device_bytes=interval.device,
        low_bytes=interval.low,
        high_bytes=interval.high,
        phase=top,
        components=components_of(result.phase_breakdowns[top]),
        static={
            "parameters": result.param_bytes + result.buffer_bytes,
            "gradients": result.grad_bytes,
            "optimizer_states": result.optim_bytes,
        },
        forward_end_activation_bytes=result.fwd_end_bytes - result.static_before_fwd_bytes,
        timeline=tuple(
            PhasePeak(
                phase=phase,
                peak_bytes=result.phase_peaks[phase],
                end_bytes=result.phase_ends[phase],
                components=components_of(result.phase_breakdowns[phase]),
            )
            for phase in phases
        ),
        overheads=interval.overheads,
        assumptions=tuple(job.assumptions),
    )
