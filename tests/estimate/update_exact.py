"""Write ``exact_bytes.jsonl`` anew (``python tests/estimate/update_exact.py``): each changed line, a new prediction."""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

from memlint.models.families import FAMILIES
from tests.estimate.exact_jobs import PATH, runs


def main() -> None:
    """Predict every run and write one line each, in the order of the families."""
    lines = [json.dumps(run) for family in FAMILIES for run in runs(family)]
    with open(PATH, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
