"""A training job as the settings of a trace, or a sentence about what no trace follows; no torch."""

from __future__ import annotations

from typing import Any

from memlint.errors import SettingError, UserError
from memlint.estimate.float8 import Float8
from memlint.job import Checkpointing, Lora, TrainingJob
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

QUANTISED = ("nf4", "fp4", "int8")
"""What bitsandbytes stores."""

SHARDED = ("fsdp", "fsdp2", "hsdp")


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
    tower = values.get("vision_config")
    if isinstance(tower, dict) and "embed_dim" in tower and "head_dim" in tower:
        # Qwen2-VL's tower calls its output's width hidden_size, of which an architecture takes its heads' width; the
        # config class would hold it to embed_dim.
        values["vision_config"] = {key: value for key, value in tower.items() if key != "head_dim"}
    return values


def settings_of(job: TrainingJob, world: int) -> TraceSettings:
    """Translate a job for the tracer. Raises SettingError for what it cannot follow."""
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
        fp32_embedding_states=training.fp32_embedding_states,
        max_grad_norm=training.max_grad_norm,
        accumulation=training.gradient_accumulation_steps,
        lora=_lora(training.lora or Lora(), training.freeze) if training.method in ("lora", "qlora") else None,
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


def _checkpointing(options: Checkpointing) -> str:
    if options.mode == "none":
        return "none"
    return "reentrant" if options.reentrant else "nonreentrant"


def _lora(lora: Lora, frozen: tuple[str, ...]) -> LoraSettings:
    targets = None if lora.targets == "default" else lora.targets
    return LoraSettings(
        rank=lora.rank,
        targets=targets,
        dropout=lora.dropout,
        dora=lora.dora,
        modules_to_save=lora.modules_to_save,
        dtype=lora.dtype,
        spared=frozen,
    )


Check = tuple[bool, str, Any]
"""Whether a job has a setting that cannot be run, its dotted name, and its value."""


def never_run(job: TrainingJob) -> tuple[Check, ...]:
    """What neither a trace nor the real step of ``memlint verify`` runs."""
    training, parallelism = job.training, job.parallelism
    precision, quantization, checkpointing = training.precision, training.quantization, training.checkpointing
    trained = precision.trainable_weights or precision.weights
    experts = "loaded" if quantization is None else quantization.experts
    sharded = parallelism.strategy in SHARDED
    return (
        (training.objective not in HEADS, "training.objective", training.objective),
        (training.method not in ("full", "lora", "qlora", "freeze"), "training.method", training.method),
        (experts != "loaded", "training.quantization.experts", experts),
        (bool(training.liger), "training.liger", ", ".join(training.liger)),
        (precision.master_weights, "training.precision.master_weights", "true"),
        (precision.gradients not in (None, trained), "training.precision.gradients", precision.gradients),
        (precision.optimizer not in (None, trained), "training.precision.optimizer", precision.optimizer),
        (training.attention not in ("eager", "sdpa", "flash"), "training.attention", training.attention),
        (
            checkpointing.mode not in ("none", "full") or checkpointing.offload,
            "training.activation_checkpointing",
            "offload" if checkpointing.offload else checkpointing.mode,
        ),
        (training.images > 0, "training.images", training.images),
        (bool(training.lora and training.lora.kernels), "training.lora.kernels", "true"),
        (bool(training.lora and training.lora.target_parameters), "training.lora.target_parameters", "set"),
        (sharded and parallelism.wrap != "layer", "parallelism.wrap", parallelism.wrap),
        (parallelism.offload != "none", "parallelism.offload", parallelism.offload),
        *((getattr(parallelism, name) > 1, f"parallelism.{name}", getattr(parallelism, name)) for name in _DIVIDED),
    )


_DIVIDED = ("tensor", "pipeline", "context", "expert")


def _refuse(job: TrainingJob) -> None:
    """Name the first setting that no trace follows."""
    training, strategy = job.training, job.parallelism.strategy
    stored = "nf4" if training.quantization is None else training.quantization.type
    for bad, name, value in (
        *never_run(job),
        (stored not in QUANTISED, "training.quantization.type", stored),
        (training.loss != "standard", "training.loss", training.loss),
        (training.compile, "training.compile", "true"),
        (training.precision.fp8 and Float8.of(job) is None, "training.precision.fp8", "true"),
        (training.optimizer not in OPTIMIZERS, "training.optimizer", training.optimizer),
        (training.optimizer_in_backward, "training.optimizer_in_backward", "true"),
        (training.varlen and training.attention != "flash", "training.varlen", f"with {training.attention} attention"),
        (strategy not in ("none", *SHARDED) and not _alone(job), "parallelism.strategy", strategy),
    ):
        if bad:
            raise SettingError(
                f"memlint trace does not follow `{name}: {value}`; use `memlint estimate`, or change it with"
                f" --set {name}=...",
                name,
            )


def _alone(job: TrainingJob) -> bool:
    return job.parallelism.strategy == "ddp" and (job.parallelism.gpus or 1) == 1
