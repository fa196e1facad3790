"""Run the rules over a document and its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

from memlint.engine.crash import RuleCrash, crash_text
from memlint.findings import Finding
from memlint.job import Parallelism
from memlint.rules.registry import RULES, Entry

if TYPE_CHECKING:
    from memlint.dialects.base import Problem
    from memlint.document.model import Document
    from memlint.rules.context import Context

_NO_PARALLELISM = Parallelism()

_OF_STATES = frozenset({"MEM203", "MEM401", "MEM501"})
"""Suggestions about weights, gradients and optimizer states; the others leave these as they are."""


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
    found: list[Finding] = []
    for entry in RULES:
        if entry.kind != "file" and entry.code in active and _may_speak(entry, context):
            found += _run(entry, context)
    return found


def _may_speak(entry: Entry, context: Context) -> bool:
    """Cheap answers for the common good file, so that most rules need not even be imported."""
    code = entry.code
    if code == "MEM502":
        offload = context.job.parallelism.offload
        return context.usable is not None and (context.verdict == "oom") == (offload == "none")
    if entry.kind == "suggestion":
        return code in context.named or _could_matter(code, context)
    if code == "MEM004":
        return context.unresolved is not None
    if code == "MEM005":
        return context.target is None
    if code == "MEM006":
        return context.approximate is not None
    if code == "MEM101":
        return context.verdict == "oom"
    if code == "MEM102":
        return context.verdict == "tight"
    if code == "MEM103":
        return context.estimate is not None and context.estimate.host_bytes > 0 and context.host_limit is not None
    if code == "MEM104":
        # A step that does not fit is said first; its plan looks after the evaluation too.
        rows = context.job.training.eval_micro_batch_size
        return rows is not None and context.target is not None and context.verdict in ("fits", "tight")
    if code == "MEM503":
        return context.job.parallelism != _NO_PARALLELISM
    if code == "MEM202":
        target = context.target
        return target is not None and (target.bf16 is False or target.fp8 is False)
    if code == "MEM901":
        return context.measured is not None
    if code == "MEM602":
        architecture = context.job.architecture
        positions = architecture.longest_sequence if architecture is not None else None
        return positions is not None and context.job.training.sequence_length > positions
    return True


def _could_matter(code: str, context: Context) -> bool:
    """Whether a suggestion could save enough: what it leaves alone is a lower bound of the peak after it."""
    from memlint.rules.context import WASTE_SHARE

    estimate, usable = context.estimate, context.usable
    if estimate is None or usable is None:
        return False
    if context.verdict != "fits":
        return True
    if code in _OF_STATES:
        most = estimate.device_bytes
    else:
        # All states are alive together in the optimizer step.
        most = estimate.device_bytes - sum(estimate.static.values())
    return most * WASTE_SHARE > usable


def _run(entry: Entry, context: object) -> Iterable[Finding]:
    try:
        return list(entry.load().check(context))
    except Exception as error:
        raise RuleCrash(f"rule {entry.code} failed: {crash_text(error)}") from error
