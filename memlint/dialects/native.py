"""The native job file (``memlint: 1``): what the estimator reads, written down key by key.

Good files pass a gate in plain Python; jsonschema is imported only to say what is wrong with the others.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.native_fields import NESTED, SECTIONS
from memlint.dialects.native_gate import accepts
from memlint.dialects.native_read import read_job
from memlint.dialects.native_write import to_native
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

__all__ = ["NATIVE", "Native", "apply_sets", "to_native"]


class Native:
    """The native dialect."""

    name = "native"
    title = "memlint job"
    version = "1"
    suffixes = (".yaml", ".yml", ".json")
    markers = ("memlint",)

    def recognise(self, document: Document) -> bool:
        """Whether the top level holds ``memlint: 1`` or a mistake for it; settings hold a mapping there."""
        data = document.mapping
        if "memlint" not in data or isinstance(data["memlint"], (dict, list)):
            return False
        return "model" in data or "training" in data or set(data) <= {"memlint", "parallelism", "hardware", "versions"}

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn the file into one job; a file with a bad value gives problems and no job."""
        data = document.mapping
        problems: list[Problem] = []
        if not accepts(data):
            from memlint.dialects.native_explain import explain

            problems = explain(data)
            data = _without_unknown(data)
            if not accepts(data):
                return Reading(problems=tuple(problems))
        draft = JobDraft("native", document)
        problems.extend(read_job(draft, data))
        for library, version in context.versions.items():
            draft.versions.setdefault(library, version)
        return Reading(jobs=(draft.build(),), problems=tuple(problems))

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write changes in the file's own keys."""
        from memlint.dialects.native_write import express_native

        return express_native(changes, document)


NATIVE = Native()


def apply_sets(job: TrainingJob, sets: Sequence[str]) -> TrainingJob:
    """Return ``job`` with ``FIELD=VALUE`` settings applied, in order; fields have native names.

    ``training.precision=bf16`` and ``training.activation_checkpointing=full`` take the short names, ``model=ID``
    another model, and a field may go without its section (``micro_batch_size=4``). Raises UserError with one sentence.
    """
    from memlint.dialects.native_set import apply_set

    for text in sets:
        job = apply_set(job, text)
    return job


def _without_unknown(data: Mapping[str, Any]) -> dict[str, Any]:
    """The file without the keys that no section knows; each of them is reported."""
    known: dict[str, Any] = {}
    for key, value in data.items():
        if key in ("training", "parallelism", "hardware") and isinstance(value, dict):
            inner = {}
            for name, item in value.items():
                if key == "training" and name in NESTED and isinstance(item, dict):
                    inner[name] = {k: v for k, v in item.items() if k in SECTIONS[f"training.{name}"]}
                elif name in SECTIONS[key] or (key == "training" and name in NESTED):
                    inner[name] = item
            known[key] = inner
        elif key in ("memlint", "model", "versions"):
            known[key] = value
    return known
