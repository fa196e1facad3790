"""Tables of docs/accuracy.md from the GPU suite's lines: python -m benchmarks.gpu.tables measured.jsonl"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

if __package__ in (None, ""):  # started by its path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from benchmarks.gpu.run import SKIPPED
from benchmarks.lines import read_lines
from memlint.errors import UserError
from memlint.measure.verify.calibrate import error_statistics, overheads, read_reports
from memlint.units import MIB, gib

NOTHING = "No run on a GPU has been recorded yet: `python -m benchmarks.gpu.run` makes one.\n"


def markdown(path: str) -> str:
    """Return the section as Markdown: jobs measured beside predicted, errors by source, overheads, what was skipped.

    A file that is not there gives a sentence, so that the document can be built without a GPU.
    """
    if not os.path.exists(path):
        return NOTHING
    reports = [report for report in read_reports(path) if report["machine"]["device"] == "cuda"]
    if not reports:
        return NOTHING
    machine = reports[0]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    parts = [
        f"{len(reports)} jobs, two real training steps each, on {machine['name']}"
        f" ({reports[0]['date'][:10]}; {versions}; memlint {reports[0]['memlint']}). Sizes in GiB.",
        _jobs(reports),
        "Error of the allocated peak and of what the device showed, by what a group of jobs separates:",
        _groups(reports),
        "What lies beside the tensors, in MiB, measured and predicted:",
        _overheads(reports),
    ]
    skipped = [line for line in read_lines(path) if line.get("kind") == SKIPPED]
    if skipped:
        parts.append(
            "Not run: " + "; ".join(f"{_cell(line['name'])} ({_cell(line['reason'])})" for line in skipped) + "."
        )
    return "\n\n".join(parts) + "\n"


def _jobs(reports: list[dict[str, Any]]) -> str:
    rows = ["| job | separates | allocated | predicted | error | phase | device | interval | verdict |",
            "|---|---|--:|--:|--:|---|--:|---|---|"]  # fmt: skip
    for report in reports:
        rows.append(
            f"| {_cell(report.get('name', report['file']))} | {_cell(report.get('separates', ''))} | {_job(report)} |"
        )
    return "\n".join(rows)


def _job(report: Mapping[str, Any]) -> str:
    prediction, measured, result = report["prediction"], report["measured"], report["result"]
    interval = f"{gib(result['low_bytes'], 2)}-{gib(result['high_bytes'], 2)}"
    if measured is None:
        stop = f"out of memory in {report['out_of_memory']['phase']}"
        return f"{stop} | {gib(prediction['allocated_bytes'], 2)} | | | | {interval} | {result['verdict']}"
    error = prediction["allocated_bytes"] / measured["allocated_bytes"] - 1
    phase = (
        measured["phase"]
        if measured["phase"] == prediction["phase"]
        else f"{measured['phase']} (not {prediction['phase']})"
    )
    device = "" if result["measured_bytes"] is None else gib(result["measured_bytes"], 2)
    return (
        f"{gib(measured['allocated_bytes'], 2)} | {gib(prediction['allocated_bytes'], 2)} | {error:+.2%} | {phase} |"
        f" {device} | {interval} | {result['verdict']}"
    )


def _groups(reports: list[dict[str, Any]]) -> str:
    rows = [
        "| source of error | jobs | allocated: median | worst | device: median | worst |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        groups.setdefault(str(report.get("separates", "")), []).append(report)
    for name, members in [*groups.items(), ("all", reports)]:
        cells = []
        for figure in ("allocated", "device"):
            found = error_statistics(members, figure)
            cells.append("| |" if found is None else f"{found['median']:+.2%} | {found['worst']:+.2%} |")
        rows.append(f"| {_cell(name)} | {len(members)} | {' '.join(cells)}")
    return "\n".join(rows)


def _overheads(reports: list[dict[str, Any]]) -> str:
    rows = ["| part | jobs | least | median | most | predicted | inside |", "|---|--:|--:|--:|--:|---|--:|"]
    for name, row in overheads(reports).items():
        mib = {key: f"{value / MIB:.0f}" for key, value in row.items() if key.endswith("_bytes")}
        rows.append(
            f"| {name} | {row['count']} | {mib['least_bytes']} | {mib['median_bytes']} | {mib['most_bytes']} |"
            f" {mib['low_bytes']} to {mib['high_bytes']}, {mib['expected_bytes']} expected | {row['inside']} |"
        )
    return "\n".join(rows)


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    """Print the section for the file named."""
    given = sys.argv[1:] if argv is None else argv
    if len(given) != 1:
        print("usage: python -m benchmarks.gpu.tables FILE", file=sys.stderr)
        return 2
    try:
        sys.stdout.write(markdown(given[0]))
    except (UserError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyError, TypeError) as error:
        print(f"{given[0]}: a report is broken ({error!r:.80})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
