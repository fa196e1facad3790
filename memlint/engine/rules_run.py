"""Run the rules over a document and its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

from memlint.findings import Finding
from memlint.rules.registry import RULES, Entry

if TYPE_CHECKING:
    from memlint.dialects.base import Problem
    from memlint.document.model import Document
    from memlint.rules.context import Context

_QUIET_SHARE = 4
"""A job that fits and takes less than a quarter of the GPU cannot waste a quarter of it."""


class RuleCrash(Exception):
    """A rule raised: a bug of ours, reported with the rule's code, never swallowed."""


def file_findings(document: Document, problems: tuple[Problem, ...], active: frozenset[str]) -> list[Finding]:
    """Return what the file rules say; imports none of them for a document without problems."""
    if not document.problems and not problems:
        return []
    from memlint.rules.context import FileContext

    context = FileContext(document=document, problems=problems)
    codes = {problem.code for problem in problems}
    found: list[Finding] = []
    for entry in RULES:
        if entry.kind == "file" and entry.code in active and (entry.code in codes or entry.code == "MEM001"):
            found += _run(entry, context)
    return found


def job_findings(context: Context, active: frozenset[str]) -> list[Finding]:
    """Return what the rules about one job say."""
    quiet = _cannot_matter(context)
    found: list[Finding] = []
    for entry in RULES:
        if entry.kind == "file" or entry.code not in active:
            continue
        if not _may_speak(entry, context, quiet):
            continue
        found += _run(entry, context)
    return found


def _cannot_matter(context: Context) -> bool:
    if context.estimate is None:
        return True
    if context.usable is None:
        return True
    return context.verdict == "fits" and context.estimate.device_bytes * _QUIET_SHARE < context.usable


def _may_speak(entry: Entry, context: Context, quiet: bool) -> bool:
    """Cheap answers for the common good file, so that most rules need not even be imported."""
    if entry.kind == "suggestion":
        return not quiet or entry.code in context.named
    if entry.code == "MEM004":
        return context.unresolved is not None
    if entry.code == "MEM006":
        return context.approximate is not None
    if entry.code == "MEM101":
        return context.verdict == "oom"
    if entry.code == "MEM102":
        return context.verdict == "tight"
    if entry.code == "MEM005":
        return context.target is None
    if entry.code == "MEM202":
        return context.target is not None
    return True


def _run(entry: Entry, context: object) -> Iterable[Finding]:
    try:
        return list(entry.load().check(context))
    except Exception as error:
        raise RuleCrash(f"rule {entry.code} failed: {type(error).__name__}: {error}") from error
