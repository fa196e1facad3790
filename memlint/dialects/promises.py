"""Check that edits do what they promise: apply them to the values, read again, and compare the job.

``express`` of a dialect writes edits as well as it can; a suggestion is shown only when the file, read again with the
edits applied, gives the fields that were asked for. So a rule of the framework that undoes an edit can never slip by.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Iterable, Mapping

from memlint.dialects.base import Dialect
from memlint.dialects.values import as_bool
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob
from memlint.records import fields


class NoCompanions:
    """A :class:`~memlint.dialects.base.ReadContext` without files: shipped companions are known by name."""

    search_root = "."
    versions: Mapping[str, str] = {}

    def __init__(self, gpus: int | None = None) -> None:
        """Remember the world size of the job that is being changed."""
        self.gpus = gpus

    def companion(self, path: str, *, beside: Document) -> Document | None:
        """Find nothing."""
        return None


def apply_edits(data: Mapping[str, Any], edits: Iterable[KeyEdit]) -> dict[str, Any]:
    """Return a copy of ``data`` with the edits of the document itself applied; missing mappings come into being."""
    result: dict[str, Any] = deepcopy(dict(data))
    for edit in edits:
        if edit.file is not None:
            continue
        node: Any = result
        *heads, last = edit.path
        for head in heads:
            following = node.get(head) if isinstance(node, dict) else node[head]
            if following is None and isinstance(node, dict):
                following = node[head] = {}
            node = following
        if not edit.delete:
            node[last] = deepcopy(edit.value)
        elif isinstance(node, dict):
            node.pop(last, None)
        else:
            del node[last]
    return result


def spread(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes with whole sections (``training.lora``) spread over their fields; None fields are left out."""
    result: dict[str, Any] = {}
    for name, value in changes.items():
        if hasattr(value, "__record_fields__") and not isinstance(value, type):
            for part in fields(value):
                inner = getattr(value, part.name)
                if inner is not None:
                    result[f"{name}.{part.name}"] = inner
        else:
            result[name] = value
    return result


def lookup(job: TrainingJob, name: str) -> Any:
    """Return a dotted field of the job; None when a section on the way is absent."""
    part: Any = job
    for step in name.split("."):
        part = getattr(part, step, None)
    return part


def kept(
    dialect: Dialect, document: Document, edits: tuple[KeyEdit, ...], changes: Mapping[str, Any], gpus: int | None
) -> bool:
    """Whether the document with ``edits`` applied reads as one job of the dialect with every changed field as asked."""
    edited = Document(
        path=document.path,
        text=document.text,
        format=document.format,
        data=apply_edits(document.mapping, edits),
        index=document.index,
    )
    if not dialect.recognise(edited):
        return False
    reading = dialect.read(edited, NoCompanions(gpus))
    if len(reading.jobs) != 1:
        return False
    before = dialect.read(document, NoCompanions(gpus))
    refused = {(p.code, p.key) for p in reading.problems if p.code in ("MEM003", "MEM603")}
    if refused - {(p.code, p.key) for p in before.problems}:
        return False
    return all(_same(lookup(reading.jobs[0], name), value) for name, value in changes.items())


EQUIVALENT = {"fused": ("cut-cross-entropy",)}
"""Value asked for -> values that keep the promise as well: a fused loss is whatever the framework has of that kind."""


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and found in EQUIVALENT.get(wanted, ()):
        return True
    if isinstance(found, tuple) and isinstance(wanted, (list, tuple)):
        return found == tuple(wanted)
    return bool(found == wanted)


class Writer:
    """Collects edits of one document by key; later edits see the earlier ones through :meth:`value`."""

    def __init__(self, document: Document, job: TrainingJob, changes: Mapping[str, Any]) -> None:
        """Start without edits; ``changes`` are the native fields that are asked for."""
        self.data = document.mapping
        self.job = job
        self.changes = changes
        self.edits: dict[tuple[str | int, ...], KeyEdit] = {}

    def value(self, key: str) -> Any:
        """Value of a top-level key after the edits so far; None when absent."""
        edit = self.edits.get((key,))
        if edit is not None:
            return None if edit.delete else edit.value
        return self.data.get(key)

    def set(self, key: str, value: Any) -> None:
        """Set a top-level key."""
        self.edits[(key,)] = KeyEdit(path=(key,), value=value)

    def put(self, path: tuple[str | int, ...], value: Any) -> None:
        """Set a key inside a mapping."""
        whole = self.edits.get(path[:1])
        if whole is not None and isinstance(whole.value, dict):
            self.set(str(path[0]), {**whole.value, path[1]: value})
        else:
            self.edits[path] = KeyEdit(path=path, value=value)

    def drop(self, *keys: str) -> None:
        """Remove keys that have a value."""
        for key in keys:
            if self.value(key) is not None:
                self.edits[(key,)] = KeyEdit(path=(key,), delete=True)

    def off(self, *keys: str) -> None:
        """Set flags that are on to false."""
        for key in keys:
            if as_bool(self.value(key)):
                self.set(key, False)

    def wanted(self, name: str) -> Any:
        """The value a field will have after the change."""
        return self.changes[name] if name in self.changes else lookup(self.job, name)
