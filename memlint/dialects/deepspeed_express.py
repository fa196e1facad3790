"""Changes of sharding, offload and buffers, written as DeepSpeed keys where the DeepSpeed config stands."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.deepspeed_config import SIZES
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import KeyPath, TrainingJob

BUFFERS = (*SIZES, "parallelism.overlap_comm")
"""Native fields of DeepSpeed's buffers, which stand in its own config alone."""


def express_deepspeed(
    changes: Mapping[str, Any], *, prefix: KeyPath = (), file: str | None = None, data: Mapping[str, Any] | None = None
) -> tuple[KeyEdit, ...] | None:
    """Write sharding, offload and the sizes of buffers as DeepSpeed keys; None for any other field.

    ``data``: the DeepSpeed mapping as it is, for the spelling of keys that have two.
    """
    edits: list[KeyEdit] = []
    zero = (*prefix, "zero_optimization")
    stages = {"zero1": 1, "zero2": 2, "zero3": 3}
    for field, value in changes.items():
        if field == "parallelism.strategy" and value in stages:
            edits.append(KeyEdit(path=(*zero, "stage"), value=stages[value], file=file))
        elif field == "parallelism.offload" and value in ("none", "optimizer", "all"):
            for key, on in (("offload_optimizer", value in ("optimizer", "all")), ("offload_param", value == "all")):
                if on:
                    edits.append(KeyEdit(path=(*zero, key), value={"device": "cpu", "pin_memory": True}, file=file))
                else:
                    edits.append(KeyEdit(path=(*zero, key), delete=True, file=file))
        elif field in SIZES and isinstance(value, int):
            edits.append(KeyEdit(path=(*zero, _spelt(SIZES[field][1], data)), value=value, file=file))
        elif field == "parallelism.overlap_comm" and isinstance(value, bool):
            edits.append(KeyEdit(path=(*zero, "overlap_comm"), value=value, file=file))
        else:
            return None
    return tuple(edits)


def _spelt(names: tuple[str, ...], data: Mapping[str, Any] | None) -> str:
    zero = (data or {}).get("zero_optimization")
    return next((name for name in names if isinstance(zero, dict) and name in zero), names[0])


def express_buffers(
    changes: Mapping[str, Any], document: Document, job: TrainingJob
) -> tuple[tuple[KeyEdit, ...], dict[str, Any]] | None:
    """Write changes of DeepSpeed's buffers into the DeepSpeed file or the inline mapping that the job's strategy was
    read from, and return what is left of ``changes``; None where there is no such place.
    """
    wanted = {name: value for name, value in changes.items() if name in BUFFERS}
    rest = {name: value for name, value in changes.items() if name not in BUFFERS}
    if not wanted:
        return (), rest
    origin = job.origins.get("parallelism.strategy")
    if origin is None or origin.key[-2:] != ("zero_optimization", "stage") or "parallelism.strategy" in rest:
        return None
    prefix = origin.key[:-2]
    own = origin.file is None or origin.file == document.path
    data: Any = document.data if own else spelling(job, origin.file)
    for step in prefix if own else ():
        data = data.get(step) if isinstance(data, dict) else None
    edits = express_deepspeed(wanted, prefix=prefix, file=None if own else origin.file, data=data)
    return None if edits is None else (edits, rest)


def spelling(job: TrainingJob, file: str | None) -> dict[str, Any]:
    """The keys of a companion file, as far as the job's fields were read from them."""
    keys = [job.origins[name] for name in SIZES if name in job.origins]
    return {"zero_optimization": {origin.key[-1]: None for origin in keys if origin.file == file and origin.key}}
