"""The SOURCE of `estimate` and its relatives: a config, a native job, a model's config or folder, or a model ID."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Mapping

from memlint.document.model import Document
from memlint.engine import bare
from memlint.engine.checker import FileCheck
from memlint.engine.job_check import JobCheck
from memlint.engine.options import CheckOptions
from memlint.errors import SettingError, UserError
from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.dialects.base import Dialect
    from memlint.document.comments import Pragma
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob

_MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?\Z")
"""``owner/name`` or a bare name, as the hub allows (huggingface_hub ``validate_repo_id``)."""


@dataclass(slots=True, kw_only=True)
class Source:
    """One job with everything that is needed to predict it and to say where its values come from."""

    document: Document
    dialect: Dialect
    dialect_name: str
    job: TrainingJob
    """With its architecture."""
    index: int
    """Place among the jobs of its document."""
    jobs: int
    """Jobs in the source, over all documents of the file."""
    target: Target | None
    margin: float
    check: JobCheck
    problems: tuple[str, ...] = ()
    """What is wrong in the source beside, as ``path:line:column: sentence``."""

    def place_of(self, name: str) -> str:
        """``path:line:column`` of what states the setting of a dotted name; the path alone where nothing does."""
        from memlint.engine.place import origin_place

        origin = self.job.origin(name)
        at = {} if origin is None else origin_place(origin, self.document, self.check.opened())
        return f"{at['file']}:{at['line']}:{at['column']}" if "file" in at else self.document.path

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Put the place of a setting before the sentence that refuses it."""
        try:
            yield
        except SettingError as error:
            raise UserError(f"{self.place_of(error.name)}: {error}") from None


def open_source(
    source: str,
    *,
    target: str | None = None,
    sets: tuple[str, ...] = (),
    offline: bool = False,
    isolated: bool = False,
    index: int = 0,
    training: Mapping[str, Any] | None = None,
) -> Source:
    """Read SOURCE and return its job with ``--set`` applied and its model resolved.

    Raises UserError where there is no such source, it cannot be read, or its model is not known.
    """
    from memlint.engine import targets

    declared = targets.parse(target, source="--target") if target is not None else None
    options = CheckOptions(offline=offline, isolated=isolated)
    documents, model_name = _documents(source)
    check = FileCheck(documents[0].path, options, declared)
    pragmas = _pragmas(documents[0])
    document, jobs, index, count = _at(index, source, documents, model_name, check, pragmas, training)
    reading = jobs.check.reading
    job = jobs.check.completed(reading.jobs[index])
    if sets:
        from memlint.dialects.native import apply_sets

        job = apply_sets(job, sets)
    job, reason = jobs.check.resolve(index, job)
    if job.architecture is None:
        raise UserError(_unresolved(document, job, jobs.check, index, reason, model_name))
    goal = jobs.check.target_for(index, job)
    others = (*reading.problems, *jobs.check.problems, *jobs.check.problems_of(index))
    return Source(
        document=document,
        dialect=jobs.dialect,
        dialect_name=jobs.name,
        job=job,
        index=index,
        jobs=count,
        target=goal,
        margin=check.margin,
        check=jobs.check,
        problems=tuple(_sentence(document, problem, jobs.check) for problem in others),
    )


@dataclass(slots=True)
class _Jobs:
    check: JobCheck
    dialect: Dialect
    name: str


def _at(
    index: int,
    source: str,
    documents: list[Document],
    model_name: str | None,
    check: FileCheck,
    pragmas: tuple[Pragma, ...],
    training: Mapping[str, Any] | None,
) -> tuple[Document, _Jobs, int, int]:
    """Return the document and place of the job at ``index`` of a file, and how many jobs the file has.

    Of a file with several documents those that are no training configs are passed over.
    """
    found: list[tuple[Document, _Jobs, int]] = []
    refused: UserError | None = None
    for document in documents:
        try:
            jobs = _jobs(source, document, model_name, check, pragmas, training)
            if not jobs.check.reading.jobs:
                raise UserError(_no_job(document, jobs.check))
        except UserError as error:
            refused = refused or error
            continue
        found += [(document, jobs, place) for place in range(len(jobs.check.reading.jobs))]
    if not found and refused is not None:
        raise refused
    if index >= len(found):
        count = len(found)
        raise UserError(f"{source} has {count} job{'' if count == 1 else 's'}, and no job {index + 1}")
    return (*found[index], len(found))


