"""The versions of that day's libraries under which a published run ran."""

from __future__ import annotations

import re

from benchmarks.accuracy.measured_rows import Row

TRANSFORMERS = (
    ("2021-12", "4.15"), ("2022-01", "4.16"), ("2022-12", "4.25"), ("2023-04", "4.28"), ("2023-06", "4.30"),
    ("2023-07", "4.31"), ("2023-09", "4.33"), ("2023-10", "4.34"), ("2023-11", "4.35"), ("2023-12", "4.36"),
    ("2024-01", "4.37"), ("2024-02", "4.38"), ("2024-03", "4.39"), ("2024-04", "4.40"), ("2024-05", "4.41"),
    ("2024-06", "4.42"), ("2024-07", "4.43"), ("2024-08", "4.44"), ("2024-09", "4.45"), ("2024-10", "4.46"),
    ("2024-12", "4.47"), ("2025-01", "4.48"), ("2025-02", "4.49"), ("2025-03", "4.50"), ("2025-04", "4.51"),
    ("2025-05", "4.52"), ("2025-06", "4.53"), ("2025-07", "4.54"), ("2025-08", "4.56"), ("2025-10", "4.57"),
    ("2026-01", "5.0"), ("2026-02", "5.2"), ("2026-03", "5.4"), ("2026-04", "5.6"),
)  # fmt: skip
"""Month of release on PyPI -> minor version of transformers."""


def transformers_version(month: str) -> str:
    """The newest minor version of transformers released by a month (``2024-01``)."""
    chosen = TRANSFORMERS[0][1]
    for released, version in TRANSFORMERS:
        if released <= month:
            chosen = version
    return chosen


BITSANDBYTES = (
    ("2023-05", "0.39.0"), ("2023-07", "0.40.2"), ("2023-08", "0.41.1"), ("2024-01", "0.42.0"), ("2024-03", "0.43.0"),
    ("2024-04", "0.43.1"), ("2024-07", "0.43.3"), ("2024-09", "0.44.1"), ("2024-12", "0.45.0"), ("2025-05", "0.46.0"),
    ("2025-08", "0.47.0"), ("2025-10", "0.48.1"),
)  # fmt: skip
"""Month of release on PyPI -> version of bitsandbytes; none is stated from December 2025 on."""
LATEST = "2025-12"

PRINTED = {"examples/qwen3.5/": "5.3"}
"""Page of a source -> newest transformers its figures can have run on, where that is older than the page's own date.

axolotl: the table of examples/qwen3.5 came with its pull requests 3442 and 3499 (6 to 20 March 2026), and axolotl
required 5.4 from pull request 3562 on (31 March 2026).
"""


def versions_of(row: Row) -> dict[str, str]:
    """What a row's own version column, its date or its page say of the libraries."""
    text = row["framework_version_or_date"]
    printed = [version for page, version in PRINTED.items() if page in row["source"]]
    versions = {"transformers": printed[0] if printed else transformers_version(row.date)}
    torch = re.search(r"torch (\d+\.\d+)", text)
    if torch:
        versions["torch"] = torch.group(1)
    bnb = re.search(r"bnb ([\d.]+\d)", text)
    dated = [version for month, version in BITSANDBYTES if month <= row.date]
    if bnb:
        versions["bitsandbytes"] = bnb.group(1)
    elif dated and row.date < LATEST:
        versions["bitsandbytes"] = dated[-1]
    if row.framework == "litgpt":
        versions["litgpt"] = _litgpt_version(row)
        versions["bitsandbytes"] = "0.41.1" if versions["litgpt"].startswith("2023") else "0.42.0"
    if row.framework == "torchtune":
        versions["torchtune"] = "0.4.0" if row.date >= "2024-11" else "0.3.0"
        if row.date < "2024-10":
            versions["bitsandbytes"] = "0.43.3"  # 0.44 came out in the week of the README's first table
    return versions


def _litgpt_version(row: Row) -> str:
    """litgpt by the model: config_hub's table gained a model when its release did (CHANGELOG of GitHub releases)."""
    if row.date < "2024-01":
        return row.date.replace("-", ".")
    model = row["model"].lower()
    if "llama-3." in model or "gemma-2-" in model or (model == "gemma-2b" and row["params_b"].startswith("2.6")):
        return "0.4.13"
    return "0.4.0"
