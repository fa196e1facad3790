"""Apply the fixes of findings to the files, or show what that would change."""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple

from memlint.document.model import Document
from memlint.engine.options import CheckOptions
from memlint.engine.result import CheckResult, FileReport
from memlint.engine.shipped_files import missing_files
from memlint.errors import UserError
from memlint.findings import Finding, KeyEdit

_PLANS = ("MEM101", "MEM102")
"""Findings whose fix makes the job fit; the others' fixes are parts of it."""


class _Change(NamedTuple):
    path: str
    before: str | None
    """None: the file does not exist yet."""
    after: str


def apply_fixes(
    options: CheckOptions, result: CheckResult, *, unsafe: bool, diff: bool, content: bytes | None
) -> CheckResult:
    """Write (or with ``diff`` print) the fixes of ``result``; return what is left to report after them.

    Safe fixes leave the training result unchanged within numerics; ``unsafe`` adds the others. A file is written
    whole or not at all. What cannot be changed without touching something else is said on stderr and left.
    """
    changes: dict[str, _Change] = {}
    fixed = 0
    for path in dict.fromkeys(report.path for report in result.reports):
        reports = [report for report in result.reports if report.path == path and report.skipped is None]
        chosen = [(report, finding) for report in reports for finding in choose(report, unsafe=unsafe)]
        if not chosen:
            continue
        try:
            made = _changes_of(path, chosen, changes, unsafe=unsafe, content=content, isolated=options.isolated)
        except UserError as error:
            print(f"memlint: not fixed: {error}", file=sys.stderr)
            continue
        changes.update(made)
        fixed += len(chosen)
    if diff:
        for change in changes.values():
            sys.stdout.write(_diff(change))
        return result
    if not changes:
        return result
    from memlint.report.write import write_atomically

    # New files first: a config that names a file is never left without it.
    for change in sorted(changes.values(), key=lambda change: change.before is not None):
        if change.before is None and (folder := os.path.dirname(change.path)):
            os.makedirs(folder, exist_ok=True)
        write_atomically(change.path, change.after)
    from memlint.engine.run import check_paths

    after = check_paths(options)
    after.summary.fixed = fixed
    return after


def choose(report: FileReport, *, unsafe: bool) -> list[Finding]:
    """Return the findings whose fixes are applied together: none touches a key that another one has set."""
    if report.document_index is None:
        return []
    fixable = [finding for finding in report.findings if finding.fix is not None and (unsafe or finding.fix.safe)]
    plans = [finding for finding in fixable if finding.code in _PLANS]
    if plans:
        return plans[:1]
    chosen: list[Finding] = []
    taken: set[tuple[str | None, tuple[str | int, ...]]] = set()
    for finding in fixable:
        assert finding.fix is not None
        keys = {(edit.file, edit.path) for edit in finding.fix.edits}
        if keys & taken:
            continue
        taken |= keys
        chosen.append(finding)
    return chosen


def _changes_of(
    path: str,
    chosen: list[tuple[FileReport, Finding]],
    earlier: dict[str, _Change],
    *,
    unsafe: bool,
    content: bytes | None,
    isolated: bool,
) -> dict[str, _Change]:
    edits: dict[tuple[str, int], list[KeyEdit]] = {}
    for report, finding in chosen:
        assert finding.fix is not None
        new_files = missing_files(path, finding.fix.edits, report.dialect, isolated=isolated) if unsafe else []
        for edit in (*finding.fix.edits, *new_files):
            key = (edit.file, 0) if edit.file is not None else (path, report.document_index or 0)
            edits.setdefault(key, []).append(edit)
    made: dict[str, _Change] = {}
    for (file, index), wanted in edits.items():
        known = made.get(file) or earlier.get(file)
        before = known.before if known is not None else _text(file, content if file == path else None)
        if before is None and not unsafe:
            raise UserError(f"{file} would have to be created; --unsafe-fixes does that")
        current = known.after if known is not None else before
        made[file] = _Change(file, before, _edited(file, index, current, wanted))
    return made


def _text(path: str, content: bytes | None) -> str | None:
    if content is None:
        if not os.path.exists(path):
            return None
        with open(path, "rb") as handle:
            content = handle.read()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; save it so before it is changed") from None


def _edited(path: str, index: int, text: str | None, edits: list[KeyEdit]) -> str:
    if text is None:
        import json

        from memlint.engine.trials import with_edit

        data: object = {}
        for edit in edits:
            data = with_edit(data, edit)
        return json.dumps(data, indent=2) + "\n"
    from memlint.document.edit import apply_edits
    from memlint.document.load import load_documents

    documents: list[Document] = load_documents(text, path, hjson=True)
    return apply_edits(documents[index], edits)


def _diff(change: _Change) -> str:
    from difflib import unified_diff

    # As patch and git count lines: a form feed or U+2028 ends none.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (change.before or "", change.after))
    name = change.path
    lines = list(unified_diff(old, new, f"a/{name}" if change.before is not None else "/dev/null", f"b/{name}"))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
