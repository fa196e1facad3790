"""Jobs whose predicted bytes are kept in ``exact_bytes.jsonl``: every model type, each under a few of many setups.

The tensors of the simulation die by Python's reference counting, so a prediction must not depend on how an interpreter
treats the arguments of a call. ``held`` is the sum of what is live at every allocation of the step with all its layers
run: a tensor that lives one allocation longer or shorter changes it, also where no peak does.
"""

from __future__ import annotations

import os
import zlib
from typing import Any, Iterator

from memlint.estimate.engine.pool import Storage
from memlint.estimate.engine.tape import Tape
from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.models.families import FAMILIES
from tests.estimate.vision_configs import CONFIGS as WITH_IMAGES

PATH = os.path.join(os.path.dirname(__file__), "exact_bytes.jsonl")
PER_TYPE = 3
WORLD = 8

FULL = {"training.precision.weights": "bf16", "training.precision.autocast": None}
LORA = {"training.method": "lora", "training.precision.weights": "bf16"}
AGAIN = {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": False}
REENTRANT = {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": True}
EAGER = {"training.attention": "eager"}
SETUPS: dict[str, dict[str, Any]] = {
    "full": {},
    "full eager": EAGER,
    "full bf16": FULL,
    "full bf16 eager reentrant": {**FULL, **EAGER, **REENTRANT},
    "full checkpointed": AGAIN,
    "full fp32 offloaded": {"training.precision.autocast": None, **AGAIN, "training.checkpointing.offload": True},
    "full accumulated": {**FULL, "training.gradient_accumulation_steps": 4},
    "lora": {**LORA, "training.lora.dropout": 0.1},
    "lora checkpointed": {**LORA, **AGAIN},
    "lora fp32 eager": {"training.method": "lora", **EAGER},
    "qlora reentrant": {"training.method": "qlora", "training.precision.weights": "bf16", **REENTRANT},
    "dora": {**LORA, "training.lora.dora": True},
    "last layers": {"training.method": "freeze", "training.trainable_layers": 2},
    "padding": {"training.padding": True},
    "padding eager checkpointed": {"training.padding": True, **EAGER, **AGAIN},
    "flash": {**FULL, "training.attention": "flash"},
    "sequence classes": {"training.objective": "sequence-classification"},
    "sequence classes lora": {"training.objective": "sequence-classification", **LORA},
    "token classes bf16": {"training.objective": "token-classification", **FULL},
    "dpo lora": {"training.objective": "dpo", "training.reference_model": "adapter", **LORA},
    "reward checkpointed": {"training.objective": "reward", **AGAIN},
    "chunked loss": {**FULL, "training.loss": "chunked"},
    "fused loss": {**FULL, "training.loss": "fused", "training.liger": ("rms_norm", "swiglu", "rope")},
    "fsdp": {"parallelism.strategy": "fsdp"},
    "fsdp lora checkpointed": {"parallelism.strategy": "fsdp", **LORA, **AGAIN},
    "zero3": {"parallelism.strategy": "zero3", **FULL},
    "torchtune": {"framework": "torchtune", **FULL, "training.loss": "chunked"},
    "litgpt": {"framework": "litgpt", **LORA, "training.loss": "chunked"},
    "transformers 4.40": {"versions": {"transformers": "4.40.0", "torch": "2.2.0"}, **FULL},
}
NEEDED = {
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit"},
        "decoder": {"model_type": "trocr", "cross_attention_hidden_size": 768},
    },
}
"""Fields without a usable default in transformers' class."""
OBJECTIVES = {"encoder": "masked-lm", "encoder-decoder": "seq2seq-lm"}
ALWAYS = ("full", "lora checkpointed", "torchtune", "litgpt")
"""Setups of the type that stands for its family: its first."""


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Family and config of every type: transformers' class defaults, or a small config where those do not do."""
    for family, types in FAMILIES.items():
        for model_type in types:
            yield family, WITH_IMAGES.get(model_type, {"model_type": model_type, **NEEDED.get(model_type, {})})


def starting(family: str, config: dict[str, Any]) -> TrainingJob | None:
    """The job that a type's setups change; None where there is no memory model."""
    architecture = read_config(dict(config))
    if not isinstance(architecture, Architecture):
        return None
    start = TrainingJob(model=str(config["model_type"]), architecture=architecture)
    start = replace_fields(start, {"training.sequence_length": 192, "training.micro_batch_size": 2})
    if family == "vision-language":
        start = replace_fields(start, {"training.images": 1})
    if family in OBJECTIVES:
        start = replace_fields(start, {"training.objective": OBJECTIVES[family]})
    return start


def runs(family: str) -> Iterator[dict[str, Any]]:
    """What is predicted for each of a family's runs; types and setups that have no memory model are left out."""
    first = True
    for kind, config in configs():
        start = starting(kind, config) if kind == family else None
        if start is None:
            continue
        model_type = str(config["model_type"])
        chosen = sorted(SETUPS, key=lambda name: zlib.crc32(f"{model_type} {name}".encode()))
        found, first_of_family = 0, first
        for name in dict.fromkeys([*(ALWAYS if first else ()), *chosen]):
            if found >= max(PER_TYPE, len(ALWAYS) * first_of_family):
                break
            try:
                step = predicted(replace_fields(start, SETUPS[name]))
            except Unsupported:
                continue
            found += 1
            first = False
            yield {"job": f"{model_type}: {name}", "family": family, **step}


def predicted(job: TrainingJob) -> dict[str, Any]:
    """The exact bytes of one step: each phase's peak and end, and the components of the highest."""
    world = WORLD if job.parallelism.strategy != "none" else 1
    step = run_step(job, (8, 0), world=world)
    top = max(step.timeline, key=lambda phase: phase.peak_bytes)
    return {
        "phase": top.phase,
        "components": {name: size for name, size in top.components.items() if size},
        "phases": {phase.phase: [phase.peak_bytes, phase.end_bytes] for phase in step.timeline},
        "held": held_of(job, world),
    }


def held_of(job: TrainingJob, world: int) -> int:
    """The sum of what is live at every allocation of a step."""
    tape = Tape()
    pool = tape.pool
    held = 0

    def watch(storage: Storage | None, size: int) -> None:
        nonlocal held
        if size:
            held += pool.live

    pool.watch = watch
    run_step(job, (8, 0), world=world, full=True, tape=tape)
    pool.watch = None
    return held


def start_of(model_type: str) -> TrainingJob:
    """The first of a type's jobs that has a memory model."""
    for family, config in configs():
        start = starting(family, config) if config["model_type"] == model_type else None
        if start is not None:
            return start
    raise AssertionError(model_type)
