"""From a training job to a trace, and from a trace to the contract's estimate (method ``traced``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from memlint.errors import UserError
from memlint.estimate.float8 import Float8
from memlint.estimate.result import COMPONENTS, Estimate, PhasePeak
from memlint.hardware.target import Target
from memlint.job import Checkpointing, Lora, TrainingJob
from memlint.measure.trace.result import TraceResult
from memlint.measure.trace.settings import DEFAULT_SKIP, LoraSettings, TraceSettings

HEADS = {
    "causal-lm": "causal",
    "masked-lm": "mlm",
    "seq2seq-lm": "seq2seq",
    "sequence-classification": "seqcls",
    "token-classification": "tokcls",
}

OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "adamw-foreach": "adamw",
    "adamw-fused": "adamw-fused",
    "paged-adamw": "adamw-bnb",
    "adamw-bnb": "adamw-bnb",
    "adam-8bit": "adam8bit",
    "adamw-8bit": "adam8bit",
    "paged-adamw-8bit": "adam8bit",
    "sgd": "sgd",
    "sgd-momentum": "sgd-momentum",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
    "adamax": "adamax",
    "adafactor": "adafactor",
}
"""Native name -> name in :mod:`memlint.measure.trace.optimizers`."""

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

STEP_PHASES = ("forward", "loss", "backward", "clip", "optimizer")


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
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise UserError(
            f"transformers' code of `{config['model_type']}` does not run on fake tensors with these settings"
            f" ({type(error).__name__}: {said}); MEMLINT_DEBUG=1 shows where"
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
        raise UserError(f"this transformers has no model type `{kind}`, so there is no code to trace")
    if not trusted:
        raise UserError(
            f"the model type `{kind}` is code of the model's own repository, which memlint does not run; pass"
            " --trust-remote-code if you trust it"
        )
    if not isinstance(job.model, str):
        raise UserError(f"an inline config brings no code along; name the repository or folder of the `{kind}` model")
    return job.model


def hf_config(job: TrainingJob) -> dict[str, Any]:
    """The HF config of the job's model as its own class reads it. Raises UserError when there is none."""
    architecture = job.architecture
    if architecture is None:
        raise UserError(f"the model {job.model} is not known, so there is no code to trace")
    left_out = ("torch_dtype", "dtype", "quantization_config", "transformers_version", "architectures", "use_cache")
    values = {key: value for key, value in architecture.config.items() if key not in left_out}
    values["model_type"] = architecture.model_type
    if job.training.vocab_size is not None:
        values["vocab_size"] = job.training.vocab_size
    return values


def settings_of(job: TrainingJob, world: int) -> TraceSettings:
    """Translate a job for the tracer. Raises UserError for what it cannot follow."""
    training, precision = job.training, job.training.precision
    _refuse(job)
    quantized = training.quantization
    batch, seq = training.micro_batch_size, training.sequence_length
    if training.varlen:
        batch, seq = 1, batch * seq
    return TraceSettings(
        head=HEADS[training.objective],
        batch=batch,
        seq=seq,
        target_seq=training.target_sequence_length,
        padding=training.padding and not training.varlen,
        weights=precision.weights,
        trainable_weights=precision.trainable_weights,
        fp32_modules=precision.fp32_modules,
        autocast=precision.autocast,
        checkpointing=_checkpointing(training.checkpointing),
        checkpoint_every=training.checkpointing.every,
        attention=training.attention,
        optimizer=OPTIMIZERS[training.optimizer],
        max_grad_norm=training.max_grad_norm,
        accumulation=training.gradient_accumulation_steps,
        lora=_lora(training.lora or Lora()) if training.method in ("lora", "qlora") else None,
        quantised=quantized.type if quantized is not None else None,
        double_quant=quantized.double_quant if quantized is not None else True,
        kbit_preparation=quantized.kbit_preparation if quantized is not None else False,
        skip_quantization=quantized.skip if quantized is not None else DEFAULT_SKIP,
        float8=Float8.of(job),
        freeze=training.freeze,
        train_last=training.trainable_layers if training.method == "freeze" else None,
        train_only=training.trainable_patterns if training.method == "freeze" else (),
        shards=(job.parallelism.shard or world) if job.parallelism.strategy in SHARDED else 1,
        reshard_after_forward=job.parallelism.reshard_after_forward,
    )


