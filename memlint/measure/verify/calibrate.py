"""How far predictions were off, over stored reports of `memlint verify`; no torch, and nothing is changed.

Errors are relative to what was measured. A constant of the estimator is changed by hand, with such a table as evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

from memlint.errors import UserError
from memlint.estimate.overhead import INSIDE
from memlint.measure.verify.compare import outside_of, slack_of
from memlint.measure.verify.report import KIND, VERSION

MAX_BYTES = 256 * 2**20
"""Of one file: some 20 KB a report, so ten thousand of them."""

FIGURES = (
    "parameters",
    "gradients",
    "optimizer_states",
    "saved for backward",
    "peak in forward",
    "peak in loss",
    "peak in backward",
    "peak in clip",
    "peak in optimizer",
    "allocated",
    "reserved",
    "device",
)
"""Rows of a comparison whose errors are shares; overheads are compared as sizes."""

GROUPS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("family", lambda report: str(report["model"]["family"])),
    ("method", lambda report: str(report["job"]["training"]["method"])),
    ("optimizer", lambda report: str(report["job"]["training"]["optimizer"])),
    ("attention", lambda report: str(report["job"]["training"]["attention"])),
    ("checkpointing", lambda report: _mode(report["job"]["training"].get("activation_checkpointing"))),
    ("GPU", lambda report: str(report["machine"]["name"] or "CPU")),
)


def _mode(value: Any) -> str:
    return str(value.get("mode", "full") if isinstance(value, Mapping) else value)


def read_reports(path: str) -> list[dict[str, Any]]:
    """Return the reports of a file: one JSON object, or one object a line; lines of another kind are left out.

    Raises UserError for a file that is neither.
    """
    try:
        with open(path, "rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES // 2**20} MiB")
    try:
        text = content.decode("utf-8")
        whole = _parsed(text)
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text: it should hold reports of `memlint verify --output`") from None
    except ValueError:
        return [_checked(value, f"{path}:{number}") for number, value in _lines(text, path) if _is_report(value)]
    values = whole if isinstance(whole, list) else [whole]
    return [_checked(value, path) for value in values if _is_report(value) or not isinstance(whole, list)]


def _lines(text: str, path: str) -> Iterable[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, _parsed(line)
            except ValueError:
                raise UserError(f"{path}:{number} is no JSON object") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _is_report(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == KIND


def _checked(value: Any, place: str) -> dict[str, Any]:
    """Return a report whose parts have the right form. Raises UserError."""
    if not _is_report(value):
        raise UserError(f"{place} is no report of `memlint verify --output-format json`")
    if value.get("version") != VERSION:
        raise UserError(f"{place}: report version {value.get('version')!r}; this memlint reads {VERSION}")
    for name, kind in (
        ("model", dict), ("job", dict), ("machine", dict), ("prediction", dict), ("comparison", list), ("result", dict)
    ):  # fmt: skip
        if not isinstance(value.get(name), kind):
            raise UserError(f"{place}: the report has no `{name}`")
    for row in value["comparison"]:
        if not isinstance(row, dict) or not isinstance(row.get("measured_bytes"), int) or "name" not in row:
            raise UserError(f"{place}: a row of `comparison` is broken")
    if not isinstance(value["job"].get("training"), dict):
        raise UserError(f"{place}: the report's job has no `training`")
    found: dict[str, Any] = value
    try:
        calibrate_text(statistics([found]))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        # A report may come from anybody: what the table of it alone needs is there, or it is said here with its place.
        raise UserError(f"{place}: the report is broken ({error!r:.80})") from None
    return found


def statistics(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table as plain data: verdicts, errors by figure, overheads, and errors of device bytes by group."""
    verdicts: dict[str, int] = {}
    for report in reports:
        verdict = str(report["result"].get("verdict"))
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    figures = {name: errors for name in FIGURES if (errors := error_statistics(reports, name)) is not None}
    groups: dict[str, dict[str, Any]] = {}
    for title, key in GROUPS:
        members: dict[str, list[dict[str, Any]]] = {}
        for report in reports:
            members.setdefault(key(report), []).append(report)
        found = {name: error_statistics(some, "allocated") for name, some in sorted(members.items())}
        if any(value is not None for value in found.values()):
            groups[title] = {name: value for name, value in found.items() if value is not None}
    return {
        "version": VERSION,
        "reports": len(reports),
        "verdicts": verdicts,
        "figures": figures,
        "overheads": overheads(reports),
        "groups": groups,
    }


