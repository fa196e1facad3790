"""Say what is wrong with a native job file, on the exact key: jsonschema finds, this words it."""

from __future__ import annotations

from typing import Any

from memlint.dialects.base import Problem
from memlint.dialects.values import bound_text, did_you_mean, show
from memlint.job import KeyPath

MAX_PROBLEMS = 20

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


def explain(data: Any) -> list[Problem]:
    """Return the problems of a native job file that the gate refused, in the order of the file."""
    import json

    from jsonschema import Draft202012Validator

    from memlint.resources import schema_text

    validator = Draft202012Validator(json.loads(schema_text("job")))
    problems: list[Problem] = []
    for error in validator.iter_errors(data):
        problems.extend(_word(error, data))
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems[:MAX_PROBLEMS] or _not_finite(data, ())


def _not_finite(data: Any, path: KeyPath) -> list[Problem]:
    """YAML has .nan and .inf, which JSON Schema knows nothing of and the gate refuses."""
    if isinstance(data, float) and not abs(data) < float("inf"):
        name = str(path[-1]) if path else "the file"
        return [_problem(path, f"`{name}` must be a finite number, not `{data}`")]
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [problem for key, value in inner for problem in _not_finite(value, (*path, key))]


def _word(error: Any, data: Any) -> list[Problem]:
    path: KeyPath = tuple(error.absolute_path)
    name = str(path[-1]) if path else ""
    rule, value = error.validator, error.instance
    if rule == "anyOf":
        branch = _branch(error)
        if branch:
            return [problem for inner in branch for problem in _word(inner, data)]
        return [_problem(path, f"`{name}` must be {_alternatives(error)}, not `{show(value)}`")]
    if rule == "additionalProperties":
        known = list(error.schema.get("properties", ()))
        where = f" in `{name}`" if name else ""
        return [
            _problem((*path, key), f"unknown key `{show(key)}`{where}{did_you_mean(str(key), known)}", on_key=True)
            for key in value
            if key not in known
        ]
    if rule == "required":
        missing = [key for key in error.validator_value if key not in value]
        return [
            _problem(path, f"`{key}` is missing: every job names a model") for key in missing if key == "model"
        ] or [_problem(path, f"`{key}` is missing") for key in missing]
    if rule == "enum":
        choices = [str(item) for item in error.validator_value if item is not None]
        return [_problem(path, f"`{name}: {show(value)}` is not known{did_you_mean(str(value), choices)}")]
    if rule == "const":
        return [_problem(path, f"`{name}: {show(value)}` is no version of the job file; write `memlint: 1`")]
    if rule == "minimum":
        return [_problem(path, f"`{name}` must be at least {bound_text(error.validator_value)}, not `{show(value)}`")]
    if rule == "maximum":
        return [_problem(path, f"`{name}` must be at most {bound_text(error.validator_value)}, not `{show(value)}`")]
    if rule == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        return [
            _problem(
                path, f"`{name or 'the file'}` must be {expected}, not `{show(value)}`{_number_hint(value, kinds)}"
            )
        ]
    return [_problem(path, f"`{name}` must not be empty")]


def _number_hint(value: Any, kinds: list[str]) -> str:
    """YAML 1.1 reads ``1e-3`` as text."""
    if isinstance(value, str) and ("number" in kinds or "integer" in kinds):
        try:
            float(value)
        except ValueError:
            return ""
        return "; YAML reads that as text: write the number out, with a point before an exponent (1.0e-3)"
    return ""


def _branch(error: Any) -> list[Any]:
    """The alternative that the value was meant for: errors of the branch whose type fits."""
    best: list[Any] = []
    for index in range(len(error.validator_value)):
        inner = [item for item in error.context if item.schema_path[0] == index]
        outside = {item.validator for item in inner if not item.path}
        if inner and "type" not in outside and (isinstance(error.instance, str) or "enum" not in outside):
            best = inner
            break
    return best


def _alternatives(error: Any) -> str:
    parts = []
    for branch in error.validator_value:
        if "enum" in branch:
            parts.append("one of " + ", ".join(f"`{item}`" for item in branch["enum"]))
        else:
            parts.append(_KINDS[branch["type"]])
    return " or ".join(parts)


def _problem(path: KeyPath, message: str, *, on_key: bool = False) -> Problem:
    return Problem(code="MEM003" if not on_key else "MEM002", key=path, message=message, on_key=on_key)
