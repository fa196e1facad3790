"""Whether a native job file is valid: the fast gate in front of the JSON Schema, which explains what is wrong."""

from __future__ import annotations

from typing import Any

from memlint.dialects.native_fields import NESTED, SECTIONS, SHORT, TOP, TRAINING, Field


def accepts_value(field: Field, value: Any) -> bool:
    """Whether a value is of the field's kind and within its bounds; agrees with the JSON Schema."""
    if value is None:
        return field.nullable
    kind = field.kind
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "choice":
        return isinstance(value, str) and value in field.choices
    if kind == "string":
        return isinstance(value, str) and value != ""
    if kind == "strings":
        if isinstance(value, str):
            return value != ""
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if value != value or value in (float("inf"), float("-inf")):
        return False
    if kind == "integer" and isinstance(value, float) and not value.is_integer():
        return False
    return (field.minimum is None or value >= field.minimum) and (field.maximum is None or value <= field.maximum)


def accepts(data: Any) -> bool:
    """Whether a native job file is valid: the fast gate in front of the JSON Schema."""
    if not isinstance(data, dict) or any(key not in TOP for key in data):
        return False
    version = data.get("memlint")
    if isinstance(version, bool) or version != 1 or not isinstance(version, (int, float)):
        return False
    model = data.get("model")
    if not ((isinstance(model, str) and model != "") or (isinstance(model, dict) and model)):
        return False
    for name in ("parallelism", "hardware"):
        if name in data and not _accepts_section(SECTIONS[name], data[name]):
            return False
    versions = data.get("versions", {})
    if not isinstance(versions, dict) or not all(isinstance(item, str) and item for item in versions.values()):
        return False
    return "training" not in data or accepts_training(data["training"])


def accepts_training(training: Any) -> bool:
    """Whether a training section is valid."""
    if not isinstance(training, dict):
        return False
    for key, value in training.items():
        if key in NESTED:
            if key in SHORT and isinstance(value, str):
                if value not in SHORT[key]:
                    return False
            elif not _accepts_section(SECTIONS[f"training.{key}"], value):
                return False
        elif key not in TRAINING or not accepts_value(TRAINING[key], value):
            return False
    return True


def _accepts_section(fields: dict[str, Field], data: Any) -> bool:
    return isinstance(data, dict) and all(key in fields and accepts_value(fields[key], data[key]) for key in data)
