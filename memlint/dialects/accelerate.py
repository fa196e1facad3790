"""accelerate launch config: a companion that holds GPU count, sharding and mixed precision."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.accelerate_config import apply_accelerate, join_accelerate
from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.values import Section
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

__all__ = ["ACCELERATE", "Accelerate", "express_accelerate", "join_accelerate"]

VERSION = "1.15.0"


class Accelerate:
    """The accelerate dialect."""

    name = "accelerate"
    title = "accelerate YAML"
    version = VERSION
    suffixes = (".yaml", ".yml", ".json")
    markers = ("distributed_type", "compute_environment")

    def recognise(self, document: Document) -> bool:
        """Whether the mapping is a launch config: ``distributed_type`` at top level, or its environment without it."""
        data = document.mapping
        if "distributed_type" in data:
            return "model_name_or_path" not in data
        return "compute_environment" in data and any(
            key in data for key in ("num_processes", "mixed_precision", "deepspeed_config", "fsdp_config")
        )

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Check the file and the DeepSpeed file it names; a job needs the training file launched with it."""
        problems: list[Problem] = []
        companions: list[str] = []
        draft = JobDraft("accelerate", document)
        apply_accelerate(draft, Section(document.mapping, problems), context, companions, framework="accelerate")
        return Reading(
            problems=tuple(problems),
            skipped="accelerate file: checked with the training file launched with it",
            companions=tuple(companions),
        )

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write mixed precision, sharding and offload; the rest belongs to the training file."""
        return express_accelerate(changes, str(document.mapping.get("distributed_type", "")).upper())


ACCELERATE = Accelerate()


def express_accelerate(changes: Mapping[str, Any], kind: str, *, file: str | None = None) -> tuple[KeyEdit, ...] | None:
    """Write native fields as accelerate keys: mixed precision, ZeRO and FSDP, offload, FSDP checkpointing.

    ``kind`` is the file's ``distributed_type`` as it stands.
    """
    edits: list[KeyEdit] = []
    strategy = changes.get("parallelism.strategy")
    target = {"fsdp": "FSDP", "zero1": "DEEPSPEED", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}.get(
        strategy or "", kind
    )
    for field, value in changes.items():
        if field == "training.precision.autocast" and value in ("bf16", "fp16", None):
            edits.append(KeyEdit(path=("mixed_precision",), value=value or "no", file=file))
        elif field == "parallelism.strategy" and strategy in ("zero1", "zero2", "zero3"):
            if kind != target:
                edits.append(KeyEdit(path=("distributed_type",), value=target, file=file))
            edits.append(KeyEdit(path=("deepspeed_config", "zero_stage"), value=int(strategy[-1]), file=file))
        elif field == "parallelism.strategy" and strategy == "fsdp":
            if kind != target:
                edits.append(KeyEdit(path=("distributed_type",), value=target, file=file))
            edits.append(KeyEdit(path=("fsdp_config", "fsdp_version"), value=2, file=file))
            edits.append(KeyEdit(path=("fsdp_config", "fsdp_reshard_after_forward"), value=True, file=file))
            edits.append(
                KeyEdit(path=("fsdp_config", "fsdp_auto_wrap_policy"), value="TRANSFORMER_BASED_WRAP", file=file)
            )
        elif field == "parallelism.reshard_after_forward" and target == "FSDP" and isinstance(value, bool):
            edits.append(KeyEdit(path=("fsdp_config", "fsdp_reshard_after_forward"), value=value, file=file))
        elif field == "parallelism.offload" and target == "DEEPSPEED" and value in ("none", "optimizer", "all"):
            for key, on in (("optimizer", value != "none"), ("param", value == "all")):
                edits.append(
                    KeyEdit(
                        path=("deepspeed_config", f"offload_{key}_device"), value="cpu" if on else "none", file=file
                    )
                )
        elif field == "parallelism.offload" and target == "FSDP" and value in ("none", "all"):
            edits.append(KeyEdit(path=("fsdp_config", "fsdp_offload_params"), value=value == "all", file=file))
        elif field == "training.checkpointing.mode" and target == "FSDP" and value in ("none", "full"):
            edits.append(
                KeyEdit(path=("fsdp_config", "fsdp_activation_checkpointing"), value=value == "full", file=file)
            )
        else:
            return None
    return tuple(edits)
