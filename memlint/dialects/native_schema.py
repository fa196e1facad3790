"""Write ``schemas/job.schema.json`` from the table of native fields.

python -m memlint.dialects.native_schema > schemas/job.schema.json
"""

from __future__ import annotations

from typing import Any

from memlint.dialects.native_fields import NESTED, SECTIONS, SHORT, Field


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a native job file."""
    definitions = {name.rpartition(".")[2]: _section(name) for name in SECTIONS}
    for name, words in SHORT.items():
        definitions[name] = {"anyOf": [{"enum": list(words)}, definitions[name]]}
    training = definitions["training"]["properties"]
    for name in NESTED:
        training[name] = {"$ref": f"#/$defs/{name}"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://memlint.dev/schemas/job.schema.json",
        "title": "memlint job",
        "description": "A native job file: one training run on one machine. Every key but `model` has a default.",
        "type": "object",
        "additionalProperties": False,
        "required": ["memlint", "model"],
        "properties": {
            "memlint": {"description": "Version of this form.", "const": 1},
            "model": {
                "description": "Hugging Face ID, path of a config.json or of its folder, or an inline HF config.",
                "anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1}],
            },
            "training": {"$ref": "#/$defs/training"},
            "parallelism": {"$ref": "#/$defs/parallelism"},
            "hardware": {"$ref": "#/$defs/hardware"},
            "versions": {
                "description": "Library versions that change the answer: {transformers: '4.57'}.",
                "type": "object",
                "additionalProperties": {"type": "string", "minLength": 1},
            },
        },
        "$defs": definitions,
    }


def _section(name: str) -> dict[str, Any]:
    properties = {}
    for key, field in SECTIONS[name].items():
        job_field = f"{name}.{key}".replace("activation_checkpointing", "checkpointing")
        properties[key] = {"description": field.doc, **_value(field), "x-job-field": job_field}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(field: Field) -> dict[str, Any]:
    if field.kind == "choice":
        return {"enum": [*field.choices, *([None] if field.nullable else [])]}
    if field.kind == "strings":
        return {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}}]}
    schema: dict[str, Any] = {"type": [field.kind, "null"] if field.nullable else field.kind}
    if field.kind == "string":
        schema["minLength"] = 1
    if field.minimum is not None:
        schema["minimum"] = field.minimum
    if field.maximum is not None:
        schema["maximum"] = field.maximum
    return schema


if __name__ == "__main__":
    import json
    import sys

    sys.stdout.write(json.dumps(job_schema(), indent=2) + "\n")
