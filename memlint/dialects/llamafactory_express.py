"""LLaMA-Factory: write a change of native fields as its own keys (v0, v1 and Megatron forms)."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from memlint.dialects.llamafactory_express_v1 import DEEPSPEED, express_v1
from memlint.dialects.llamafactory_megatron import MARKS
from memlint.dialects.llamafactory_v0 import recognise_v0
from memlint.dialects.names import NATIVE_TO_HF
from memlint.dialects.promises import Writer
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

Edits = dict[tuple[str | int, ...], KeyEdit]

_OWN_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon")
_V0 = {
    "training.micro_batch_size": "per_device_train_batch_size",
    "training.gradient_accumulation_steps": "gradient_accumulation_steps",
    "training.sequence_length": "cutoff_len",
    "training.packing": "packing",
    "training.completion_length": "max_new_tokens",
    "training.eval_micro_batch_size": "per_device_eval_batch_size",
    "training.lora.rank": "lora_rank",
    "training.lora.alpha": "lora_alpha",
    "training.lora.dropout": "lora_dropout",
    "training.image_pixels": "image_max_pixels",
    "training.trainable_layers": "freeze_trainable_layers",
    "parallelism.tensor": "tensor_model_parallel_size",
    "parallelism.pipeline": "pipeline_model_parallel_size",
    "parallelism.expert": "expert_model_parallel_size",
}


def express(changes: Mapping[str, Any], document: Document, job: TrainingJob) -> Edits:
    """Return edits for ``changes``; the caller checks their promise. A field without a key may follow from others."""
    write = Writer(document, job, changes)
    if not recognise_v0(document):
        express_v1(write, changes)
        return write.edits
    megatron = any(key in write.data for key in MARKS)
    for name, value in changes.items():
        if name == "training.sequence_length" and job.training.objective == "ppo":
            write.set("cutoff_len", max(1, value - (write.wanted("training.completion_length") or 0)))
        elif name in _V0:
            if megatron or not name.startswith("parallelism."):
                write.set(_V0[name], int(value) if name == "training.lora.alpha" else value)
        elif name in _HANDLERS:
            _HANDLERS[name](write, value)
    return write.edits


def _checkpointing(write: Writer, value: Any) -> None:
    if any(key in write.data for key in MARKS):
        if value == "none":
            write.drop("recompute_granularity", "recompute_method", "recompute_num_layers")
        elif value in ("full", "selective"):
            write.set("recompute_granularity", value)
            if value == "full":
                write.set("recompute_method", "uniform")
                write.set("recompute_num_layers", 1)
        return
    if value == "none":
        write.set("disable_gradient_checkpointing", True)
        write.drop("gradient_checkpointing", "gradient_checkpointing_kwargs")
        write.off("use_unsloth_gc")
    elif value in ("full", "offload"):
        write.drop("disable_gradient_checkpointing")
        if write.value("gradient_checkpointing") is False:
            write.drop("gradient_checkpointing")
        if value == "offload":
            write.set("use_unsloth_gc", True)
        else:
            write.off("use_unsloth_gc")
            if not write.edits:
                write.set("disable_gradient_checkpointing", False)


def _offloaded(write: Writer, value: Any) -> None:
    if value:
        _checkpointing(write, "offload")
    else:
        write.off("use_unsloth_gc")


def _reentrant(write: Writer, value: Any) -> None:
    if write.value("gradient_checkpointing"):
        write.put(("gradient_checkpointing_kwargs", "use_reentrant"), value)
    else:
        write.set("use_reentrant_gc", value)


def _optimizer(write: Writer, value: Any) -> None:
    write.drop(*_OWN_OPTIMIZERS)
    own = {"galore-adamw": "use_galore", "apollo": "use_apollo", "muon": "use_muon"}
    if value in own:
        write.set(own[value], True)
        if value == "galore-adamw":
            write.drop("optim")
    elif value in NATIVE_TO_HF:
        write.set("optim", NATIVE_TO_HF[value])


def _autocast(write: Writer, value: Any) -> None:
    if value not in ("bf16", "fp16") or write.job.parallelism.strategy.startswith("zero"):
        return  # under DeepSpeed nothing is autocast: the engine casts the weights
    other = "fp16" if value == "bf16" else "bf16"
    write.set(value, True)
    write.off(other)


def _trainable(write: Writer, value: Any) -> None:
    """Half-precision trainable weights are what ``pure_bf16`` is for."""
    if value == "fp32":
        write.drop("pure_bf16")
    else:
        write.set("pure_bf16", True)


def _attention(write: Writer, value: Any) -> None:
    name = {"eager": "disabled", "sdpa": "sdpa", "flash": "fa2"}.get(value)
    if name is not None:
        write.set("flash_attn", name)


def _loss(write: Writer, value: Any) -> None:
    if value == "fused":
        write.set("enable_liger_kernel", True)
    elif value == "standard":
        write.drop("enable_liger_kernel", "use_liger_kernel")


def _method(write: Writer, value: Any) -> None:
    if value == "full":
        write.set("finetuning_type", "full")
        write.drop("quantization_bit", "quantization_method")
    elif value in ("lora", "qlora"):
        write.set("finetuning_type", "lora")
        write.drop("use_galore", "use_apollo", "use_badam")
        if value == "qlora":
            write.set("quantization_bit", 4)
            write.drop("quantization_method", "fp8")
        elif (write.wanted("training.quantization.bits") or 16) != 8:
            write.drop("quantization_bit", "quantization_method")


def _targets(write: Writer, value: Any) -> None:
    if value == "all-linear":
        write.set("lora_target", "all")
    elif value and value != "default":
        write.set("lora_target", value if isinstance(value, str) else ",".join(value))


def _bits(write: Writer, value: Any) -> None:
    if value in (4, 8):
        write.set("quantization_bit", value)


def _unquantised(write: Writer, value: Any) -> None:
    if value is None:
        write.drop("quantization_bit", "quantization_method")


def _strategy(write: Writer, value: Any) -> None:
    offload = write.changes.get("parallelism.offload", "none")
    if any(key in write.data for key in MARKS):
        if value in ("zero1", "ddp"):
            write.set("use_distributed_optimizer", value == "zero1")
        return
    if value in ("none", "ddp"):
        write.drop("deepspeed", "fsdp", "fsdp_config")
    elif value == "fsdp" and write.job.parallelism.strategy == "fsdp" and isinstance(write.data.get("fsdp"), str):
        _write_offload_word(write, offload)
    elif value == "fsdp":
        write.drop("deepspeed")
        write.set("fsdp", "full_shard auto_wrap" + (" offload" if offload == "all" else ""))
        write.set("fsdp_config", {"version": 2, "reshard_after_forward": True})
    elif (value, offload) in DEEPSPEED:
        write.drop("fsdp", "fsdp_config")
        if value == "zero3":
            write.drop("pure_bf16")
        write.set("deepspeed", DEEPSPEED[value, offload])


def _offload(write: Writer, value: Any) -> None:
    if "parallelism.strategy" in write.changes:
        return  # written together with the strategy
    if write.job.parallelism.offload == "experts":
        if value == "none":
            write.off("use_kt")
        return
    strategy = write.job.parallelism.strategy
    if (strategy, value) in DEEPSPEED:
        write.set("deepspeed", DEEPSPEED[strategy, value])
    elif strategy.startswith("fsdp") and isinstance(write.value("fsdp"), str):
        _write_offload_word(write, value)


def _write_offload_word(write: Writer, offload: Any) -> None:
    kept = [word for word in str(write.value("fsdp")).split() if word != "offload"]
    write.set("fsdp", " ".join([*kept, "offload"] if offload == "all" else kept))


def _clipping(write: Writer, value: Any) -> None:
    write.set("max_grad_norm", 0.0 if value is None else value)


_HANDLERS: dict[str, Callable[[Writer, Any], None]] = {
    "training.checkpointing.mode": _checkpointing,
    "training.checkpointing.offload": _offloaded,
    "training.checkpointing.reentrant": _reentrant,
    "training.optimizer": _optimizer,
    "training.precision.autocast": _autocast,
    "training.precision.trainable_weights": _trainable,
    "training.attention": _attention,
    "training.loss": _loss,
    "training.method": _method,
    "training.lora.targets": _targets,
    "training.quantization": _unquantised,
    "training.quantization.bits": _bits,
    "training.max_grad_norm": _clipping,
    "parallelism.strategy": _strategy,
    "parallelism.offload": _offload,
}
