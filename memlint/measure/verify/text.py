"""A verification report as text: what was run, measured beside predicted, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memlint.report.style import Style
from memlint.report.text import printable
from memlint.units import gib

_VERDICTS = {
    "inside": ("good", "inside the predicted interval"),
    "above": ("error", "above the predicted interval"),
    "below": ("error", "below the predicted interval"),
    "out-of-memory": ("error", "out of memory"),
    "not-compared": ("dim", "memory not compared"),
}
_WORDS = {"optimizer_states": "optimizer states", "device": "device (what the driver shows)"}


def verify_text(report: Mapping[str, Any], style: Style) -> str:
    """Return the report as text for a terminal."""
    return "\n".join(_lines(report, style)) + "\n"


def _lines(report: Mapping[str, Any], style: Style) -> Iterator[str]:
    from memlint.report.estimate_text import job_text

    machine, measured = report["machine"], report["measured"]
    name = printable(str(report["model"]["id"] or report["file"]))
    where = machine["name"] or "CPU"
    if machine["world"] > 1:
        where = f"{machine['world']} x {where}"
    yield f"{style('bold', name)} on {printable(where)}, torch {machine['versions'].get('torch')}"
    yield "  " + printable(job_text(report["job"]))
    yield ""
    if report["out_of_memory"] is not None:
        yield from _stopped(report, style)
        return
    seconds = ", ".join(f"{value:.2f} s" for value in measured["seconds"])
    losses = ", ".join("not a number" if value is None else f"{value:.3f}" for value in measured["losses"])
    yield f"Two steps ran ({seconds}); loss {losses}; phases {', '.join(measured['phases'])}."
    yield ""
    yield f"{'GiB per GPU':<34}{'predicted':>12}{'measured':>12}{'error':>9}"
    for row in report["comparison"]:
        error = "" if row["error"] is None else f"{row['error']:+.1%}"
        words = _WORDS.get(row["name"], row["name"])
        yield f"  {words:<32}{gib(row['predicted_bytes'], 3):>12}{gib(row['measured_bytes'], 3):>12}{error:>9}"
    result = report["result"]
    kind, words = _VERDICTS[result["verdict"]]
    yield ""
    if result["measured_bytes"] is not None:
        interval = f"{gib(result['low_bytes'], 2)} to {gib(result['high_bytes'], 2)}"
        found = gib(result["measured_bytes"], 2)
        code = " [MEM901]" if result["verdict"] in ("above", "below") else ""
        yield f"{result['figure'].capitalize()} memory {found} GiB, predicted {interval}: {style(kind, words + code)}."
        if result["figure"] == "device":
            yield f"  as evidence for `memlint check`, in the config: # memlint: measured={found}GiB"
    else:
        interval = f"{gib(result['low_bytes'], 2)} to {gib(result['high_bytes'], 2)}"
        yield f"{words.capitalize()}: {interval} GiB are predicted."
    yield from _notes(report)


def _stopped(report: Mapping[str, Any], style: Style) -> Iterator[str]:
    stop = report["out_of_memory"]
    place = f" at {printable(stop['module'])}" if stop["module"] else ""
    phase = "while the model was built" if stop["phase"] == "build" else f"in {stop['phase']} of step {stop['step']}"
    yield style("error", f"Out of memory {phase}{place}.")
    parts = []
    if stop["requested_bytes"] is not None:
        parts.append(f"it asked for {gib(stop['requested_bytes'], 2)} GiB")
    parts.append(f"{gib(stop['allocated_bytes'], 2)} GiB were allocated")
    if stop["capacity_bytes"] is not None:
        parts.append(f"{gib(stop['free_bytes'], 2)} of {gib(stop['capacity_bytes'], 2)} GiB were free")
    yield "  " + ", ".join(parts)
    low, high = report["prediction"]["low_bytes"], report["prediction"]["high_bytes"]
    yield f"  predicted peak {gib(low, 2)} to {gib(high, 2)} GiB"
    yield f"  `memlint plan {printable(report['file'])}` says what to change so that it fits"
    yield from _notes(report)


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    measured = report["measured"] or {}
    if measured.get("device_source"):
        yield f"  device memory: {measured['device_source']}"
    for sentence in report["notes"]:
        yield f"  - {printable(sentence)}"
