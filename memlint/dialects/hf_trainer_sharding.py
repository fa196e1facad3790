"""Changes of sharding and offload, written where a Trainer's job has them: its own keys or the file it names."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.deepspeed_express import express_buffers, express_deepspeed, spelling
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import KeyPath, Origin, TrainingJob

_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}


def express_sharding(
    changes: Mapping[str, Any], data: Mapping[str, Any], prefix: KeyPath, document: Document, job: TrainingJob
) -> tuple[KeyEdit, ...] | None:
    """Write ``parallelism.*`` changes; None where they cannot be written.

    A DeepSpeed or accelerate file of the user's own is edited in place; an inline mapping is edited where it is; where
    neither exists, ``deepspeed`` becomes an inline mapping or ``fsdp`` is switched on.
    """
    strategy = changes.get("parallelism.strategy", job.parallelism.strategy)
    origin = job.origins.get("parallelism.strategy")
    if "parallelism.strategy" not in changes:
        # A path to a file that is not here stays: an inline mapping would drop what else that file says.
        buffers = express_buffers(changes, document, job)
        if buffers is not None and not buffers[1]:
            return buffers[0]
    if strategy in _STAGES:
        if data.get("fsdp"):
            return None
        if isinstance(data.get("deepspeed"), dict):
            return express_deepspeed(changes, prefix=(*prefix, "deepspeed"), data=data["deepspeed"])
        elsewhere = _companion(origin, document, changes, job)
        if elsewhere is not None:
            return elsewhere
        return _inline(changes, prefix, _STAGES[strategy])
    if strategy == "fsdp":
        if data.get("deepspeed"):
            return None
        elsewhere = _companion(origin, document, changes, job)
        return elsewhere if elsewhere is not None else _fsdp(changes, data, prefix)
    return None


def _companion(
    origin: Origin | None, document: Document, changes: Mapping[str, Any], job: TrainingJob
) -> tuple[KeyEdit, ...] | None:
    """Edits of the user's own DeepSpeed or accelerate file, when the strategy was read there."""
    if origin is None or origin.file is None or origin.file == document.path or not origin.key:
        return None
    if origin.key[-1] == "stage":
        data = spelling(job, origin.file)
        return express_deepspeed(changes, prefix=origin.key[:-2], file=origin.file, data=data)
    from memlint.dialects.accelerate import express_accelerate

    kind = {"zero_stage": "DEEPSPEED"}.get(str(origin.key[-1]), "FSDP" if "fsdp_config" in origin.key else "MULTI_GPU")
    return express_accelerate(changes, kind, file=origin.file)


def _inline(changes: Mapping[str, Any], prefix: KeyPath, stage: int) -> tuple[KeyEdit, ...] | None:
    """A whole DeepSpeed mapping under ``deepspeed``: legal there, and independent of any other file.

    Its buffers are those that the Trainer fills in from the model's width, as transformers' documentation has them.
    """
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": "auto"}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
    for field, value in changes.items():
        if field == "parallelism.offload" and value in ("none", "optimizer", "all"):
            if value != "none":
                zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
            if value == "all":
                zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        elif field != "parallelism.strategy":
            return None
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
    }
    return (KeyEdit(path=(*prefix, "deepspeed"), value=config),)


def _fsdp(changes: Mapping[str, Any], data: Mapping[str, Any], prefix: KeyPath) -> tuple[KeyEdit, ...] | None:
    edits = [] if data.get("fsdp") else [KeyEdit(path=(*prefix, "fsdp"), value=True)]
    names = {"parallelism.offload": "cpu_offload", "parallelism.reshard_after_forward": "reshard_after_forward"}
    for field, value in changes.items():
        if field == "parallelism.strategy":
            continue
        if field not in names or isinstance(data.get("fsdp_config"), str) or value in ("optimizer", "parameters"):
            return None
        flag = value == "all" if field == "parallelism.offload" else bool(value)
        edits.append(KeyEdit(path=(*prefix, "fsdp_config", names[field]), value=flag))
    return tuple(edits)
