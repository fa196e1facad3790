"""``--set FIELD=VALUE``: one native field of a job changed, whatever dialect it came from."""

from __future__ import annotations

from typing import Any

from memlint.dialects.native_choices import REFERENCE_FREE
from memlint.dialects.native_fields import NESTED, SECTIONS, SHORT, Field
from memlint.dialects.native_gate import accepts_value
from memlint.dialects.native_read import CHECKPOINTING_SHORT, PRECISION_SHORT, coerce, nested_values
from memlint.dialects.values import as_bool, as_float, as_int, bound_text, did_you_mean, show
from memlint.errors import UserError
from memlint.job import Lora, Origin, Precision, Quantization, TrainingJob, replace_fields
from memlint.records import replace

_ALIASES = {"checkpointing": "activation_checkpointing"}


def apply_set(job: TrainingJob, text: str) -> TrainingJob:
    """Return ``job`` with one ``FIELD=VALUE`` applied. Raises UserError with one sentence."""
    name, equals, raw = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UserError(f"`{show(text)}` is no setting; write FIELD=VALUE, for example training.micro_batch_size=4")
    if name == "model":
        if not raw.strip():
            raise UserError("`model` must not be empty")
        changed = replace(job, model=raw.strip(), architecture=None)
        return _with_origin(changed, "model", name)
    section, key = _field(name)
    if key in NESTED and section == "training" and key in SHORT:
        return _set_short(job, key, raw.strip())
    if key in NESTED and section == "training":
        raise UserError(
            f"`{name}` is a section; set one of its fields, for example {name}.{next(iter(_fields(name)))}=..."
        )
    field = _fields(section)[key]
    value = _value(name, field, raw.strip())
    return _set(job, section, key, value)


def _fields(section: str) -> dict[str, Field]:
    return SECTIONS[section]


def _field(name: str) -> tuple[str, str]:
    """Return section and key of a dotted name; a key alone is looked for in all sections."""
    parts = [_ALIASES.get(part, part) for part in name.split(".")]
    if len(parts) == 1:
        for section in ("training", "parallelism", "hardware"):
            if parts[0] in SECTIONS[section] or (section == "training" and parts[0] in NESTED):
                return section, parts[0]
    section, key = ".".join(parts[:-1]), parts[-1]
    if section in SECTIONS and (key in SECTIONS[section] or (section == "training" and key in NESTED)):
        return section, key
    known = [f"{part}.{field}" for part, listed in SECTIONS.items() for field in listed]
    known += [f"training.{nested}" for nested in NESTED]
    hint = did_you_mean(".".join(parts), known)
    if not hint:
        tails = [full for full in known if full.rpartition(".")[2] == key]
        hint = f"; did you mean `{tails[0]}`?" if tails else "; `memlint schema job` lists the fields"
    raise UserError(f"there is no field `{show(name)}`{hint}")


def _value(name: str, field: Field, raw: str) -> Any:
    value: Any = raw
    if raw.lower() in ("null", "none", "~") and field.nullable:
        return None
    if field.kind == "integer":
        value = as_int(raw)
    elif field.kind == "number":
        value = as_float(raw)
    elif field.kind == "boolean":
        value = as_bool(raw)
    elif field.kind == "strings":
        value = [part.strip() for part in raw.strip("[]").split(",") if part.strip()]
        if len(value) == 1:
            value = value[0]
    elif field.kind == "choice":
        value = raw.lower()
    if value is None or not accepts_value(field, value):
        raise UserError(f"`{name}={show(raw)}`: {_expected(field)}{_hint(field, raw)}")
    return value


def _expected(field: Field) -> str:
    if field.kind == "choice":
        return "not a known value"
    kind = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}.get(field.kind, "a name")
    if field.minimum is not None and field.maximum is not None:
        return f"must be {kind} from {bound_text(field.minimum)} to {bound_text(field.maximum)}"
    if field.minimum is not None:
        return f"must be {kind}, at least {bound_text(field.minimum)}"
    return f"must be {kind}"


def _hint(field: Field, raw: str) -> str:
    return did_you_mean(raw.lower(), field.choices) if field.kind == "choice" else ""


def _set(job: TrainingJob, section: str, key: str, value: Any) -> TrainingJob:
    stated = value
    value = coerce(section, key, value)
    if section == "parallelism" and key == "strategy" and value == "fsdp2":
        value = "fsdp"
    target = section.replace("activation_checkpointing", "checkpointing")
    if section == "training.precision" and key == "autocast" and value == "fp8":
        job = replace_fields(job, {"training.precision.fp8": True})
        value = "bf16"
    changed = replace_fields(job, {f"{target}.{key}": value})
    changed = _with_origin(changed, f"{target}.{key}", f"{section}.{key}")
    if section == "training" and key == "objective" and stated in REFERENCE_FREE:
        changed = replace_fields(changed, {"training.reference_model": "none"})
    if section == "training" and key == "method":
        changed = _follow_method(changed, value)
    return changed


def _follow_method(job: TrainingJob, method: str) -> TrainingJob:
    """Adapters and quantisation come and go with the method."""
    if method in ("full", "freeze"):
        return replace_fields(job, {"training.lora": None, "training.quantization": None})
    if job.training.lora is None:
        job = replace_fields(job, {"training.lora": Lora()})
    if method == "qlora" and job.training.quantization is None:
        job = replace_fields(job, {"training.quantization": Quantization()})
    if method == "lora":
        job = replace_fields(job, {"training.quantization": None})
    return job


def _set_short(job: TrainingJob, name: str, raw: str) -> TrainingJob:
    word = raw.lower()
    if word not in SHORT[name]:
        raise UserError(f"`{name}={show(raw)}` is not known{did_you_mean(word, SHORT[name])}")
    short = PRECISION_SHORT if name == "precision" else CHECKPOINTING_SHORT
    values = nested_values(name, word, short)
    if name == "precision":
        changed = replace_fields(job, {"training.precision": Precision(**values)})
        return _with_origin(changed, "training.precision", name)
    prefix = "training.checkpointing"
    changes = {f"{prefix}.offload": False, **{f"{prefix}.{key}": value for key, value in values.items()}}
    return _with_origin(replace_fields(job, changes), prefix, name)


def _with_origin(job: TrainingJob, field: str, name: str) -> TrainingJob:
    origins = {key: origin for key, origin in job.origins.items() if not key.startswith(f"{field}.")}
    origins[field] = Origin(default=f"--set {name}")
    return replace(job, origins=origins)
