"""Markdown tables of the benchmark; the same text goes to the terminal and into docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.accuracy.explanations import explain
from benchmarks.accuracy.measured import (
    Prediction,
    Summary,
    Verdicts,
    gib,
    grouped,
    metric_group,
    summarise,
    verdicts,
)
from benchmarks.accuracy.oracle import Comparison
from benchmarks.accuracy.skipped import Skipped, by_reason


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; what a file of rows says cannot break it."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([" ".join(cell.split()).replace("|", "\\|") for cell in row]) + " |" for row in rows]
    return [*lines, ""]


def percent(share: float) -> str:
    """A share with two places of percent."""
    return f"{100 * share:.2f} %"


SUMMARY = ("rows", "median error", "90th percentile", "worst", "in interval", "median width")


def summary_cells(summary: Summary) -> tuple[str, ...]:
    """The cells of one group."""
    errors = (percent(summary.median), percent(summary.ninetieth), percent(summary.worst))
    interval = ("-", "-") if "allocated" in summary.name else (f"{summary.held:.0%}", f"{summary.width:.0%}")
    return (summary.name, str(summary.rows), *errors, *interval)


def measured_tables(predictions: Sequence[Prediction], skipped: Sequence[Skipped], worst: int) -> list[str]:
    """Headline, tables by metric, framework, method and family, worst rows, rows left out."""
    if not predictions:
        return left_out(skipped) or ["The file holds no row.", ""]
    graded = [p for p in predictions if p.row.graded]
    if not graded:
        return ["No row is graded: one GPU, complete, length exact or near the cap.", "", *other_rows(predictions),
                *left_out(skipped)]  # fmt: skip
    lines = ["### Graded rows: one GPU, complete, length exact or near the cap", ""]
    lines += headline(graded, verdicts(graded))
    keys = (
        ("metric", metric_group),
        ("framework", lambda p: f"{p.row.framework}, {metric_group(p)}"),
        ("method", lambda p: f"{p.row['method']}, {metric_group(p)}"),
        ("family", lambda p: f"{p.job.architecture.model_type if p.job.architecture else '?'}, {metric_group(p)}"),
    )
    for name, key in keys:
        lines += [f"By {name}:", ""]
        lines += table((name, *SUMMARY), [summary_cells(s) for s in grouped(graded, key)])
    lines += ["### The rows that stay off", "", f"The {worst} largest errors, and what is known of each.", ""]
    lines += worst_rows(graded, worst)
    lines += every_row(graded)
    lines += other_rows(predictions)
    return lines + left_out(skipped)


def headline(graded: Sequence[Prediction], found: Verdicts) -> list[str]:
    """Median, 90th percentile, false fits, false oom."""
    lines = []
    for name in ("allocated", "reserved"):
        summary = summarise(name, [p for p in graded if metric_group(p) == name])
        if summary is not None:
            text = f"* {name} ({summary.rows} rows): median relative error {percent(summary.median)}, 90th percentile "
            text += percent(summary.ninetieth)
            if name == "reserved":
                text += f"; the interval holds {summary.held:.1%} at a median width of {summary.width:.1%}"
                text += f" ({summary.held_as_printed:.1%} without the allowance for rounding and GB or GiB)"
            lines.append(text)
    wrong = f"{len(found.false_oom)} of {found.ran}{_named(found.false_oom)}"
    missed = f"{len(found.false_fits)} of {found.failed}{_named(found.false_fits)}"
    lines.append(f"* called `oom` although it ran: {wrong}")
    lines.append(f"* called `fits` although it went out of memory: {missed}")
    unknown = [p.row.id for p in graded if p.unknown_gpu]
    if unknown:
        lines.append(f"* not judged, since memlint does not know the GPU they name: {len(unknown)}{_named(unknown)}")
    return [*lines, ""]


def _named(ids: Sequence[str]) -> str:
    return f" ({', '.join(ids)})" if ids else ""


def _cells(p: Prediction) -> tuple[str, ...]:
    row = p.row
    setup = f"{row['method']}, {row['micro_batch']} x {row['seq_len']}, ckpt {row['activation_checkpointing'] or '?'}"
    truth = row.measured_bytes
    shown = gib(truth) if truth is not None else ("out of memory" if row.oom else row.bound or "-")
    error = "-" if p.error is None else f"{100 * p.error:+.1f} %"
    return (row.id, row["model"], setup, row["metric"], shown, gib(p.expected), f"{gib(p.low)} to {gib(p.high)}", error)


ROW = ("id", "model", "setup", "metric", "measured", "predicted", "interval", "error")


def worst_rows(graded: Sequence[Prediction], count: int) -> list[str]:
    """The largest errors with their explanations."""
    ranked = sorted((p for p in graded if p.error is not None), key=lambda p: -abs(p.error or 0.0))[:count]
    return table((*ROW, "why"), [(*_cells(p), explain(p) or "not known") for p in ranked])


def every_row(graded: Sequence[Prediction]) -> list[str]:
    """All graded rows, with the verdict."""
    lines = ["### Every graded row", ""]
    return lines + table((*ROW, "verdict"), [(*_cells(p), p.verdict) for p in graded])


def other_rows(predictions: Sequence[Prediction]) -> list[str]:
    """Rows outside the bars: length only capped or unknown, not complete."""
    others = [p for p in predictions if not p.row.graded and p.error is not None and not p.row.suspect]
    sure = [p for p in predictions if not p.row.graded and not p.row.suspect and p.row.length in ("exact", "near-cap")]
    found = verdicts(sure)
    lines = ["### Rows outside the bars", ""]
    lines += ["Their length is only a cap or unknown, or a setting is: an upper bound is all that can be expected."]
    lines += ["Rows that their collector calls suspect are left out.", ""]
    key = lambda p: f"{p.row.framework}, {p.row.length}"  # noqa: E731
    lines += table(("framework, length", *SUMMARY), [summary_cells(s) for s in grouped(others, key)])
    text = "Of those whose length is known, called `oom` although they ran: "
    text += f"{len(found.false_oom)} of {found.ran}{_named(found.false_oom)}. "
    text += f"Called `fits` although it went out of memory: {len(found.false_fits)} of {found.failed}"
    return [*lines, text + f"{_named(found.false_fits)}.", ""]


def left_out(skipped: Sequence[Skipped], what: str = "Rows not predicted") -> list[str]:
    """Which rows were not predicted, and why; nothing where all were."""
    if not skipped:
        return []
    rows = [(reason, str(count), names) for reason, count, names in by_reason(skipped)]
    return [f"### {what}", "", *table(("reason", "rows", "which"), rows)]


def oracle_tables(comparisons: Sequence[Comparison], skipped: Sequence[Skipped], worst: int) -> list[str]:
    """Errors against traced reference points, by family, and the points left out."""
    beside = left_out(skipped, "Points not compared")
    if not comparisons:
        return beside or ["The file holds no point.", ""]
    families: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        families.setdefault(str(comparison.point["model_type"]), []).append(comparison)
    head = ("model type", "points", "median error", "worst", "phase right", "worst static", "median forward end")
    rows = [_oracle_cells(name, group) for name, group in sorted(families.items())]
    lines = table(head, [_oracle_cells("all", list(comparisons)), *rows])
    ranked = sorted(comparisons, key=lambda c: -abs(c.error))[:worst]
    lines += ["Largest errors:", ""]
    lines += table(
        ("id", "model", "traced", "predicted", "error", "phase traced, predicted"),
        [
            (
                str(c.point["id"]),
                str(c.point.get("model")),
                gib(int(c.point["peak_bytes"])),
                gib(c.predicted),
                f"{100 * c.error:+.3f} %",
                f"{c.point.get('peak_phase')}, {c.phase}",
            )
            for c in ranked
        ],
    )
    return lines + beside


def _oracle_cells(name: str, group: list[Comparison]) -> tuple[str, ...]:
    errors = sorted(abs(c.error) for c in group)
    ends = sorted(abs(c.forward_end_error) for c in group)
    right = sum(c.phase == c.point.get("peak_phase") for c in group)
    statics = max(abs(c.static_error) for c in group)
    middle = len(group) // 2
    peak = (percent(errors[middle]), percent(errors[-1]), f"{right} of {len(group)}")
    return (name, str(len(group)), *peak, percent(statics), percent(ends[middle]))
