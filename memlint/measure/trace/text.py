"""A comparison of trace and simulation as text."""

from __future__ import annotations

from collections.abc import Iterator

from memlint.measure.trace.compare import Comparison, LayerRow, Row
from memlint.units import gib

_SHOWN = 5 * 1024**2
"""Bytes below which a row would read 0.00 GiB."""


def comparison_text(comparison: Comparison) -> str:
    """Return the lines to print below a traced estimate."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield "Trace beside simulation (GiB per GPU):"
    yield f"  {'':<34}{'traced':>9}{'simulated':>11}{'difference':>12}"
    yield _row(comparison.peak)
    for row in comparison.components:
        if max(row.traced, row.simulated) >= _SHOWN:
            yield _row(row, "  " + row.name.replace("_", " "))
    for row in comparison.phases:
        yield _row(row, f"peak of {row.name}")
    yield _row(comparison.forward_end)
    differing = [row for row in comparison.layers if row.only_traced or row.only_simulated]
    for layer in comparison.layers:
        words = layer.name + (" each" if " to " in layer.name else "")
        yield _row(Row(name=words, traced=layer.traced, simulated=layer.simulated))
    if differing:
        yield from _first(differing[0])
    else:
        yield "Both keep the same tensors for backward."


def _row(row: Row, name: str | None = None) -> str:
    if row.traced == row.simulated:
        share = "="
    elif row.simulated < _SHOWN:
        share = "new" if row.traced >= _SHOWN else ""
    else:
        share = f"{row.traced / row.simulated - 1:+.2%}"
    return f"  {name or row.name:<34}{gib(row.traced, 2):>9}{gib(row.simulated, 2):>11}{share:>12}"


def _first(layer: LayerRow) -> Iterator[str]:
    yield f"First tensor that differs, {layer.name}:"
    if layer.only_traced:
        yield f"  the trace keeps {layer.only_traced}"
    if layer.only_simulated:
        yield f"  the simulation keeps {layer.only_simulated}"
