"""Findings: what a rule says, and where."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from memlint.job import KeyPath
from memlint.records import dataclass


class Severity(IntEnum):
    """How bad a finding is; ordered, so ``>=`` compares with ``--fail-on``."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        """Lower-case name as users write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEdit:
    """One change of a config in its own dialect: set ``path`` to ``value`` (``None`` with ``delete`` removes it)."""

    path: KeyPath
    value: Any = None
    delete: bool = False
    file: str | None = None
    """The companion file to change (a DeepSpeed JSON); None: the config itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The edit that a finding suggests; ``safe`` means the training result is unchanged within numerics."""

    safe: bool
    edits: tuple[KeyEdit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """One suggestion, recomputed with the change applied."""

    text: str
    """``\\`gradient_checkpointing: true\\` saves 12.3 GiB: predicted 18.1 GiB, fits``."""
    saves_bytes: int | None = None
    fits_after: bool | None = None
    fix: Fix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, placed on a key path (rules) or on a line (readers)."""

    code: str
    name: str
    severity: Severity
    message: str
    """First line: what is wrong with both numbers; lower case, no full stop."""
    key: KeyPath | None = None
    """Key path in the file; the engine turns it into positions."""
    file: str | None = None
    """Another file than the one checked (a companion)."""
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    label: str | None = None
    """Short text beside the carets."""
    breakdown: str | None = None
    notes: tuple[str, ...] = ()
    helps: tuple[Help, ...] = ()
    saves_bytes: int | None = None
    fits_after: bool | None = None
    fix: Fix | None = None
