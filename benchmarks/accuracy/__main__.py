"""How right memlint is, as tables.

    python -m benchmarks.accuracy [--oracle FILE] [--measured FILE] [--peers DIR] [--docs docs/accuracy.md]

``--oracle`` takes traced reference points (form of ../shared/oracle), ``--measured`` published measurements (form of
../shared/measured), ``--grid`` what ``python -m benchmarks.accuracy.grid --output FILE`` wrote, ``--objectives DIR``
the points of ``python -m benchmarks.objectives``. ``--peers DIR`` makes a virtual environment in DIR with the other
estimators and compares on the rows that they can express. ``--docs FILE`` also writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys

from benchmarks.accuracy.measured import Prediction, predict_file
from benchmarks.accuracy.oracle import Comparison, compare_all
from benchmarks.accuracy.tables import measured_tables, oracle_tables

GRID = os.path.join(os.path.dirname(__file__), "grid_points.jsonl")
"""Traced points of the grid, which every page shows."""
GIVEN = ("oracle", "objectives", "measured")
"""Options that name a file or folder of the tables, in the order of the page's command."""


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="accuracy of the predictions")
    parser.add_argument("--oracle", metavar="FILE", help="traced reference points, JSON lines")
    parser.add_argument("--measured", metavar="FILE", help="published measurements, CSV")
    parser.add_argument("--grid", metavar="FILE", help="what benchmarks.accuracy.grid wrote, JSON lines")
    parser.add_argument("--objectives", metavar="DIR", help="folder of the traced trainers' points (tests/estimate)")
    parser.add_argument("--peers", metavar="DIR", help="make a virtual environment here and compare with other tools")
    parser.add_argument("--docs", metavar="FILE", help="also write the tables as this page")
    parser.add_argument("--worst", type=_count, default=20, metavar="N", help="how many of the worst rows to explain")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is no number of rows")
    return int(text)


def main() -> int:
    """Run what was asked for and print the tables."""
    options = arguments()
    if not (options.oracle or options.measured or options.grid or options.objectives):
        print(
            "nothing to compare: give --oracle FILE, --measured FILE, --grid FILE or --objectives DIR", file=sys.stderr
        )
        return 2
    lines: list[str] = []
    comparisons: list[Comparison] = []
    predictions: list[Prediction] = []
    try:
        if options.oracle:
            comparisons, left = compare_all(options.oracle)
            lines += ["## Against the traced real code", ""]
            lines += oracle_tables(comparisons, left, min(options.worst, 10))
        grid = options.grid or (GRID if options.docs else None)
        if grid:
            from benchmarks.accuracy.grid_tables import grid_tables

            lines += ["## Against our own trace, over a grid of types and setups", "", *grid_tables(grid)]
        if options.docs:
            from benchmarks.accuracy.grid_quantised import quantised_tables

            lines += quantised_tables()
            from benchmarks.accuracy.model_types import type_tables

            lines += type_tables()
        if options.objectives:
            from benchmarks.objectives.tables import objective_tables

            lines += ["## Against the real trainers", "", *objective_tables(options.objectives)]
        if options.measured:
            predictions, skipped = predict_file(options.measured, _progress)
            lines += ["## Against published measurements", "", *measured_tables(predictions, skipped, options.worst)]
        if options.peers:
            from benchmarks.accuracy.peers import peer_tables

            lines += ["## Beside other tools", "", *peer_tables(options.peers, comparisons, predictions)]
    except (OSError, ValueError) as error:
        print(f"a file could not be compared: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()[-1:]
        print(f"the other tools could not be run: {' '.join([str(error), *said])}", file=sys.stderr)
        return 2
    text = "\n".join(lines)
    print(text)
    if options.docs:
        from benchmarks.accuracy.page import page

        try:
            with open(options.docs, "w", encoding="utf-8") as handle:
                given = {name: getattr(options, name) for name in GIVEN} | {"peers": options.peers and "DIR"}
                handle.write(page(text, datetime.date.today(), given))
        except OSError as error:
            print(f"the page could not be written: {error}", file=sys.stderr)
            return 2
    return 0


def _progress(row: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{row:30s}", end="", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
