"""List the rules with their codes, names and default severities."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from memlint.exits import Exit
from memlint.rules.registry import RULES

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint rules`."""
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="a table, or JSON")


def run(args: Namespace) -> int:
    """Print every rule."""
    if args.output_format == "json":
        rows = [
            {"code": rule.code, "name": rule.name, "severity": rule.severity.label, "summary": rule.summary}
            for rule in RULES
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return Exit.OK
    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        sys.stdout.write(f"{rule.code}  {rule.severity.label:<7}  {rule.name:<{width}}  {rule.summary}\n")
    sys.stdout.write("`memlint explain MEM101` says why a rule exists and how its number is made.\n")
    return Exit.OK
