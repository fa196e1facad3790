"""Rows of a file of published measurements (see ../shared/measured/README.md), as typed records."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Any

GIB = 2**30
MOST_GIB = 1024
"""More than any GPU has; beyond it a cell is no size in GiB."""
OVERFULL = "(beyond the columns)"
"""What a row holds in more cells than the file has columns: a comma too many has shifted the others."""


def whole(text: str) -> int | None:
    """The number that a cell of digits states; None for any other cell, and for more digits than any setting has."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None


@dataclass(frozen=True, slots=True)
class Row:
    """One published run; ``cells`` keeps the file's own columns, empty cells as empty strings."""

    cells: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()

    @property
    def id(self) -> str:
        """The row's name."""
        return self["id"]

    @property
    def framework(self) -> str:
        """Framework in one word, as tables group it."""
        name = self["framework"].lower()
        for word, short in FRAMEWORKS:
            if word in name:
                return short
        return name or "unknown"

    @property
    def complete(self) -> bool:
        """Everything that decides on the memory is known."""
        return self["notes"].startswith("complete")

    @property
    def length(self) -> str:
        """The length tag: exact, near-cap, cap, unknown."""
        found = re.search(r"len:([\w-]+)", self["notes"])
        return found.group(1) if found else "unknown"

    @property
    def bound(self) -> str | None:
        """``upper`` or ``lower`` for rows that say only that a run fitted or failed."""
        found = re.search(r"bound:(\w+)", self["notes"])
        return found.group(1) if found else None

    @property
    def suspect(self) -> bool:
        """The row contradicts arithmetic or another source."""
        return "SUSPECT" in self["notes"]

    @property
    def gpus(self) -> int:
        """Number of GPUs; 1 where the cell is empty, 0 where it is no number."""
        return whole(self["num_gpus"] or "1") or 0

    @property
    def measured_bytes(self) -> int | None:
        """Published bytes; None for a bound, a run out of memory, and a cell that holds no size."""
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]*)?|\.[0-9]+", self["measured_gib"]):
            return None
        size = float(self["measured_gib"])
        return int(size * GIB) if 0 < size < MOST_GIB else None

    @property
    def measured_range(self) -> tuple[int, int] | None:
        """What the published figure may stand for; None for a bound or a run out of memory.

        Half a unit of its last digit either way, and from GB up to GiB where a source prints ``G`` or ``GB``.
        """
        if self.measured_bytes is None:
            return None
        size = float(self["measured_gib"])
        _, _, digits = self["measured_gib"].partition(".")
        half = 0.5 * 10.0 ** -len(digits)
        printed = self["unit_as_reported"]
        doubt = 1.0
        if self["metric"] == "unspecified_reported" and "GiB" not in printed and "1e9" not in printed:
            doubt = 10**9 / GIB
        return int((size - half) * doubt * GIB), int((size + half) * GIB)

    @property
    def oom(self) -> bool:
        """The run went out of memory."""
        return self["oom"] == "yes"

    @property
    def graded(self) -> bool:
        """The bars of issue 4 hold on this row: one GPU, complete, real length known, not called suspect."""
        return self.complete and self.gpus == 1 and self.length in ("exact", "near-cap") and not self.suspect

    @property
    def date(self) -> str:
        """The latest year-month that the row's version column names (``2024-10``), the one named last beside HEAD;
        ``9999-99`` where it names none.
        """
        text = self["framework_version_or_date"]
        months: list[str] = re.findall(r"\d{4}-\d{2}", text) or ["9999-99"]
        return months[-1] if "HEAD" in text else max(months)


FRAMEWORKS = (
    ("litgpt", "litgpt"),
    ("torchtune", "torchtune"),
    ("ms-swift", "ms-swift"),
    ("qwen finetune", "qwen-finetune"),
    ("axolotl", "axolotl"),
    ("llama-factory", "llamafactory"),
    ("unsloth", "unsloth"),
    ("peft", "peft"),
    ("transformers", "hf-trainer"),
)
"""A word of the framework column -> short name; the first that occurs wins."""


NEEDED = ("id", "framework", "model", "method", "seq_len", "micro_batch", "measured_gib", "metric")
"""Columns without which no row of a file can be predicted and compared; the others may be left out or empty."""


def read_rows(path: str) -> list[Row]:
    """Read a file of measured rows; one without a name is named by its line.

    Raises ValueError for a file that is no such table, naming the line where it has one.
    """
    with open(path, "rb") as handle:
        content = handle.read()
    try:
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: the line is no UTF-8 text") from None
    # strict: a quote that is never closed would otherwise swallow every row behind it.
    reader = csv.DictReader(text, strict=True)
    try:
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} has no column {', '.join(missing)}")
        return [_row(cells, f"line {reader.line_num}") for cells in reader]
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num + 1}: {error}") from None


def _row(cells: dict[Any, Any], name: str) -> Row:
    beyond = "".join(cells.pop(None, ()))
    return Row({**cells, OVERFULL: beyond, "id": (cells["id"] or "").strip() or name})
