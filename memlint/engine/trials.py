"""What if: a change of the job, written into a copy of the config, read again and predicted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob, replace_fields
from memlint.models.checkpoint import as_stored
from memlint.rules.context import Trial

if TYPE_CHECKING:
    from memlint.dialects.base import Dialect
    from memlint.engine.companions import Companions
    from memlint.estimate.result import Estimate


class Trials:
    """Recomputes a job with changes, each set of changes once.

    A change that the dialect can write is applied to a copy of the document's data and read by the dialect again, so
    the promised figure is the one that the edited file will have. A change that it cannot write is applied to the job.
    """

    def __init__(
        self,
        *,
        document: Document,
        dialect: Dialect,
        job: TrainingJob,
        index: int,
        companions: Callable[[Mapping[str, Document]], Companions],
        estimate: Callable[[TrainingJob], Estimate | None],
        finish: Callable[[TrainingJob], TrainingJob] = lambda job: job,
    ) -> None:
        """``companions`` makes a reader of companion files in which some are replaced; ``finish`` adds to a job what
        its file's comments say.
        """
        self._document = document
        self._dialect = dialect
        self._job = job
        self._index = index
        self._companions = companions
        self._estimate = estimate
        self._finish = finish
        self._known: dict[tuple[tuple[str, Any], ...], Trial | None] = {}

    def __call__(self, changes: Mapping[str, Any]) -> Trial | None:
        """Return the recomputed job, or None where it cannot be predicted."""
        key = tuple(sorted(changes.items(), key=lambda item: item[0]))
        if key not in self._known:
            self._known[key] = self._run(changes)
        return self._known[key]

    def writable(self, changes: Mapping[str, Any]) -> bool:
        """Whether the dialect has keys for ``changes``; nothing is predicted."""
        return bool(self._dialect.express(changes, self._document, self._job))

    def _run(self, changes: Mapping[str, Any]) -> Trial | None:
        edits = self._dialect.express(changes, self._document, self._job)
        job: TrainingJob | None
        if edits:
            job = self._reread(edits)
        else:
            job = replace_fields(self._job, changes)
        if job is not None:
            job = self._finish(job)
        estimate = self._estimate(job) if job is not None else None
        if estimate is None:
            return None
        text = edits_text(edits, self._document) if edits else None
        return Trial(estimate=estimate, text=text, edits=edits or (), job=job)

    def _reread(self, edits: tuple[KeyEdit, ...]) -> TrainingJob | None:
        companions = self._companions({})
        changed: dict[str, Document] = {}
        for edit in edits:
            path = edit.file or self._document.path
            before = changed.get(path)
            if before is None:
                before = self._document if edit.file is None else companions.companion(path, beside=self._document)
            data = with_edit(before.data if before is not None else {}, edit)
            changed[path] = _with_data(before or _new_document(path), data)
        document = changed.pop(self._document.path, self._document)
        reading = self._dialect.read(document, self._companions(changed))
        if self._index >= len(reading.jobs):
            return None
        job = reading.jobs[self._index]
        if job.model != self._job.model:
            return None
        architecture = self._job.architecture
        job = replace_fields(job, {"architecture": architecture})
        return as_stored(job, architecture)


def with_edit(data: Any, edit: KeyEdit) -> Any:
    """Return a copy of ``data`` with one edit applied; only the containers along the path are copied."""
    if not edit.path:
        return data if edit.delete else edit.value
    return _set(data, edit.path, edit)


def _set(node: Any, path: tuple[str | int, ...], edit: KeyEdit) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(node, list) and isinstance(step, int):
        items = list(node)
        if step >= len(items):
            items.extend([None] * (step + 1 - len(items)))
        if rest:
            items[step] = _set(items[step], rest, edit)
        elif edit.delete:
            del items[step]
        else:
            items[step] = edit.value
        return items
    mapping = dict(node) if isinstance(node, dict) else {}
    if rest:
        mapping[step] = _set(mapping.get(step), rest, edit)
    elif edit.delete:
        mapping.pop(step, None)
    else:
        mapping[step] = edit.value
    return mapping


def _with_data(document: Document, data: Any) -> Document:
    return Document(
        path=document.path,
        text=document.text,
        format=document.format,
        data=data,
        index=document.index,
        newline=document.newline,
        _locate=document.spans,
    )


def _new_document(path: str) -> Document:
    return Document(path=path, text="", format="json" if path.endswith(".json") else "yaml", data={})


def edits_text(edits: tuple[KeyEdit, ...], document: Document) -> str:
    """Return edits as a user would write them: ```a: 1` with `b.c: true` in ds.json``."""
    parts = []
    for edit in edits:
        key = ".".join(str(step) for step in edit.path)
        kind = document.format if edit.file is None else ("json" if edit.file.endswith(".json") else "yaml")
        if edit.delete:
            text = f"no `{key}`"
        elif kind == "json":
            text = f'`"{key}": {value_text(edit.value, kind)}`'
        elif kind == "toml":
            text = f"`{key} = {value_text(edit.value, kind)}`"
        else:
            text = f"`{key}: {value_text(edit.value, kind)}`"
        parts.append(text if edit.file is None else f"{text} in {edit.file}")
    if len(parts) < 3:
        return " with ".join(parts)
    return ", ".join(parts[:-1]) + f" and {parts[-1]}"


def value_text(value: Any, kind: str = "yaml") -> str:
    """Return a plain value as it stands in a file of format ``kind``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind == "yaml":
        if isinstance(value, str):
            return value or '""'
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}: {value_text(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(value_text(item) for item in value) + "]"
    if kind == "toml" and isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {value_text(item, kind)}" for key, item in value.items()) + "}"
    if kind == "toml" and isinstance(value, list):
        return "[" + ", ".join(value_text(item, kind) for item in value) + "]"
    if isinstance(value, (dict, list, str)):
        import json

        return json.dumps(value, ensure_ascii=False)
    return str(value)
