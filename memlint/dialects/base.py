"""What every dialect offers: recognise a document, read it, and write a change in its own keys."""

from __future__ import annotations

from typing import Any, Mapping, Protocol

from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import KeyPath, Origin, TrainingJob, replace_fields
from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong in the file that the reader itself noticed (MEM002, MEM003, MEM007, MEM008)."""

    code: str
    key: KeyPath
    message: str
    label: str | None = None
    file: str | None = None
    """The companion file the problem is in; None: the document itself."""
    on_key: bool = False
    """Point at the key rather than at the value."""
    line: int | None = None
    """Place of a comment, which has no key."""
    column: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a dialect made of a document."""

    jobs: tuple[TrainingJob, ...] = ()
    problems: tuple[Problem, ...] = ()
    skipped: str | None = None
    """Why there is no job in a file of this dialect (an export config, a companion file), for --show-files."""
    companions: tuple[str, ...] = ()
    """Other files read to make the job."""


class ReadContext(Protocol):
    """What a dialect may ask of the outside: companion files only, bounded to the repository."""

    search_root: str
    """Working directory of the framework: nearest repository root, or the ``search-root`` setting."""
    gpus: int | None
    """World size where it is known from the target or from ``# memlint: gpus=N``; None otherwise."""
    versions: Mapping[str, str]
    """Framework versions from a requirements or lock file or settings; empty: the newest."""

    def companion(self, path: str, *, beside: Document) -> Document | None:
        """Open a file that ``beside`` names: relative to ``search_root`` first, then to the document's own folder."""
        ...


class Dialect(Protocol):
    """One config format. Modules in ``memlint/dialects`` each expose one instance, listed in ``registry.DIALECTS``."""

    name: str
    """``axolotl``; the value of ``# memlint: dialect=``."""
    title: str
    """``axolotl YAML``, for tables."""
    version: str
    """Newest framework release whose defaults were read, e.g. ``0.18.0``."""
    suffixes: tuple[str, ...]
    """File name endings it may have: ``(".yaml", ".yml")``."""
    markers: tuple[str, ...]
    """Cheap text gate: a file whose text contains none of these strings is not of this dialect and is never parsed."""

    def recognise(self, document: Document) -> bool:
        """Whether the document's content is of this dialect; independent of key order, no file access."""
        ...

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn the document into jobs. Never raises on content: what is wrong becomes a Problem."""
        ...

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write changes of native fields as edits of this dialect's own keys; None where it cannot be written here."""
        ...


class JobDraft:
    """Collects native fields with their origins while a dialect reads; :meth:`build` makes the frozen job.

    Fields are dotted native names (``training.lora.rank``). A later ``set`` of the same field wins, which is how a
    companion file or a framework's override rule is expressed.
    """

    def __init__(self, framework: str, document: Document) -> None:
        """Start an empty draft; ``framework`` names dialect and version: ``axolotl 0.18``."""
        self.framework = framework
        self.document = document
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.assumptions: list[str] = []
        self.versions: dict[str, str] = {}
        self.model: str | Mapping[str, Any] | None = None

    def set(
        self,
        name: str,
        value: Any,
        *,
        key: KeyPath | None = None,
        file: str | None = None,
        default: str | None = None,
        assumed: str | None = None,
    ) -> None:
        """Give a field its value; exactly one of ``key``, ``default`` and ``assumed`` says where it comes from."""
        self.values[name] = value
        if key is not None:
            self.origins[name] = Origin(file=file or self.document.path, key=key)
        elif default is not None:
            self.origins[name] = Origin(default=default)
        else:
            self.origins[name] = Origin(assumed=assumed or "not stated")
            if assumed is not None:
                self.assumptions.append(assumed)

    def get(self, name: str, default: Any = None) -> Any:
        """Return what was set for a field so far."""
        return self.values.get(name, default)

    def build(self) -> TrainingJob:
        """Make the job. Field names that do not exist are a bug in the dialect and raise AttributeError."""
        job = TrainingJob(
            model=self.model if self.model is not None else "",
            framework=self.framework,
            versions=dict(self.versions),
            origins=dict(self.origins),
            assumptions=tuple(dict.fromkeys(self.assumptions)),
        )
        return replace_fields(job, self.values)
