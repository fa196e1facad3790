"""A baseline: findings that are known and accepted, until one gets worse.

Entries are keyed by rule, file and key path, with the predicted size; no line numbers, so that edits elsewhere in the
file change nothing. Paths are relative to the baseline's own folder.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from memlint.engine.result import CheckResult, FileReport
from memlint.errors import UserError
from memlint.findings import Finding

VERSION = 1
_SIZE_LIMIT = 16 * 1024 * 1024

_WORSE = 1.01
"""A prediction up to 1 % above the accepted one counts as the same: the accuracy that the memory model is held to."""

_KNOWN: dict[str, Baseline] = {}


class _Key(NamedTuple):
    code: str
    file: str
    key: str


class Baseline:
    """Accepted findings with the peak (bytes on the device, or None) at which each was accepted."""

    def __init__(self, folder: str, entries: dict[_Key, int | None]) -> None:
        """Paths of ``entries`` are relative to ``folder``."""
        self._folder = folder
        self._entries = entries

    def covers(self, finding: Finding, report: FileReport) -> bool:
        """Whether ``finding`` is listed and no worse than it was."""
        key = _key(finding, report, self._folder)
        if key not in self._entries:
            return False
        accepted, now = self._entries[key], _peak(report)
        return accepted is None or now is None or now <= accepted * _WORSE


def load_baseline(path: str) -> Baseline:
    """Read a baseline, once for each path. Raises UserError where it is missing or damaged."""
    path = os.path.abspath(path)
    if path in _KNOWN:
        return _KNOWN[path]
    shown = os.path.relpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"cannot read baseline {shown}: not a regular file")
    try:
        with open(path, "rb") as handle:
            content = handle.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise UserError(f"cannot read baseline {shown}: {error.strerror}; write one with --write-baseline") from None
    try:
        if len(content) > _SIZE_LIMIT:
            raise ValueError
        data = json.loads(content)
        if data["version"] != VERSION:
            raise UserError(f"{shown}: baseline version {data['version']!r} is not known; write it anew")
        entries = {_Key(str(e["code"]), str(e["file"]), str(e["key"])): _size(e["bytes"]) for e in data["entries"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{shown} is no memlint baseline; write it anew with --write-baseline") from None
    _KNOWN[path] = Baseline(os.path.dirname(path), entries)
    return _KNOWN[path]


def write_baseline(path: str, result: CheckResult) -> int:
    """Write what ``result`` reports as the new baseline; return the number of entries."""
    from memlint.report.write import write_atomically

    folder = os.path.dirname(os.path.abspath(path))
    entries: dict[_Key, int | None] = {}
    for report in result.reports:
        for finding in report.findings:
            entries[_key(finding, report, folder)] = _peak(report)
    rows: list[dict[str, Any]] = [
        {"code": key.code, "file": key.file, "key": key.key, "bytes": size} for key, size in sorted(entries.items())
    ]
    write_atomically(path, json.dumps({"version": VERSION, "entries": rows}, indent=2, ensure_ascii=False) + "\n")
    _KNOWN.pop(os.path.abspath(path), None)
    return len(rows)


def _key(finding: Finding, report: FileReport, folder: str) -> _Key:
    file = os.path.relpath(os.path.abspath(report.path), folder).replace(os.sep, "/")
    key = ".".join(str(step) for step in finding.key or ())
    return _Key(finding.code, file, f"{report.label}:{key}" if report.label else key)


def _peak(report: FileReport) -> int | None:
    return report.prediction.device_bytes if report.prediction is not None else None


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value
