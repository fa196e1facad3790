"""Print a JSON Schema, for editors and other tools."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint schema`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="schema to print; without it, the names are listed")


def run(args: Namespace) -> int:
    """Print the schema, or the names."""
    from memlint.resources import schema_names, schema_text

    text = "\n".join(schema_names()) if args.name is None else schema_text(args.name).rstrip("\n")
    sys.stdout.write(text + "\n")
    return Exit.OK