def error_statistics(reports: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Return number, median, 90th percentile and worst of the relative errors of one figure; None without any."""
    errors = [
        (row["error"], label(report))
        for report in reports
        for row in report["comparison"]
        if row["name"] == name and isinstance(row.get("error"), (int, float)) and isfinite(row["error"])
    ]
    if not errors:
        return None
    signed = sorted(error for error, _ in errors)
    sizes = sorted(abs(error) for error in signed)
    worst, where = max(errors, key=lambda item: abs(item[0]))
    return {
        "count": len(errors),
        "median": quantile(signed, 0.5),
        "median_absolute": quantile(sizes, 0.5),
        "ninetieth_absolute": quantile(sizes, 0.9),
        "worst": worst,
        "worst_report": where,
    }


def overheads(reports: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each overhead's measured range beside the range that was predicted, in bytes; medians over the reports."""
    found: dict[str, dict[str, list[float]]] = {}
    for report in reports:
        measured = report.get("measured")
        if not isinstance(measured, dict) or measured.get("allocated_bytes") is None:
            continue
        parts = {part["name"]: part for part in report["prediction"].get("overheads", ())}
        for name, size, names in (
            ("cublas workspace", measured.get("workspace_bytes"), ("cublas_workspace",)),
            ("allocator slack", slack_of(measured), ("allocator_slack",)),
            ("context and libraries", outside_of(measured), tuple(n for n in parts if n not in INSIDE)),
        ):
            if size is None or not all(n in parts for n in names):
                continue
            row = found.setdefault(name, {key: [] for key in ("measured", "low", "expected", "high", "inside")})
            row["measured"].append(size)
            bounds = {key: sum(parts[n][f"{key}_bytes"] for n in names) for key in ("low", "expected", "high")}
            for key, value in bounds.items():
                row[key].append(value)
            row["inside"].append(float(bounds["low"] <= size <= bounds["high"]))
    return {
        name: {
            "count": len(row["measured"]),
            "least_bytes": int(min(row["measured"])),
            "median_bytes": int(quantile(sorted(row["measured"]), 0.5)),
            "most_bytes": int(max(row["measured"])),
            "low_bytes": int(quantile(sorted(row["low"]), 0.5)),
            "expected_bytes": int(quantile(sorted(row["expected"]), 0.5)),
            "high_bytes": int(quantile(sorted(row["high"]), 0.5)),
            "inside": int(sum(row["inside"])),
        }
        for name, row in found.items()
    }


def quantile(ordered: list[float], share: float) -> float:
    """Return the value below which ``share`` of the ordered values lie, between neighbours in a straight line."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def label(report: Mapping[str, Any]) -> str:
    """Return a name for a report in tables: its own, else its file."""
    return str(report.get("name") or report.get("file") or report["model"].get("id"))


def calibrate_text(data: Mapping[str, Any]) -> str:
    """Return the statistics as text."""
    verdicts = ", ".join(f"{count} {name.replace('-', ' ')}" for name, count in sorted(data["verdicts"].items()))
    lines = [f"{data['reports']} report{'' if data['reports'] == 1 else 's'}: {verdicts}"]
    if data["figures"]:
        lines += ["", f"{'error of the prediction':<26}{'n':>4}{'median':>9}{'|median|':>10}{'90 %':>8}{'worst':>9}"]
        lines += [_error_line(name.replace("_", " "), row) for name, row in data["figures"].items()]
    if data["overheads"]:
        lines += [
            "",
            f"{'MiB':<26}{'n':>4}{'measured: least median most':>30}{'predicted: low to high':>26}{'inside':>8}",
        ]
        for name, row in data["overheads"].items():
            mib = {key: f"{value / 2**20:.0f}" for key, value in row.items() if key.endswith("_bytes")}
            spread = f"{mib['least_bytes']} {mib['median_bytes']} {mib['most_bytes']}"
            interval = f"{mib['low_bytes']} ({mib['expected_bytes']}) {mib['high_bytes']}"
            lines.append(f"  {name:<24}{row['count']:>4}{spread:>30}{interval:>26}{row['inside']:>8}")
    for title, rows in data["groups"].items():
        lines += ["", f"{'allocated, by ' + title:<26}{'n':>4}{'median':>9}{'|median|':>10}{'90 %':>8}{'worst':>9}"]
        lines += [_error_line(name, row) for name, row in rows.items()]
    if not data["figures"]:
        lines.append("Nothing in them can be compared.")
    return "\n".join(lines) + "\n"


def _error_line(name: str, row: Mapping[str, Any]) -> str:
    figures = f"{row['median']:>+9.2%}{row['median_absolute']:>10.2%}{row['ninetieth_absolute']:>8.2%}"
    return f"  {name[:24]:<24}{row['count']:>4}{figures}{row['worst']:>+9.2%}  {row['worst_report']}"
