"""Changes that no framework takes together, each with its source."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from memlint.job import TrainingJob
from memlint.plan.remedy import Changes

Value = Callable[[str], Any]

_ADAM_ON_CPU = ("adamw", "adamw-fused", "adamw-foreach", "adam", "lion")
_BNB_8BIT = ("adamw-8bit", "paged-adamw-8bit", "lion-8bit", "paged-lion-8bit", "ademamix-8bit")
_ZERO = ("zero1", "zero2", "zero3")


class Conflict(NamedTuple):
    """A combination that is refused."""

    name: str
    holds: Callable[[Value, str], bool]
    """Given the value of each field after the change, and the dialect: whether the combination is there."""
    why: str
    source: str


def _bitsandbytes_under_fsdp(value: Value, dialect: str) -> bool:
    # axolotl writes torchao's 8-bit AdamW there; under FSDP1 its own validators judge.
    return (
        dialect != "axolotl"
        and value("training.optimizer") in _BNB_8BIT
        and value("parallelism.strategy") in ("fsdp", "hsdp")
    )


def _offload_without_cpu_adam(value: Value, dialect: str) -> bool:
    return (
        value("parallelism.strategy") in _ZERO
        and value("parallelism.offload") in ("optimizer", "all")
        and value("training.optimizer") not in _ADAM_ON_CPU
    )


def _adafactor_on_flat_partitions(value: Value, dialect: str) -> bool:
    return value("training.optimizer") == "adafactor" and value("parallelism.strategy") in _ZERO


def _projections_of_parts(value: Value, dialect: str) -> bool:
    name = str(value("training.optimizer"))
    sharded = value("parallelism.strategy") in (*_ZERO, "fsdp", "fsdp1", "hsdp")
    return sharded and ("galore" in name or name == "apollo")


def _step_in_backward_with_accumulation(value: Value, dialect: str) -> bool:
    return bool(value("training.optimizer_in_backward")) and int(value("training.gradient_accumulation_steps")) > 1


def _step_in_backward_with_clipping(value: Value, dialect: str) -> bool:
    return bool(value("training.optimizer_in_backward")) and value("training.max_grad_norm") is not None


def _gradients_partitioned_in_a_pipeline(value: Value, dialect: str) -> bool:
    return int(value("parallelism.pipeline")) > 1 and value("parallelism.strategy") in ("zero2", "zero3")


def _fused_loss_under_tensor_parallelism(value: Value, dialect: str) -> bool:
    return int(value("parallelism.tensor")) > 1 and value("training.loss") in ("fused", "cut-cross-entropy")


def fp16_weights_under_a_scaler(value: Value, dialect: str) -> bool:
    """Whether fp16 gradients would meet GradScaler, which refuses them."""
    return (
        (value("training.precision.trainable_weights") or value("training.precision.weights")) == "fp16"
        and not value("training.precision.master_weights")
        and value("training.precision.autocast") == "fp16"
        and value("training.method") in ("full", "freeze")
        and value("parallelism.strategy") not in _ZERO
    )


CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        "bitsandbytes-under-fsdp",
        _bitsandbytes_under_fsdp,
        "bitsandbytes' 8-bit optimizers do not take FSDP2's sharded parameters (DTensor)",
        "axolotl 0.18 utils/schemas/validation.py rejects adamw_8bit and adamw_bnb_8bit with FSDP2",
    ),
    Conflict(
        "offload-without-cpu-adam",
        _offload_without_cpu_adam,
        "ZeRO-Offload steps on the CPU and takes DeepSpeedCPUAdam or DeepSpeedCPULion only",
        "DeepSpeed runtime/engine.py _configure_optimizer: raises unless zero_force_ds_cpu_optimizer is off",
    ),
    Conflict(
        "adafactor-on-flat-partitions",
        _adafactor_on_flat_partitions,
        "ZeRO flattens parameters into one dimension, where Adafactor factors nothing and keeps whole fp32 moments",
        "DeepSpeed runtime/zero/stage_1_and_2.py single_partition_of_fp32_groups; transformers optimization.py",
    ),
    Conflict(
        "projections-of-parts",
        _projections_of_parts,
        "GaLore and APOLLO project whole matrices, of which ZeRO and FSDP leave each GPU a part",
        "LLaMA-Factory 0.9.5 hparams/parser.py: 'GaLore and APOLLO are incompatible with DeepSpeed yet.'; galore_torch "
        "1.0 galore_projector.py: an SVD of a two-dimensional gradient",
    ),
    Conflict(
        "step-in-backward-with-accumulation",
        _step_in_backward_with_accumulation,
        "an optimizer that steps inside backward cannot wait for a second micro batch",
        "torchtune recipes/full_finetune_single_device.py: refused with gradient_accumulation_steps > 1",
    ),
    Conflict(
        "step-in-backward-with-clipping",
        _step_in_backward_with_clipping,
        "the norm of all gradients is not known when the first of them is used",
        "torchtune recipes/full_finetune_single_device.py: refused with clip_grad_norm",
    ),
    Conflict(
        "gradients-partitioned-in-a-pipeline",
        _gradients_partitioned_in_a_pipeline,
        "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
        "DeepSpeed runtime/pipe/engine.py: asserts zero_optimization_stage < 2",
    ),
    Conflict(
        "fused-loss-under-tensor-parallelism",
        _fused_loss_under_tensor_parallelism,
        "the fused loss multiplies by the whole output embedding, which tensor parallelism divides",
        "axolotl 0.18 utils/schemas/validation.py: Liger's fused loss refused with tensor_parallel_size > 1",
    ),
    Conflict(
        "fp16-weights-under-a-scaler",
        fp16_weights_under_a_scaler,
        "GradScaler refuses fp16 gradients, so fp16 weights that train need fp32 masters",
        "torch amp/grad_scaler.py _unscale_grads_: 'Attempting to unscale FP16 gradients.'",
    ),
)


REPLACED_BUFFERS = Conflict(
    "buffers-of-a-replaced-config",
    lambda value, dialect: False,
    "another stage or offload is another DeepSpeed config, which states buffers of its own",
    "axolotl 0.18 deepspeed_configs/, LLaMA-Factory 0.9.6 examples/deepspeed/: each file has its sizes",
)
"""Decided by what changes together, not by what then holds."""


def contradiction(changes: Changes, job: TrainingJob, dialect: str) -> Conflict | None:
    """Return the first conflict that ``changes`` bring into ``job``; what the job has already is its own affair."""
    from memlint.dialects.deepspeed_express import BUFFERS
    from memlint.dialects.promises import lookup

    if "parallelism.strategy" in changes and any(name in changes for name in BUFFERS):
        return REPLACED_BUFFERS

    def before(name: str) -> Any:
        return lookup(job, name)

    def after(name: str) -> Any:
        return changes[name] if name in changes else lookup(job, name)

    for conflict in CONFLICTS:
        if conflict.holds(after, dialect) and not conflict.holds(before, dialect):
            return conflict
    return None
