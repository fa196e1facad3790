"""What is to be run: the job as this machine can run it, or a sentence about the setting that it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.errors import SettingError
from memlint.estimate.heads import OF_TRAINERS
from memlint.job import TrainingJob, replace_fields
from memlint.measure.trace.from_job import OPTIMIZERS, SHARDED, hf_config, never_run, settings_of
from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.measure.trace.settings import TraceSettings

ALONE = ("none", "device-map")

BITSANDBYTES = {
    "adam-8bit": "Adam8bit",
    "adamw-8bit": "AdamW8bit",
    "paged-adamw-8bit": "PagedAdamW8bit",
    "adamw-bnb": "AdamW32bit",
    "paged-adamw": "PagedAdamW32bit",
    "lion-bnb": "Lion32bit",
    "lion-8bit": "Lion8bit",
}
"""Native name -> class of bitsandbytes.optim."""

STAND_INS = {
    "adam-8bit": "adam8bit",
    "adamw-8bit": "adam8bit",
    "paged-adamw-8bit": "adam8bit",
    "adamw-bnb": "adamw-bnb",
    "paged-adamw": "adamw-bnb",
}
"""Native name -> an optimizer of the trace that only holds tensors of the same sizes."""


TRAINERS = ("hf-trainer", "trl", "axolotl", "LLaMA-Factory")
"""Frameworks whose runs go through transformers' Trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One verification, as the command line or `check --verify` asks for it."""

    job: TrainingJob
    """With its architecture."""
    file: str
    dialect: str
    device: str = "cuda"
    """cuda or cpu."""
    layers: int | None = None
    """Run so many layers instead of all; None: as many as fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of one run."""

    job: TrainingJob
    config: dict[str, Any]
    settings: TraceSettings
    optimizer: str
    """Native name."""
    loss: str
    """standard, fused (Liger), tiled (TRL) or chunked."""
    in_backward: bool
    compile: bool
    grad_scaler: bool
    strategy: str
    """none, ddp or fsdp."""
    trainer: bool
    """transformers' Trainer makes the optimizer."""
    world: int
    device: str


def job_at_hand(job: TrainingJob, world: int) -> tuple[TrainingJob, tuple[str, ...]]:
    """Return the job spread over the ``world`` processes there are, and sentences about what that changed."""
    strategy, gpus = job.parallelism.strategy, job.parallelism.gpus
    if strategy in ALONE:
        if world == 1:
            return job, ()
        changed = replace_fields(job, {"parallelism.strategy": "ddp", "parallelism.gpus": world})
        return changed, (f"the config shards nothing: run as DDP over {world} processes, as Trainer does",)
    notes: tuple[str, ...] = ()
    if gpus is not None and gpus != world:
        notes = (f"the config runs on {gpus} GPUs: run, and predicted, on {world}",)
    elif gpus is None and world == 1:
        notes = (f"{strategy} over one process; `--gpus N` runs it over several",)
    return replace_fields(job, {"parallelism.gpus": world, "parallelism.shard": None}), notes


def plan_run(job: TrainingJob, world: int, device: str) -> Plan:
    """Translate a job. Raises SettingError for what no step can run."""
    training = job.training
    _refuse(job)
    strategy = "fsdp" if job.parallelism.strategy in SHARDED else "ddp" if world > 1 else "none"
    plain = replace_fields(
        job,
        {
            "training.loss": "standard",
            "training.compile": False,
            "training.optimizer_in_backward": False,
            "training.optimizer": training.optimizer if training.optimizer in OPTIMIZERS else "adamw",
            "parallelism.strategy": "fsdp" if strategy == "fsdp" else "none",
        },
    )
    return Plan(
        job=job,
        config=hf_config(job),
        settings=settings_of(plain, world),
        optimizer=training.optimizer,
        loss="tiled" if training.loss == "chunked" and job.framework.startswith("trl") else training.loss,
        in_backward=training.optimizer_in_backward,
        compile=training.compile,
        grad_scaler=training.precision.grad_scaler,
        strategy=strategy,
        trainer=job.framework.startswith(TRAINERS),
        world=world,
        device=device,
    )


def _refuse(job: TrainingJob) -> None:
    training, quantization = job.training, job.training.quantization
    strategy, loss = job.parallelism.strategy, training.loss
    checks: tuple[tuple[bool, str, Any], ...] = (
        *never_run(job),
        (quantization is not None and quantization.bits != 4, "training.quantization.type", _type(quantization)),
        (
            loss in ("cut-cross-entropy", *OF_TRAINERS) or (loss != "standard" and training.objective != "causal-lm"),
            "training.loss",
            loss,
        ),
        (training.precision.fp8, "training.precision.fp8", "true"),
        (training.optimizer not in (*OPTIMIZERS, *BITSANDBYTES), "training.optimizer", training.optimizer),
        (training.varlen, "training.varlen", "true"),
        (strategy not in (*ALONE, "ddp", *SHARDED), "parallelism.strategy", strategy),
    )
    for refused, name, value in checks:
        if refused:
            raise SettingError(
                f"memlint verify does not run `{name}: {value}`; change it with `--set {name}=...`,"
                " or use `memlint estimate`",
                name,
            )


def _type(quantization: Any) -> str:
    return "" if quantization is None else str(quantization.type)
