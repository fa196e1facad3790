"""The charts as SVG text: stacked bars against the GPU's line, the timeline of a step, the heat map."""

from __future__ import annotations

from html import escape
from typing import Mapping, Sequence

from memlint.estimate.result import COMPONENTS
from memlint.pictures.collect import Cell, Picture
from memlint.units import gib

COLOURS: Mapping[str, str] = {
    "parameters": "#3566a8",
    "gradients": "#7a4fa3",
    "optimizer_states": "#b6476f",
    "activations": "#c77b1e",
    "logits": "#a3941f",
    "temporaries": "#4c8f4a",
    "communication": "#2f8f8b",
    "inputs": "#7d7d7d",
    "overhead": "#9aa3ad",
}
"""One colour a component, apart in hue and lightness; the bars also carry a text for each part."""

WIDTH = 480
LABEL = 76
"""Room that the figure behind a bar takes."""


def text(x: float, y: float, words: str, *, anchor: str = "start", css: str = "") -> str:
    """One line of text; everything that comes from a config is escaped here."""
    kind = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, title: str, css: str = "") -> str:
    """A rectangle with a tooltip."""
    kind = f' class="{css}"' if css else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{fill}"{kind}>'
        f"<title>{escape(title)}</title></rect>"
    )


def document(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """An SVG element that scales with its container."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def parts_of(picture: Picture) -> list[tuple[str, int]]:
    """Components of the device peak in order, overheads as one part."""
    estimate = picture.estimate
    parts = [(name, estimate.components.get(name, 0)) for name in COMPONENTS]
    parts.append(("overhead", estimate.device_bytes - estimate.allocated_bytes))
    return [(name, size) for name, size in parts if size > 0]


def bars(pictures: Sequence[Picture]) -> str:
    """One stacked bar a job on a common scale, with the usable memory of its GPU as a line."""
    most = max([p.estimate.high_bytes for p in pictures] + [p.usable or 0 for p in pictures]) or 1
    scale = (WIDTH - 90) / most
    rows: list[str] = []
    y = 8.0
    for picture in pictures:
        rows.append(text(0, y + 12, _short(picture.name, 64), css="name"))
        x = 0.0
        for name, size in parts_of(picture):
            title = f"{name.replace('_', ' ')}: {gib(size)} GiB"
            rows.append(rect(x, y + 18, size * scale, 22, COLOURS[name], title))
            x += size * scale
        at = x + 6
        if picture.usable is not None and x <= picture.usable * scale <= x + LABEL:
            at = picture.usable * scale + 6
        rows.append(text(at, y + 34, f"{gib(picture.estimate.device_bytes)} GiB", css=picture.verdict))
        if picture.usable is not None:
            line = picture.usable * scale
            rows.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{y + 14:.1f}" y2="{y + 44:.1f}" class="usable"/>')
            anchor = "end" if line > WIDTH - 130 else "start"
            shift = -4 if anchor == "end" else 4
            rows.append(
                text(line + shift, y + 54, f"{picture.target}: {gib(picture.usable)}", anchor=anchor, css="small")
            )
        y += 64
    return document(WIDTH, y, "predicted peak of each job against its GPU", rows)


def legend() -> str:
    """Names of the colours, as HTML."""
    items = [
        f'<span class="key"><i style="background:{colour}"></i>{name.replace("_", " ")}</span>'
        for name, colour in COLOURS.items()
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def timeline(picture: Picture) -> str:
    """Peak and end of each phase of one step, by component at the phase's peak."""
    phases = picture.estimate.timeline
    if not phases:
        return ""
    most = max([p.peak_bytes for p in phases] + [picture.usable or 0]) or 1
    height, base = 170.0, 190.0
    step = (WIDTH - 40) / len(phases)
    rows: list[str] = []
    for number, phase in enumerate(phases):
        x = 20 + number * step
        y = base
        for name in COMPONENTS:
            size = phase.components.get(name, 0)
            if size <= 0:
                continue
            tall = size / most * height
            y -= tall
            rows.append(rect(x + 8, y, step - 16, tall, COLOURS[name], f"{phase.phase}, {name}: {gib(size)} GiB"))
        rows.append(text(x + step / 2, y - 5, gib(phase.peak_bytes), anchor="middle", css="small"))
        end = base - phase.end_bytes / most * height
        rows.append(f'<line x1="{x + 4:.1f}" x2="{x + step - 4:.1f}" y1="{end:.1f}" y2="{end:.1f}" class="end"/>')
        rows.append(text(x + step / 2, base + 16, phase.phase, anchor="middle", css="small"))
    if picture.usable is not None:
        line = base - picture.usable / most * height
        rows.append(f'<line x1="10" x2="{WIDTH - 10}" y1="{line:.1f}" y2="{line:.1f}" class="usable"/>')
    return document(WIDTH, base + 26, "peak of each phase of one training step, in GiB", rows)


FILLS = {"fits": "fits-cell", "tight": "tight-cell", "oom": "oom-cell", "unknown": "unknown-cell"}
MARKS = {"fits": "", "tight": "~", "oom": "x", "unknown": ""}


def heat_map(picture: Picture) -> str:
    """Predicted peak over micro batch and sequence; the own cell has a frame, verdicts a mark beside their colour."""
    cells = picture.cells
    if not cells:
        return ""
    batches = sorted({cell.batch for cell in cells})
    lengths = sorted({cell.sequence for cell in cells})
    left, top = 70.0, 26.0
    wide = (WIDTH - left) / len(batches)
    tall = 30.0
    rows = [text(left, 14, "micro batch", css="small")]
    by_place: dict[tuple[int, int], Cell] = {(cell.batch, cell.sequence): cell for cell in cells}
    for column, batch in enumerate(batches):
        rows.append(text(left + (column + 0.5) * wide, top + 8, str(batch), anchor="middle", css="small"))
    for line, length in enumerate(lengths):
        y = top + 14 + line * tall
        rows.append(text(left - 8, y + 20, f"{length:,}", anchor="end", css="small"))
        for column, batch in enumerate(batches):
            cell = by_place.get((batch, length))
            if cell is None:
                continue
            x = left + column * wide
            own = " own" if (batch, length) == (picture.batch, picture.sequence) else ""
            title = f"micro batch {batch}, {length:,} tokens: {gib(cell.device_bytes)} GiB, {cell.verdict}"
            rows.append(rect(x + 1, y + 1, wide - 2, tall - 2, "none", title, css=FILLS[cell.verdict] + own))
            label = f"{gib(cell.device_bytes, 0 if cell.device_bytes > 100 * 2**30 else 1)}{MARKS[cell.verdict]}"
            rows.append(text(x + wide / 2, y + 20, label, anchor="middle", css="small cell"))
    return document(WIDTH, top + 22 + len(lengths) * tall, "predicted peak over micro batch and sequence length", rows)


def _short(name: str, limit: int) -> str:
    return name if len(name) <= limit else "..." + name[-limit + 3 :]