QUANTISED = ("nf4", "fp4", "int8")
"""What bitsandbytes stores."""

SHARDED = ("fsdp", "fsdp2", "hsdp")


def _checkpointing(options: Checkpointing) -> str:
    if options.mode == "none":
        return "none"
    return "reentrant" if options.reentrant else "nonreentrant"


def _lora(lora: Lora) -> LoraSettings:
    targets = None if lora.targets == "default" else lora.targets
    return LoraSettings(
        rank=lora.rank,
        targets=targets,
        dropout=lora.dropout,
        dora=lora.dora,
        modules_to_save=lora.modules_to_save,
        dtype=lora.dtype,
    )


def _refuse(job: TrainingJob) -> None:
    """Name the first setting that no trace follows."""
    training, parallelism = job.training, job.parallelism
    precision, quantization = training.precision, training.quantization
    trained = precision.trainable_weights or precision.weights
    checks: tuple[tuple[bool, str, Any], ...] = (
        (training.objective not in HEADS, "training.objective", training.objective),
        (training.method not in ("full", "lora", "qlora", "freeze"), "training.method", training.method),
        (
            quantization is not None and quantization.type not in QUANTISED,
            "training.quantization.type",
            quantization.type if quantization is not None else None,
        ),
        (
            quantization is not None and quantization.experts == "fused",
            "training.quantization.experts",
            "fused",
        ),
        (training.loss != "standard", "training.loss", training.loss),
        (bool(training.liger), "training.liger", ", ".join(training.liger)),
        (training.compile, "training.compile", "true"),
        (precision.fp8 and Float8.of(job) is None, "training.precision.fp8", "true"),
        (precision.master_weights, "training.precision.master_weights", "true"),
        (precision.gradients not in (None, trained), "training.precision.gradients", precision.gradients),
        (precision.optimizer not in (None, trained), "training.precision.optimizer", precision.optimizer),
        (training.optimizer not in OPTIMIZERS, "training.optimizer", training.optimizer),
        (training.optimizer_in_backward, "training.optimizer_in_backward", "true"),
        (training.attention not in ("eager", "sdpa", "flash"), "training.attention", training.attention),
        (training.varlen and training.attention != "flash", "training.varlen", f"with {training.attention} attention"),
        (
            training.checkpointing.mode not in ("none", "full") or training.checkpointing.offload,
            "training.activation_checkpointing",
            training.checkpointing.mode,
        ),
        (training.images > 0, "training.images", training.images),
        (bool(training.lora and training.lora.kernels), "training.lora.kernels", "true"),
        (bool(training.lora and training.lora.target_parameters), "training.lora.target_parameters", "set"),
        (
            parallelism.strategy not in ("none", *SHARDED) and not _alone(job),
            "parallelism.strategy",
            parallelism.strategy,
        ),
        (parallelism.strategy in SHARDED and parallelism.wrap != "layer", "parallelism.wrap", parallelism.wrap),
        (parallelism.offload != "none", "parallelism.offload", parallelism.offload),
    )
    for bad, name, value in checks:
        if bad:
            raise UserError(
                f"memlint trace does not follow `{name}: {value}`; use `memlint estimate`, or change it with"
                f" --set {name}=..."
            )
    for name in ("tensor", "pipeline", "context", "expert"):
        ways = getattr(parallelism, name)
        if ways > 1:
            raise UserError(f"memlint trace does not follow `parallelism.{name}: {ways}`; use `memlint estimate`")


def _alone(job: TrainingJob) -> bool:
    return job.parallelism.strategy == "ddp" and (job.parallelism.gpus or 1) == 1


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

    phases = [phase for phase in STEP_PHASES if phase in result.phase_peaks]
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
        first_step={"peak_bytes": result.first_step_peak_bytes},
    )
