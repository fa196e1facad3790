"""Figures of real transformers code on fake tensors, beside which the simulation is held.

``traces_*.jsonl``: one run a line, made by ``memlint.measure.trace.run.trace_model(config, batch=..., seq=..., ...)``
with transformers 5.24, peft 0.21.2 and torch 2.13; ``forward_end_bytes`` is what stands at the end of forward beyond
parameters, states and inputs. :func:`retraced` makes a line again.
"""

from __future__ import annotations

import json
import os
from typing import Any

from memlint.estimate.simulate import Step, run_step
from memlint.job import Checkpointing, Lora, Precision, Quantization, Training, TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

PRECISIONS = {
    "bf16": ("bf16", None),
    "fp16": ("fp16", None),
    "fp32": ("fp32", None),
    "bf16-autocast": ("fp32", "bf16"),
    "fp16-autocast": ("fp32", "fp16"),
    "bf16-bf16": ("bf16", "bf16"),
}


def points(name: str) -> list[dict[str, Any]]:
    """The runs of one file beside this module."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def title(point: dict[str, Any]) -> str:
    """A test's name for a run."""
    adapter = f" {point['quantised']}" if "quantised" in point else " lora" if "lora" in point else ""
    return f"{point['config']['model_type']} {point['precision']} {point['checkpointing']}{adapter}"


def architecture(config: dict[str, Any]) -> Architecture:
    """The architecture of a config, with the class defaults filled in."""
    result = read_config(dict(config))
    assert isinstance(result, Architecture)
    return result


def job(point: dict[str, Any]) -> TrainingJob:
    """The job that a run traced."""
    weights, autocast = PRECISIONS[point["precision"]]
    lora = point.get("lora")
    mode = point["checkpointing"]
    return TrainingJob(
        model="tiny",
        architecture=architecture(point["config"]),
        training=Training(
            method="qlora" if "quantised" in point else "lora" if lora else "full",
            quantization=Quantization(type=point["quantised"]) if "quantised" in point else None,
            lora=_lora(lora) if lora else None,
            micro_batch_size=point["batch"],
            sequence_length=point["seq"],
            precision=Precision(weights=weights, autocast=autocast),
            optimizer=point["optimizer"],
            checkpointing=Checkpointing(mode="none" if mode == "none" else "full", reentrant=mode == "reentrant"),
            attention=point["attention"],
        ),
    )


def _lora(values: dict[str, Any]) -> Lora:
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Lora(**{**values, **lists})


def simulated(point: dict[str, Any], *, full: bool = False) -> Step:
    """The simulated step of the same job on an A100."""
    return run_step(job(point), (8, 0), full=full)


def peak(phases: dict[str, int]) -> tuple[str, int]:
    """The highest phase and its bytes."""
    return max(phases.items(), key=lambda item: item[1])


def phases_of(step: Step) -> dict[str, int]:
    """Peak of each phase."""
    return {phase.phase: phase.peak_bytes for phase in step.timeline}


def retraced(point: dict[str, Any]) -> dict[str, int]:
    """Trace a run again and give its phase peaks; needs torch and transformers."""
    from memlint.measure.trace.run import trace_model

    result = trace_model(
        point["config"],
        head="causal",
        batch=point["batch"],
        seq=point["seq"],
        precision=point["precision"],
        checkpointing=point["checkpointing"],
        optimizer=point["optimizer"],
        attention=point["attention"],
    )
    return {name: size for name, size in result.phase_peaks.items() if name in point["phase_peaks"]}
