"""A valid native job file to job fields."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.base import JobDraft, Problem
from memlint.dialects.native_choices import REFERENCE_FREE, SAME_STEP
from memlint.dialects.native_fields import SECTIONS
from memlint.job import KeyPath, Lora, Quantization

_FORM = "default of the native job file: CONTRACT"
DEFAULT_PRECISION = "bf16-mixed"

PRECISION_SHORT: dict[str, dict[str, Any]] = {
    "fp32": {"weights": "fp32", "autocast": None},
    "bf16-mixed": {"weights": "fp32", "autocast": "bf16"},
    "fp16-mixed": {"weights": "fp32", "autocast": "fp16", "grad_scaler": True},
    "bf16": {"weights": "bf16", "autocast": None},
    "fp16": {"weights": "fp16", "autocast": None},
}
CHECKPOINTING_SHORT: dict[str, dict[str, Any]] = {
    "none": {"mode": "none"},
    "full": {"mode": "full"},
    "selective": {"mode": "selective"},
    "offload": {"mode": "offload", "offload": True, "reentrant": True},
}


def read_job(draft: JobDraft, data: Mapping[str, Any]) -> list[Problem]:
    """Fill ``draft`` from a file that the gate accepted; return settings that contradict each other (MEM007)."""
    draft.model = data["model"]
    draft.origins["model"] = _at(draft, ("model",))
    versions = data.get("versions", {})
    draft.versions.update(versions)
    training = data.get("training", {})
    for key, value in training.items():
        if key == "precision":
            _nested(draft, "precision", value, PRECISION_SHORT)
        elif key == "activation_checkpointing":
            _nested(draft, "activation_checkpointing", value, CHECKPOINTING_SHORT)
        elif key not in ("lora", "quantization"):
            draft.set(f"training.{key}", coerce("training", key, value), key=("training", key))
    for section in ("parallelism", "hardware"):
        for key, value in data.get(section, {}).items():
            if key == "strategy" and value == "fsdp2":
                value = "fsdp"
            draft.set(f"{section}.{key}", coerce(section, key, value), key=(section, key))
    _defaults(draft, training)
    return [*_adapters(draft, training), *_reference(draft, training)]


def coerce(section: str, key: str, value: Any) -> Any:
    """Return a value of a section as the job holds it: whole floats as int, lists as tuples."""
    field = SECTIONS[section][key]
    if field.kind == "integer" and isinstance(value, float):
        return int(value)
    if key == "objective":
        return SAME_STEP.get(value, value)
    if field.kind == "strings":
        if key == "targets":
            return value if isinstance(value, str) else tuple(value)
        return (value,) if isinstance(value, str) else tuple(value)
    return value


def nested_values(name: str, value: Any, short: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that ``precision`` or ``activation_checkpointing`` sets, from a short name or a mapping."""
    if isinstance(value, str):
        return dict(short[value])
    fields = {key: coerce(f"training.{name}", key, item) for key, item in value.items()}
    if name == "precision":
        if fields.get("autocast") == "fp8":
            fields["autocast"], fields["fp8"] = "bf16", True
        if fields.get("autocast") == "fp16":
            fields.setdefault("grad_scaler", True)
        if "weights" in fields and "autocast" not in fields:
            fields["autocast"] = None if fields["weights"] in ("bf16", "fp16") else "bf16"
    elif fields:
        fields.setdefault("mode", "full")
        if fields["mode"] == "offload":
            fields["offload"] = True
            # As the functions of Unsloth, LLaMA-Factory and axolotl do; transformers' own is `full` with `offload`.
            fields.setdefault("reentrant", True)
    return fields


def _nested(draft: JobDraft, name: str, value: Any, short: Mapping[str, Mapping[str, Any]]) -> None:
    target = "checkpointing" if name == "activation_checkpointing" else name
    path: KeyPath = ("training", name)
    for key, item in nested_values(name, value, short).items():
        place = (*path, key) if isinstance(value, dict) and key in value else path
        draft.set(f"training.{target}.{key}", item, key=place)


def _defaults(draft: JobDraft, training: Mapping[str, Any]) -> None:
    """Origins of what the file leaves out: the job's own defaults are those of the native form."""
    if "precision" not in training:
        for key, item in PRECISION_SHORT[DEFAULT_PRECISION].items():
            draft.set(f"training.precision.{key}", item, default=_FORM)
    for name in ("micro_batch_size", "sequence_length", "optimizer", "attention", "loss", "method", "objective"):
        if name not in training:
            draft.origins[f"training.{name}"] = _default()
    for name in ("gradient_accumulation_steps", "max_grad_norm"):
        if name not in training:
            draft.origins[f"training.{name}"] = _default()
    if "activation_checkpointing" not in training:
        draft.origins["training.checkpointing.mode"] = _default()


def _adapters(draft: JobDraft, training: Mapping[str, Any]) -> list[Problem]:
    method = training.get("method", "full")
    problems = []
    adapter = method not in ("full", "freeze")
    if adapter and (method in ("lora", "qlora") or "lora" in training):
        _section(draft, "lora", Lora(), training)
    elif "lora" in training:
        problems.append(
            _no_effect("lora", f"`lora` has no effect with `method: {method}`; use `method: lora` or `qlora`")
        )
    if adapter and (method == "qlora" or "quantization" in training):
        _section(draft, "quantization", Quantization(), training)
        given = training.get("quantization", {})
        if given.get("type") == "int8" and "bits" not in given:
            draft.set("training.quantization.bits", 8, key=("training", "quantization", "type"))
    elif "quantization" in training:
        problems.append(
            _no_effect(
                "quantization", f"`quantization` has no effect with `method: {method}`: quantised weights are frozen"
            )
        )
    return problems


def _reference(draft: JobDraft, training: Mapping[str, Any]) -> list[Problem]:
    """A reference model that the loss never asks."""
    objective, stated = training.get("objective"), training.get("reference_model", "none")
    if objective not in REFERENCE_FREE or stated == "none":
        return []
    draft.set("training.reference_model", "none", key=("training", "objective"))
    return [_no_effect("reference_model", f"`reference_model` has no effect with `objective: {objective}`")]


def _section(draft: JobDraft, name: str, default: Any, training: Mapping[str, Any]) -> None:
    """Set an optional section: its defaults, then what the file gives."""
    draft.set(f"training.{name}", default, key=("training", name if name in training else "method"))
    for key, value in training.get(name, {}).items():
        field = f"training.{name}"
        draft.set(f"{field}.{key}", coerce(field, key, value), key=("training", name, key))


def _no_effect(key: str, message: str) -> Problem:
    return Problem(code="MEM007", key=("training", key), message=message, label="ignored", on_key=True)


def _at(draft: JobDraft, key: KeyPath) -> Any:
    from memlint.job import Origin

    return Origin(file=draft.document.path, key=key)


def _default() -> Any:
    from memlint.job import Origin

    return Origin(default=_FORM)
