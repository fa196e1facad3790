"""Python values as YAML text that PyYAML reads back as the same values."""

from __future__ import annotations

import json
from typing import Any

import yaml

from memlint.document.edit_flow import EditRefused

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def scalar_text(value: Any, quote: str, *, flow: bool) -> str:
    """Return a scalar as YAML; a text is quoted with ``quote`` where given, else only where it must be."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if not isinstance(value, str):
        raise EditRefused(f"a value of type {type(value).__name__} cannot be written")
    double = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f").replace("\x85", "\\N")
    single = "'" + value.replace("'", "''") + "'"
    candidates = {"": (value, single, double), "'": (single, double), '"': (double,)}[quote]
    for candidate in candidates:
        if "\n" not in candidate and _reads_as(candidate, value, flow):
            return candidate
    raise EditRefused("the text cannot be written as YAML")


def _float_text(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    shown = repr(value)
    # YAML 1.1 takes `1e-05` for a text; with a point it is a number (yaml/representer.py, represent_float).
    return shown.replace("e", ".0e", 1) if "." not in shown and "e" in shown else shown


def _reads_as(candidate: str, value: str, flow: bool) -> bool:
    line = f"key: [{candidate}, x]\n" if flow else f"key: {candidate}\n"
    try:
        read = yaml.load(line, Loader=_LOADER)
    except (yaml.YAMLError, ValueError):
        return False
    return bool(read == {"key": [value, "x"] if flow else value})


def key_text(key: Any, quote: str, *, flow: bool) -> str:
    """Return a key as YAML."""
    return scalar_text(key, quote if quote in ("'", '"') else "", flow=flow)


def flow_text(value: Any, quote: str = "") -> str:
    """Return any value in brackets."""
    if isinstance(value, dict):
        pairs = (f"{key_text(key, quote, flow=True)}: {flow_text(item, quote)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow_text(item, quote) for item in value) + "]"
    return scalar_text(value, quote if quote in ("'", '"') else "", flow=True)


def block_lines(value: dict[Any, Any], indent: str, step: str) -> list[str]:
    """Return a mapping as lines; lists in brackets, mappings below their key."""
    lines: list[str] = []
    for key, item in value.items():
        shown = key_text(key, "", flow=False)
        if isinstance(item, dict) and item:
            lines.append(f"{indent}{shown}:")
            lines.extend(block_lines(item, indent + step, step))
        elif isinstance(item, (dict, list, tuple)):
            lines.append(f"{indent}{shown}: {flow_text(item)}")
        else:
            lines.append(f"{indent}{shown}: {scalar_text(item, '', flow=False)}")
    return lines
