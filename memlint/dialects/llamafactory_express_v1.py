"""LLaMA-Factory: write a change of native fields as keys of its v1 form; the DeepSpeed files that both forms name."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.promises import Writer

_AUTO = {"enabled": "auto"}
_ZERO1: dict[str, Any] = {
    "zero_optimization": {"stage": 1},
    "bf16": _AUTO,
    "fp16": _AUTO,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
"""Stage 1, which no file of the repository is: written inline."""

DEEPSPEED: dict[tuple[str, str], Any] = {
    ("zero1", "none"): _ZERO1,
    ("zero2", "none"): "examples/deepspeed/ds_z2_config.json",
    ("zero2", "optimizer"): "examples/deepspeed/ds_z2_offload_config.json",
    ("zero3", "none"): "examples/deepspeed/ds_z3_config.json",
    ("zero3", "all"): "examples/deepspeed/ds_z3_offload_config.json",
}
"""Files of LLaMA-Factory's repository, which is the working directory its examples assume."""

_V1 = {
    "training.micro_batch_size": "micro_batch_size",
    "training.sequence_length": "cutoff_len",
}
_V1_PEFT = {
    "training.lora.rank": "r",
    "training.lora.alpha": "lora_alpha",
    "training.lora.dropout": "lora_dropout",
}


def express_v1(write: Writer, changes: Mapping[str, Any]) -> None:
    """Write the changes that the v1 form has keys for."""
    for name, value in changes.items():
        if name in _V1:
            write.set(_V1[name], value)
        elif name in _V1_PEFT and write.data.get("peft_config"):
            write.put(("peft_config", _V1_PEFT[name]), int(value) if name == "training.lora.alpha" else value)
        elif name == "training.gradient_accumulation_steps":
            micro = write.wanted("training.micro_batch_size")
            write.set("global_batch_size", value * micro * (write.job.parallelism.gpus or 1))
        elif name == "training.checkpointing.mode" and value in ("none", "full"):
            write.set("enable_activation_checkpointing", value == "full")
        elif name == "training.attention" and value in ("eager", "sdpa", "flash"):
            write.set("flash_attn", "flash_attention_2" if value == "flash" else value)
        elif name == "training.method":
            _v1_method(write, value)
        elif name == "training.max_grad_norm" and value is not None:
            write.set("max_grad_norm", value)
        elif name == "parallelism.strategy":
            _v1_strategy(write, value, changes.get("parallelism.offload", "none"))
        elif (
            name == "parallelism.offload"
            and "parallelism.strategy" not in changes
            and write.job.parallelism.strategy == "fsdp"
        ):
            write.put(("dist_config", "offload_params"), value == "all")


def _v1_method(write: Writer, value: Any) -> None:
    if value == "full":
        write.drop("peft_config", "quant_config")
    elif value in ("lora", "qlora"):
        rank = write.wanted("training.lora.rank") or 16
        previous = write.data.get("peft_config")
        if not (isinstance(previous, dict) and previous.get("name") == "lora"):
            write.set("peft_config", {"name": "lora", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all"})
        if value == "qlora":
            write.set("quant_config", {"name": "bnb", "quantization_bit": 4})
        else:
            write.drop("quant_config")


def _v1_strategy(write: Writer, value: Any, offload: str) -> None:
    if value == "fsdp":
        config: dict[str, Any] = {"name": "fsdp2"}
        if offload == "all":
            config["offload_params"] = True
        write.set("dist_config", config)
    elif (value, offload) in DEEPSPEED and value != "zero1":
        write.set("dist_config", {"name": "deepspeed", "config_file": DEEPSPEED[value, offload]})
    elif value in ("none", "ddp"):
        write.drop("dist_config")
