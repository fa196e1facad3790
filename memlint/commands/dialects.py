"""List the config formats that memlint reads, with the newest framework release whose defaults were read."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint dialects`."""
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="a table, or JSON")


def run(args: Namespace) -> int:
    """Print every dialect."""
    from memlint.dialects.registry import DIALECTS

    rows = [
        {"name": item.name, "title": item.title, "version": item.version, "suffixes": list(item.suffixes)}
        for item in DIALECTS
    ]
    if args.output_format == "json":
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return Exit.OK
    name, title = (max(len(str(row[key])) for row in rows) for key in ("name", "title"))
    version = max(len(str(row["version"])) for row in rows)
    for row in rows:
        suffixes = " ".join(row["suffixes"])
        sys.stdout.write(f"{row['name']:<{name}}  {row['title']:<{title}}  {row['version']:<{version}}  {suffixes}\n")
    return Exit.OK