def _jobs(
    source: str,
    document: Document,
    model_name: str | None,
    check: FileCheck,
    pragmas: tuple[Pragma, ...],
    training: Mapping[str, Any] | None,
) -> _Jobs:
    from memlint.dialects.registry import by_name, recognise

    native = by_name("native")
    assert native is not None
    if model_name is not None:
        return _Jobs(JobCheck(check, document, native, ()), native, "model")
    forced = next((pragma.values[0] for pragma in pragmas if pragma.kind == "dialect"), None)
    dialect = (by_name(forced) if forced else None) or recognise(document)
    if dialect is not None:
        return _Jobs(JobCheck(check, document, dialect, pragmas), dialect, dialect.name)
    if isinstance(document.mapping.get("model_type"), str):
        job = bare.model_job(document, training or check.training or {})
        return _Jobs(JobCheck(check, job, native, ()), native, bare.HF_CONFIG)
    raise UserError(
        f"{source} is neither a training config that memlint reads (`memlint dialects` lists them),"
        " nor a Hugging Face config.json, nor a native job file (`memlint: 1`)"
    )


def _documents(source: str) -> tuple[list[Document], str | None]:
    """Return the documents of SOURCE, and the model's ID where it is one."""
    from memlint.document.load import load_documents, load_file, read_bytes

    if source == "-":
        from memlint.document.limits import MAX_BYTES

        return _readable(load_documents(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>")), None
    path = source
    if os.path.isdir(source):
        path = os.path.join(source, "config.json")
        if not os.path.isfile(path):
            raise UserError(f"{source} is a folder without config.json; name a config, or use `memlint check {source}`")
    if os.path.exists(path):
        from memlint.engine.discover import show_path

        read = read_bytes(path)
        documents = load_documents(read, show_path(path)) if isinstance(read, bytes) else load_file(path)
        return _readable(documents), None
    if _MODEL_ID.match(source) and not source.endswith((".yaml", ".yml", ".json", ".toml")):
        text = f'memlint: 1\nmodel: "{source}"\n'  # in quotes: `yes` and `1.5` are names too
        return load_documents(text, source, format="yaml"), source
    raise UserError(f"{source}: no such file or folder, and no Hugging Face model ID")


def _readable(documents: list[Document]) -> list[Document]:
    for document in documents:
        fatal = next((problem for problem in document.problems if problem.fatal), None)
        if fatal is not None:
            raise UserError(f"{document.path}:{fatal.span.line}:{fatal.span.column}: {fatal.message}")
    return documents


def _pragmas(document: Document) -> tuple[Pragma, ...]:
    if "memlint:" not in document.text or document.format == "json":
        return ()
    from memlint.document.comments import find_pragmas

    return find_pragmas(document.text, document.format)[0]


def _unresolved(
    document: Document, job: TrainingJob, check: JobCheck, index: int, reason: str | None, model_name: str | None
) -> str:
    """Why there is no shape of the job's model, with the place that names it where that is a file."""
    problems = check.problems_of(index)
    if model_name is not None:
        return f"{model_name}: {problems[0].message}" if problems else str(reason)
    if problems:
        return _sentence(document, problems[0], check)
    origin = job.origin("model")
    span = document.value_span(origin.key) if origin is not None and origin.file == document.path else None
    return f"{document.path}:{span.line}:{span.column}: {reason}" if span is not None else f"{document.path}: {reason}"


def _sentence(document: Document, problem: Any, check: JobCheck) -> str:
    file = problem.file or document.path
    source = document if file == document.path else check.opened().get(file)
    span = source.value_span(problem.key) if source is not None else None
    place = f"{file}:{span.line}:{span.column}" if span is not None else file
    return f"{place}: {problem.message}"


def _no_job(document: Document, check: JobCheck) -> str:
    if check.reading.problems:
        return _sentence(document, check.reading.problems[0], check)
    reason = check.reading.skipped or "it names no training run"
    return f"{document.path}: no training job in this file: {reason}"
