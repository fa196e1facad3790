"""A job as a native job file: for reports, and to write changes into one."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.native_read import PRECISION_SHORT
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import Precision, TrainingJob
from memlint.records import fields


def to_native(job: TrainingJob) -> dict[str, Any]:
    """Return the job in the native form with every field resolved, ready for JSON.

    Where each field comes from is ``job.origins``, under the same dotted names (``training.checkpointing`` for
    ``training.activation_checkpointing``).
    """
    training = _record(job.training)
    training["activation_checkpointing"] = training.pop("checkpointing")
    for name in ("lora", "quantization"):
        if training[name] is None:
            del training[name]
    return {
        "memlint": 1,
        "model": _plain(dict(job.model)) if isinstance(job.model, Mapping) else job.model,
        "training": training,
        "parallelism": _record(job.parallelism),
        "hardware": _record(job.hardware),
        "versions": dict(job.versions),
    }


def _record(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    if hasattr(value, "__record_fields__"):
        return _record(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def precision_name(precision: Precision) -> str | None:
    """Return the short name of a precision (``bf16-mixed``), or None when only the mapping says it."""
    for name, given in PRECISION_SHORT.items():
        if precision == Precision(**given):
            return name
    return None


def express_native(changes: Mapping[str, Any], document: Document) -> tuple[KeyEdit, ...] | None:
    """Write changes of native fields into a native file: its own keys, short names expanded where they must be."""
    training = document.mapping.get("training")
    training = training if isinstance(training, dict) else {}
    edits: list[KeyEdit] = []
    precision = {name: value for name, value in changes.items() if name.startswith("training.precision.")}
    if precision:
        edits.append(_precision(training.get("precision"), precision))
    prefix = "training.checkpointing."
    checkpointing = {name[len(prefix) :]: value for name, value in changes.items() if name.startswith(prefix)}
    for name, value in changes.items():
        if name.startswith("training.precision."):
            continue
        if name.startswith(prefix):
            if name == prefix + next(iter(checkpointing)):
                edits.append(_checkpointing(training.get("activation_checkpointing"), checkpointing))
            continue
        section, _, rest = name.partition(".")
        if section not in ("training", "parallelism", "hardware") or not rest:
            return None
        if rest in ("lora", "quantization") and value is None:
            edits.append(KeyEdit(path=(section, rest), delete=True))
        else:
            edits.append(KeyEdit(path=(section, *rest.split(".")), value=_plain(value)))
    return tuple(edits)


def _precision(current: Any, changes: Mapping[str, Any]) -> KeyEdit:
    values = dict(PRECISION_SHORT[current if isinstance(current, str) else "bf16-mixed"])
    if isinstance(current, dict):
        values = dict(current)
    values.update({name.rpartition(".")[2]: value for name, value in changes.items()})
    known = {field.name for field in fields(Precision)}
    if set(values) <= known:
        short = precision_name(Precision(**values))
        if short is not None:
            return KeyEdit(path=("training", "precision"), value=short)
    return KeyEdit(path=("training", "precision"), value=_plain(values))


def _checkpointing(current: Any, changes: Mapping[str, Any]) -> KeyEdit:
    values = dict(current) if isinstance(current, dict) else {"mode": current or "none"}
    values.update({name: _plain(value) for name, value in changes.items()})
    if isinstance(current, dict) and len(changes) == 1:
        (name,) = changes
        return KeyEdit(path=("training", "activation_checkpointing", name), value=values[name])
    if set(values) == {"mode"} or values == {"mode": "offload", "reentrant": True}:
        return KeyEdit(path=("training", "activation_checkpointing"), value=values["mode"])
    return KeyEdit(path=("training", "activation_checkpointing"), value=values)
