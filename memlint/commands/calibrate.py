"""Error statistics over stored reports of `memlint verify`: how far the predictions were off, and where.

FILE is what `memlint verify --output FILE` wrote, or one such report a line. Nothing is changed by it: constants of the
memory model are edited by hand, with these figures as evidence.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint calibrate`."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="reports: JSON, or JSON lines")
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="text, or JSON")


def run(args: Namespace) -> int:
    """Read, sum up, print."""
    from memlint.measure.verify.calibrate import calibrate_text, read_reports, statistics

    if not args.files:
        raise UserError("name the reports to read, as written by `memlint verify SOURCE --output FILE`")
    reports = [report for path in args.files for report in read_reports(path)]
    if not reports:
        raise UserError(f"{', '.join(args.files)}: no report of `memlint verify` in it")
    data = statistics(reports)
    if args.output_format == "json":
        import json

        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(calibrate_text(data))
    return Exit.OK
