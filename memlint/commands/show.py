"""`memlint check --show-settings` and `--show-files`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from memlint.engine.options import CheckOptions
from memlint.engine.result import FileReport
from memlint.exits import Exit
from memlint.findings import Severity
from memlint.records import fields
from memlint.settings.load import settings_for
from memlint.settings.model import Settings


def show_settings(options: CheckOptions) -> int:
    """Print the settings that govern each path, as JSON by settings file."""
    folders: dict[str, dict[str, Any]] = {}
    for path in options.paths:
        folder = path if os.path.isdir(path) else os.path.dirname(options.stdin_filename or path) or "."
        settings = Settings() if options.isolated else settings_for(folder)
        folders[path] = _plain(settings)
    sys.stdout.write(json.dumps(folders, indent=2, ensure_ascii=False) + "\n")
    return Exit.OK


def _plain(value: Any) -> Any:
    if isinstance(value, Severity):
        return value.label
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {field.name.replace("_", "-"): _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _known(report: FileReport) -> str:
    """Return the dialect, or why there is none for a file that looks like a training config."""
    return report.dialect or report.no_prediction or "unreadable"


def show_files(options: CheckOptions, content: bytes | None) -> int:
    """Print each file with its dialect, or why it is skipped."""
    from memlint.engine.run import check_paths
    from memlint.report.text import printable

    seen: set[str] = set()
    for report in check_paths(options, content).reports:
        line = f"{report.path}: skipped: {report.skipped}" if report.skipped else f"{report.path}: {_known(report)}"
        if line not in seen:
            seen.add(line)
            sys.stdout.write(printable(line) + "\n")
    return Exit.OK
