"""Changes of native fields, written as TrainingArguments keys."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.hf_trainer_sharding import express_sharding
from memlint.dialects.names import NATIVE_TO_ATTENTION, NATIVE_TO_DTYPE, NATIVE_TO_HF
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import KeyPath, TrainingJob


def express_arguments(
    changes: Mapping[str, Any], document: Document, job: TrainingJob, *, prefix: KeyPath = (), model_keys: bool = False
) -> tuple[KeyEdit, ...] | None:
    """Write ``changes`` as keys of the mapping at ``prefix``; None when one of them has no key there.

    ``model_keys`` says that the file also loads the model (TRL's ModelConfig): dtype, attention, PEFT, quantisation.
    """
    data = _mapping_at(document, prefix)
    edits: list[KeyEdit] = []

    def put(key: str, value: Any, *more: str | int) -> None:
        edits.append(KeyEdit(path=(*prefix, key, *more), value=value))

    for field, value in changes.items():
        if field == "training.micro_batch_size":
            put("per_device_train_batch_size", value)
        elif field == "training.eval_micro_batch_size" and isinstance(value, int):
            put("per_device_eval_batch_size", value)
        elif field == "training.gradient_accumulation_steps":
            put("gradient_accumulation_steps", value)
        elif field == "training.precision.autocast" and value in ("bf16", "fp16"):
            put(value, True)
            other = "fp16" if value == "bf16" else "bf16"
            if data.get(other):
                put(other, False)
        elif field == "training.precision.grad_scaler":
            continue
        elif field == "training.optimizer" and value in NATIVE_TO_HF:
            put("optim", NATIVE_TO_HF[value])
        elif field == "training.checkpointing.mode" and value in ("none", "full"):
            fsdp = data.get("fsdp_config")
            if data.get("fsdp") and isinstance(fsdp, dict):
                put("fsdp_config", value == "full", "activation_checkpointing")
            else:
                key = "activation_checkpointing" if "activation_checkpointing" in data else "gradient_checkpointing"
                put(key, value == "full")
        elif field == "training.checkpointing.reentrant" and isinstance(value, bool):
            put(_checkpointing_options(data), value, "use_reentrant")
        elif field == "training.checkpointing.every" and isinstance(value, int):
            put(_checkpointing_options(data), value, "every_n_layers")
        elif field == "training.checkpointing.offload" and isinstance(value, bool) and not model_keys:
            put(_checkpointing_options(data), value, "offload")
        elif field == "training.max_grad_norm":
            put("max_grad_norm", 0.0 if value is None else value)
        elif field == "training.loss" and value == "fused" and not model_keys:
            put("use_liger_kernel", True)
        elif field == "training.compile" and isinstance(value, bool):
            put("torch_compile", value)
        elif field.startswith("parallelism."):
            continue
        elif model_keys:
            found = _model(field, value, changes, data, prefix, job)
            if found is None:
                return None
            edits.extend(found)
        else:
            return None
    sharding = {field: value for field, value in changes.items() if field.startswith("parallelism.")}
    if sharding:
        more = express_sharding(sharding, data, prefix, document, job)
        if more is None:
            return None
        edits.extend(more)
    return tuple(edits) if edits or not changes else None


def _checkpointing_options(data: Mapping[str, Any]) -> str:
    new = "activation_checkpointing_kwargs"
    return new if new in data else "gradient_checkpointing_kwargs"


def _mapping_at(document: Document, prefix: KeyPath) -> Mapping[str, Any]:
    data: Any = document.data
    for part in prefix:
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _model(
    field: str, value: Any, changes: Mapping[str, Any], data: Mapping[str, Any], prefix: KeyPath, job: TrainingJob
) -> list[KeyEdit] | None:
    """Keys of TRL's ModelConfig and trainer configs."""

    def edit(key: str, new: Any) -> KeyEdit:
        return KeyEdit(path=(*prefix, key), value=new)

    if field == "training.precision.weights" and value in NATIVE_TO_DTYPE:
        return [edit("torch_dtype" if "torch_dtype" in data else "dtype", NATIVE_TO_DTYPE[value])]
    if field == "training.attention" and value in NATIVE_TO_ATTENTION:
        return [edit("attn_implementation", NATIVE_TO_ATTENTION[value])]
    if field == "training.completion_length" and isinstance(value, int):
        return [edit("response_length" if job.training.objective == "ppo" else "max_completion_length", value)]
    if field == "training.rollout_batch_size" and isinstance(value, int):
        return [edit("local_rollout_forward_batch_size", value)]
    if field == "training.sequence_length" and isinstance(value, int) and job.training.objective not in ("grpo", "ppo"):
        return [edit("max_seq_length" if "max_seq_length" in data else "max_length", value)]
    if field == "training.checkpointing.offload" and isinstance(value, bool):
        return [edit("activation_offloading", value)]
    if field == "training.packing" and value is True and job.training.objective == "causal-lm":
        return [edit("packing", True)]
    if field == "training.loss" and value == "fused":
        return [edit("use_liger" if "use_liger" in data else "use_liger_kernel", True)]
    if field == "training.reference_model" and value == "precomputed":
        return [edit("precompute_ref_log_probs", True)]
    if field == "training.method" and value in ("lora", "qlora", "full"):
        if value == "full":
            edits = [edit("use_peft", False)]
            edits.extend(edit(key, False) for key in ("load_in_4bit", "load_in_8bit") if data.get(key))
            adapter = [key for key in data if isinstance(key, str) and key.startswith("lora_")]
            return [*edits, *(KeyEdit(path=(*prefix, key), delete=True) for key in adapter)]
        edits = [edit("use_peft", True)]
        if "training.lora.targets" not in changes and not data.get("lora_target_modules"):
            edits.append(edit("lora_target_modules", "all-linear"))
        if value == "qlora":
            edits.append(edit("load_in_4bit", True))
        else:
            edits.extend(edit(key, False) for key in ("load_in_4bit", "load_in_8bit") if data.get(key))
        return edits
    if field == "training.lora.rank" and isinstance(value, int):
        return [edit("lora_r", value)]
    if field == "training.lora.dropout":
        return [edit("lora_dropout", value)]
    if field == "training.lora.targets" and (value == "all-linear" or isinstance(value, (list, tuple))):
        return [edit("lora_target_modules", value if isinstance(value, str) else list(value))]
    if field == "training.lora.dora" and isinstance(value, bool):
        return [edit("use_dora", value)]
    if field == "training.quantization.double_quant" and isinstance(value, bool):
        return [edit("use_bnb_nested_quant", value)]
    if field.startswith(("training.lora", "training.quantization")) and changes.get("training.method") in (
        "lora",
        "qlora",
    ):
        # What `use_peft` and `load_in_4bit` bring with them.
        return []
    return None
