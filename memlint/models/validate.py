"""Is this mapping a believable HF config? A fast gate that accepts, and an explanation for what it refuses."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.models.fields import FIELDS, MAX_DEPTH, MAX_LAYERS, MAX_VALUES, PARTS, Kind
from memlint.records import dataclass

KeyPath = tuple[str | int, ...]

MAX_BITS = 1024
"""Of a whole number in a config; no float reaches further."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Something wrong in a HF config: where, and one sentence (lower case, no full stop)."""

    key: KeyPath
    message: str
    code: str = "MEM003"
    """MEM003 for a bad value; MEM004 where the model has no shape that memlint could use."""


def accepts(config: Mapping[Any, Any]) -> bool:
    """Whether every known field of ``config`` has a value it may have. Agrees with the JSON Schema (a test)."""
    return "model_type" in config and _bounded(config) and _accepts_part(config)


def explain(config: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return what is wrong with a config that :func:`accepts` refused; empty when nothing is.

    Imports jsonschema. Values that JSON cannot express (NaN) and unbounded nesting are checked here.
    """
    if not _bounded(config):
        return [
            ConfigProblem((), f"the config is nested deeper than {MAX_DEPTH} levels or has over {MAX_VALUES} values")
        ]
    import json

    from jsonschema import Draft202012Validator

    from memlint.resources import schema_text

    validator = Draft202012Validator(json.loads(schema_text("hf-config")))
    huge = _huge(config)
    if huge is not None:
        # Neither Python nor jsonschema can put such a number into a message.
        return [ConfigProblem(huge, f"`{huge[-1]}` is a number of more than {MAX_BITS} bits")]
    problems = []
    for error in sorted(validator.iter_errors(config), key=lambda e: [str(part) for part in e.absolute_path]):
        path = tuple(error.absolute_path)
        if error.validator == "required":
            problems.append(ConfigProblem(path, "`model_type` is missing: it says which architecture the config is of"))
            continue
        name = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
        kind = FIELDS.get(name)
        expected = kind.describe() if kind is not None else error.message
        problems.append(ConfigProblem(path, f"`{name}` must be {expected}, got {_short(error.instance)}"))
    problems += [
        ConfigProblem(path, f"`{path[-1]}` must be {FIELDS[str(path[-1])].describe()}, got {_short(value)}")
        for path, value in _not_numbers(config, ())
    ]
    return list({(p.key, p.message): p for p in problems}.values())


def _short(value: Any) -> str:
    text = (
        repr(value) if not isinstance(value, (dict, list)) else f"a {'mapping' if isinstance(value, dict) else 'list'}"
    )
    return text if len(text) <= 40 else text[:37] + "..."


def _bounded(config: Mapping[Any, Any]) -> bool:
    """Whether nesting and number of values are within bounds (aliases in YAML can make both explode)."""
    count = 0
    level: list[Any] = [config]
    for _ in range(MAX_DEPTH):
        following: list[Any] = []
        for node in level:
            count += len(node)
            if count > MAX_VALUES:
                return False
            values = node.values() if isinstance(node, Mapping) else node
            following.extend(v for v in values if isinstance(v, (Mapping, list)))
        if not following:
            return True
        level = following
    return False


def _accepts_part(config: Mapping[Any, Any]) -> bool:
    for name, value in config.items():
        kind = FIELDS.get(name) if isinstance(name, str) else None
        if kind is not None and not _fits(kind, value):
            return False
    for part in PARTS:
        inner = config.get(part)
        if isinstance(inner, Mapping) and not _accepts_part(inner):
            return False
    return True


def _fits(kind: Kind, value: Any) -> bool:
    if value is None:
        return kind.nullable
    if kind.lists and isinstance(value, list):
        return len(value) <= MAX_LAYERS and all(_is_number(kind, entry) for entry in value)
    if kind.type in ("integer", "number"):
        return _is_number(kind, value)
    if kind.type == "integers":
        return isinstance(value, list) and len(value) <= MAX_LAYERS and all(_is_number(kind, entry) for entry in value)
    if kind.type == "boolean":
        return isinstance(value, bool)
    if kind.type == "string":
        return isinstance(value, str) and 0 < len(value) <= 1000
    if kind.type == "strings":
        return isinstance(value, list) and len(value) <= MAX_LAYERS and all(isinstance(entry, str) for entry in value)
    return isinstance(value, Mapping)


def _is_number(kind: Kind, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if kind.type in ("integer", "integers") and isinstance(value, float) and not value.is_integer():
        return False
    return kind.low <= value <= kind.high


def _huge(config: Any, path: KeyPath = ()) -> KeyPath | None:
    """The first number too long to be shown, or None."""
    for step, value in config.items() if isinstance(config, Mapping) else enumerate(config):
        at = (*path, step if isinstance(step, (str, int)) else str(step))
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            return at
        found = _huge(value, at) if isinstance(value, (Mapping, list)) else None
        if found is not None:
            return found
    return None


def _not_numbers(config: Mapping[Any, Any], path: KeyPath) -> list[tuple[KeyPath, Any]]:
    """NaN in number fields: it passes every comparison of JSON Schema."""
    found: list[tuple[KeyPath, Any]] = []
    for name, value in config.items():
        kind = FIELDS.get(name) if isinstance(name, str) else None
        if kind is not None and kind.type == "number" and isinstance(value, float) and value != value:
            found.append(((*path, name), value))
        if name in PARTS and isinstance(value, Mapping):
            found += _not_numbers(value, (*path, name))
    return found
