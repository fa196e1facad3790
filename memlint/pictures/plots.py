"""The same charts as PNG or SVG files through matplotlib (extra ``plot``)."""

from __future__ import annotations

import os
import re
from typing import Any, Sequence

from memlint.errors import UserError
from memlint.estimate.result import COMPONENTS
from memlint.pictures.collect import Picture
from memlint.pictures.svg import COLOURS, parts_of
from memlint.report.text import printable
from memlint.units import GIB


def save_plots(pictures: Sequence[Picture], folder: str, kind: str) -> list[str]:
    """Write bars, and a timeline and heat map of each job, into ``folder``; return the files. ``kind``: png or svg."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("charts as files need matplotlib: pip install 'memlint-gpu[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    os.makedirs(folder, exist_ok=True)
    written: list[str] = []

    def save(figure: Any, name: str) -> None:
        path = os.path.join(folder, f"{name}.{kind}")
        figure.savefig(path, dpi=150, bbox_inches="tight")
        pyplot.close(figure)
        written.append(path)

    save(_bars(pyplot, pictures), "peaks")
    for number, picture in enumerate(pictures, 1):
        stem = re.sub(r"[^A-Za-z0-9]+", "-", picture.name).strip("-")[-60:] or "job"
        if picture.estimate.timeline:
            save(_timeline(pyplot, picture), f"{number:02}-{stem}-timeline")
        if picture.cells:
            save(_heat_map(pyplot, picture), f"{number:02}-{stem}-batch-sequence")
    return written


def _bars(pyplot: Any, pictures: Sequence[Picture]) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.6 * len(pictures)))
    seen: set[str] = set()
    for row, picture in enumerate(pictures):
        left = 0.0
        for name, size in parts_of(picture):
            label = None if name in seen else name.replace("_", " ")
            seen.add(name)
            axes.barh(row, size / GIB, left=left, color=COLOURS[name], label=label)
            left += size / GIB
        if picture.usable is not None:
            axes.plot([picture.usable / GIB] * 2, [row - 0.45, row + 0.45], color="black", linestyle="--")
    axes.set_yticks(range(len(pictures)), [_plain(picture.name) for picture in pictures])
    axes.invert_yaxis()
    axes.set_xlabel("GiB per GPU; dashed: usable")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35 / max(1, len(pictures)) - 0.1), ncols=5, fontsize=8)
    return figure


def _timeline(pyplot: Any, picture: Picture) -> Any:
    phases = picture.estimate.timeline
    figure, axes = pyplot.subplots(figsize=(8, 4))
    bottoms = [0.0] * len(phases)
    for name in COMPONENTS:
        sizes = [phase.components.get(name, 0) / GIB for phase in phases]
        if any(sizes):
            axes.bar(
                [p.phase for p in phases], sizes, bottom=bottoms, color=COLOURS[name], label=name.replace("_", " ")
            )
            bottoms = [bottom + size for bottom, size in zip(bottoms, sizes)]
    if picture.usable is not None:
        axes.axhline(picture.usable / GIB, color="black", linestyle="--")
    axes.set_ylabel("GiB at the phase's peak")
    axes.set_title(_plain(picture.name), fontsize=10)
    axes.legend(fontsize=8)
    return figure


def _heat_map(pyplot: Any, picture: Picture) -> Any:
    batches = sorted({cell.batch for cell in picture.cells})
    lengths = sorted({cell.sequence for cell in picture.cells})
    order = {"fits": 0, "tight": 1, "oom": 2, "unknown": 3}
    grid = [[3.0] * len(batches) for _ in lengths]
    figure, axes = pyplot.subplots(figsize=(1.5 + 0.9 * len(batches), 1.2 + 0.55 * len(lengths)))
    for cell in picture.cells:
        row, column = lengths.index(cell.sequence), batches.index(cell.batch)
        grid[row][column] = order[cell.verdict]
        axes.text(column, row, f"{cell.device_bytes / GIB:.1f}", ha="center", va="center", fontsize=8)
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(["#cfe9d6", "#f6e3b4", "#f3c9c5", "#e8ebee"])
    axes.imshow(grid, cmap=colours, vmin=0, vmax=3, aspect="auto")
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_yticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_xlabel("micro batch")
    axes.set_ylabel("sequence length")
    axes.set_title(f"{_plain(picture.name)}: peak in GiB", fontsize=10)
    return figure


def _plain(words: str) -> str:
    """Text as it is: matplotlib reads what stands between two dollars as a formula, and stops at one that is none."""
    return printable(words).replace("$", r"\$")
