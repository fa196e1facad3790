"""axolotl: write a change of native fields as axolotl's own keys."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from memlint.dialects.axolotl_batch import LEGACY_ATTENTION
from memlint.dialects.names import NATIVE_TO_ATTENTION, NATIVE_TO_HF
from memlint.dialects.promises import Writer
from memlint.dialects.values import as_bool, as_mapping, as_strings
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

CUT_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_OTHER_LOSSES = ("chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy")

_AUTO = {"enabled": "auto"}
_ZERO2: dict[str, Any] = {
    "zero_optimization": {"stage": 2, "contiguous_gradients": True, "overlap_comm": True},
    "bf16": _AUTO,
    "fp16": _AUTO,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
"""Stage 2 without offload, which no shipped file is: written inline."""

_DEEPSPEED: dict[tuple[str, str], Any] = {
    ("zero1", "none"): "deepspeed_configs/zero1.json",
    ("zero2", "none"): _ZERO2,
    ("zero2", "optimizer"): "deepspeed_configs/zero2.json",
    ("zero3", "none"): "deepspeed_configs/zero3_bf16.json",
    ("zero3", "parameters"): "deepspeed_configs/zero3_bf16_cpuoffload_params.json",
    ("zero3", "all"): "deepspeed_configs/zero3_bf16_cpuoffload_all.json",
}
"""Shipped files (``axolotl fetch deepspeed_configs``) by what they do; zero2.json offloads the optimizer."""

_LORA = {
    "training.lora.rank": "lora_r",
    "training.lora.alpha": "lora_alpha",
    "training.lora.dropout": "lora_dropout",
}
_PLAIN = {
    "training.micro_batch_size": "micro_batch_size",
    "training.gradient_accumulation_steps": "gradient_accumulation_steps",
    "training.sequence_length": "sequence_len",
    "training.eval_micro_batch_size": "eval_batch_size",
    "parallelism.tensor": "tensor_parallel_size",
    "parallelism.context": "context_parallel_size",
}


def express(changes: Mapping[str, Any], document: Document, job: TrainingJob) -> dict[tuple[str | int, ...], KeyEdit]:
    """Return edits for ``changes`` (native dotted fields); the caller checks that they keep their promise.

    A field without a key of its own is passed over: it may follow from the others (``precision.fp32_modules``).
    """
    write = Writer(document, job, changes)
    for name, value in changes.items():
        handler = _HANDLERS.get(name)
        if name in _PLAIN and isinstance(value, int):
            write.set(_PLAIN[name], value)
            if name == "training.gradient_accumulation_steps":
                write.drop("batch_size")
        elif name in _LORA:
            write.set(_LORA[name], value)
        elif handler is not None:
            handler(write, value)
    return write.edits


def _checkpointing(write: Writer, value: Any) -> None:
    fsdp = as_mapping(write.data.get("fsdp_config")) or {}
    own = next((key for key in ("activation_checkpointing", "fsdp_activation_checkpointing") if fsdp.get(key)), None)
    if value not in ("none", "full", "offload"):
        return
    write.drop("selective_checkpointing")
    if value == "none":
        write.set("gradient_checkpointing", False)
        write.drop("activation_offloading", "gradient_checkpointing_kwargs")
        if own:
            write.put(("fsdp_config", own), False)
        return
    if own is None or value == "offload":
        write.set("gradient_checkpointing", True)
    if value == "offload":
        write.set("activation_offloading", True)
        return
    write.drop("activation_offloading")
    if write.data.get("gradient_checkpointing_kwargs") is None and own is None:
        write.set("gradient_checkpointing_kwargs", {"use_reentrant": False})


def _reentrant(write: Writer, value: Any) -> None:
    if isinstance(write.value("gradient_checkpointing_kwargs"), dict):
        write.put(("gradient_checkpointing_kwargs", "use_reentrant"), value)
    elif write.wanted("training.checkpointing.mode") != "none":
        write.set("gradient_checkpointing_kwargs", {"use_reentrant": value})


def _offloaded(write: Writer, value: Any) -> None:
    if value:
        _checkpointing(write, "offload")
    else:
        write.drop("activation_offloading")


def _optimizer(write: Writer, value: Any) -> None:
    name = NATIVE_TO_HF.get(value)
    if name is None:
        return
    if value == "adamw-8bit" and write.wanted("parallelism.strategy") in ("fsdp", "hsdp"):
        name = "adamw_torch_8bit"
    write.set("optimizer", name)
    write.drop("optim_args", "optim_target_modules")


def _half(write: Writer, value: Any) -> None:
    """``bf16`` and ``fp16`` set load dtype and autocast at once."""
    if value not in ("bf16", "fp16"):
        return
    other, pure = ("fp16", "float16") if value == "bf16" else ("bf16", "bfloat16")
    write.set(value, True)
    if write.value(other) is not None or other == "bf16":
        write.set(other, False)
    write.off("float32", pure)


def _autocast(write: Writer, value: Any) -> None:
    if not write.job.parallelism.strategy.startswith("zero"):
        _half(write, value)  # under DeepSpeed nothing is autocast: the engine casts the weights


def _attention(write: Writer, value: Any) -> None:
    name = NATIVE_TO_ATTENTION.get(value)
    if name is not None:
        write.drop(*LEGACY_ATTENTION)
        write.set("attn_implementation", name)


def _loss(write: Writer, value: Any) -> None:
    plugins = list(as_strings(write.value("plugins")) or ())
    if value == "standard":
        kept = [plugin for plugin in plugins if not plugin.endswith("CutCrossEntropyPlugin")]
        if kept != plugins:
            write.set("plugins", kept)
        write.drop("cut_cross_entropy", *_OTHER_LOSSES)
        write.off("dpo_use_liger_kernel")
    if value != "fused":
        return
    rl = write.data.get("rl")
    if rl is not None:
        # Losses from log-probabilities: Liger's own of TRL's trainers (core/builders/rl.py).
        if rl in ("dpo", "ipo"):
            write.set("dpo_use_liger_kernel", True)
        elif rl in ("grpo", "gdpo"):
            write.put(("trl", "use_liger_loss"), True)
        return
    tensor = (write.wanted("parallelism.tensor") or 1) > 1
    if any(plugin.endswith("LigerPlugin") for plugin in plugins) and not tensor:
        write.drop(*_OTHER_LOSSES, "cut_cross_entropy")
        write.set("liger_fused_linear_cross_entropy", True)
    elif write.wanted("training.precision.autocast") or write.wanted("training.precision.weights") != "fp32":
        # Cut cross entropy refuses fp32 (integrations/cut_cross_entropy/args.py).
        if not any(plugin.endswith("CutCrossEntropyPlugin") for plugin in plugins):
            write.set("plugins", [*plugins, CUT_PLUGIN])
        write.drop(*_OTHER_LOSSES)
        write.set("cut_cross_entropy", True)


def _method(write: Writer, value: Any) -> None:
    if value == "full":
        write.drop("adapter", "load_in_4bit", "load_in_8bit", "unfrozen_parameters")
    if value not in ("lora", "qlora"):
        return
    write.set("adapter", value)
    if value == "qlora":
        write.set("load_in_4bit", True)
        write.off("load_in_8bit")
    elif (write.wanted("training.quantization.bits") or 16) != 8:
        write.off("load_in_4bit", "load_in_8bit")
    if write.value("lora_r") is None and "training.lora.rank" not in write.changes:
        write.set("lora_r", 16)
        write.set("lora_alpha", 32)
    targeted = write.value("lora_target_modules") or write.value("lora_target_linear")
    if not targeted and "training.lora.targets" not in write.changes:
        write.set("lora_target_linear", True)
    write.drop("unfrozen_parameters")


def _targets(write: Writer, value: Any) -> None:
    if value == "all-linear":
        write.drop("lora_target_modules")
        write.set("lora_target_linear", True)
    elif value and value != "default":
        write.off("lora_target_linear")
        write.set("lora_target_modules", value if isinstance(value, str) else list(value))


def _bits(write: Writer, value: Any) -> None:
    if value == 8 and write.wanted("training.method") == "lora":
        write.off("load_in_4bit")
        write.set("load_in_8bit", True)


def _unquantised(write: Writer, value: Any) -> None:
    if value is None:
        write.off("load_in_4bit", "load_in_8bit")


def _strategy(write: Writer, value: Any) -> None:
    offload = write.changes.get("parallelism.offload", "none")
    if value in ("none", "ddp"):
        write.drop("deepspeed", "fsdp", "fsdp_config", "fsdp_version")
    elif value == "fsdp":
        _write_fsdp(write, offload)
    elif (value, offload) in _DEEPSPEED:
        write.drop("fsdp", "fsdp_config", "fsdp_version")
        write.set("deepspeed", _DEEPSPEED[value, offload])


def _write_fsdp(write: Writer, offload: str) -> None:
    previous = write.data.get("fsdp_config")
    if write.job.parallelism.strategy == "fsdp" and isinstance(previous, dict):
        # FSDP2 already: only what differs, in the file's own spelling.
        _set_within(write, previous, "offload_params", offload == "all")
        _set_within(write, previous, "reshard_after_forward", True)
        return
    write.drop("deepspeed", "fsdp")
    write.set("fsdp_version", 2)
    if write.value("optimizer") in ("adamw_8bit", "adamw_bnb_8bit"):
        write.set("optimizer", "adamw_torch_8bit")  # the bitsandbytes kernel does not work with FSDP2
    config: dict[str, Any] = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "offload_params": offload == "all",
    }
    if isinstance(previous, dict):
        for key in ("state_dict_type", "cpu_ram_efficient_loading"):  # what is saved and loaded stays as it is
            kept = previous.get(key, previous.get(f"fsdp_{key}"))
            if kept is not None:
                config[key] = kept
        wrapped = previous.get("transformer_layer_cls_to_wrap", previous.get("fsdp_transformer_layer_cls_to_wrap"))
        if wrapped:
            config["transformer_layer_cls_to_wrap"] = wrapped
        for key in ("activation_checkpointing", "fsdp_activation_checkpointing"):
            if previous.get(key):
                config["activation_checkpointing"] = True
    write.set("fsdp_config", config)


def _set_within(write: Writer, previous: Mapping[str, Any], key: str, value: bool) -> None:
    """Set a flag of ``fsdp_config`` that says something else; an absent one is false (offload) or true (reshard)."""
    name = f"fsdp_{key}" if f"fsdp_{key}" in previous else key
    if as_bool(previous.get(name, key == "reshard_after_forward")) is not value:
        write.put(("fsdp_config", name), value)


def _offload(write: Writer, value: Any) -> None:
    if "parallelism.strategy" in write.changes:
        return  # written together with the strategy
    strategy = write.job.parallelism.strategy
    fsdp = write.data.get("fsdp_config")
    if (strategy, value) in _DEEPSPEED:
        write.set("deepspeed", _DEEPSPEED[strategy, value])
    elif strategy in ("fsdp", "fsdp1", "hsdp") and isinstance(fsdp, dict):
        key = "fsdp_offload_params" if "fsdp_offload_params" in fsdp else "offload_params"
        write.put(("fsdp_config", key), value == "all")


def _packing(write: Writer, value: Any) -> None:
    if value:
        write.set("sample_packing", True)


def _clipping(write: Writer, value: Any) -> None:
    write.set("max_grad_norm", 0.0 if value is None else value)


def _frozen(write: Writer, value: Any) -> None:
    if value:
        write.set("freeze_mm_modules", True)


_HANDLERS: dict[str, Callable[[Writer, Any], None]] = {
    "training.checkpointing.mode": _checkpointing,
    "training.checkpointing.offload": _offloaded,
    "training.checkpointing.reentrant": _reentrant,
    "training.optimizer": _optimizer,
    "training.precision.autocast": _autocast,
    "training.precision.weights": _half,
    "training.attention": _attention,
    "training.loss": _loss,
    "training.method": _method,
    "training.lora.targets": _targets,
    "training.quantization": _unquantised,
    "training.quantization.bits": _bits,
    "training.max_grad_norm": _clipping,
    "training.packing": _packing,
    "training.freeze": _frozen,
    "parallelism.strategy": _strategy,
    "parallelism.offload": _offload,
}
