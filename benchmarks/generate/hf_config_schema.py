"""Write schemas/hf-config.schema.json from the table in memlint/models/fields.py.

Run: ``python -m benchmarks.generate.hf_config_schema``; ``--check`` only compares.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from memlint.models.fields import FIELDS, MAX_LAYERS, PARTS, Kind

TARGET = os.path.join(os.path.dirname(__file__), "..", "..", "schemas", "hf-config.schema.json")


def property_schema(name: str, kind: Kind) -> dict[str, Any]:
    if name in PARTS:
        single: dict[str, Any] = {"$ref": "#/$defs/part"}
    elif kind.type == "strings":
        single = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_LAYERS}
    elif kind.type == "integers":
        one = {"type": "integer", "minimum": kind.low, "maximum": kind.high}
        single = {"type": "array", "items": one, "maxItems": MAX_LAYERS}
    elif kind.type == "string":
        single = {"type": "string", "minLength": 1, "maxLength": 1000}
    elif kind.type in ("integer", "number"):
        single = {"type": kind.type, "minimum": kind.low, "maximum": kind.high}
    else:
        single = {"type": kind.type}
    if kind.lists:
        single = {"if": {"type": "array"}, "then": {"items": single, "maxItems": MAX_LAYERS}, "else": single}
    if kind.nullable:
        single = {"if": {"type": "null"}, "then": True, "else": single}
    return single


def schema() -> dict[str, Any]:
    properties = {name: property_schema(name, kind) for name, kind in sorted(FIELDS.items())}
    part = {"type": "object", "properties": properties}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://memlint.dev/schemas/hf-config.schema.json",
        "title": "Hugging Face config.json",
        "description": "The fields of a Hugging Face model config that decide about memory, with believable values."
        " Absent fields take the default of transformers' config class for the model_type; unknown fields are allowed.",
        "$ref": "#/$defs/part",
        "required": ["model_type"],
        "$defs": {"part": part},
    }


def text() -> str:
    return json.dumps(schema(), indent=1, sort_keys=False) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        with open(TARGET, encoding="utf-8") as stream:
            return int(stream.read() != text())
    os.makedirs(os.path.dirname(TARGET), exist_ok=True)
    with open(TARGET, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
