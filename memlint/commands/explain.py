"""Say why a rule exists; with a file, show what the rule says about it and the arithmetic behind it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memlint.errors import UserError
from memlint.exits import Exit
from memlint.rules.registry import BY_CODE
from memlint.rules.select import check_selectors, names_one

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint explain`."""
    parser.add_argument("rule", nargs="?", metavar="RULE", help="code or name of a rule")
    parser.add_argument("--file", metavar="FILE", help="a training config: what the rule says there, with the figures")
    parser.add_argument("--target", metavar="TARGET", help="GPU to check against")
    parser.add_argument("--offline", action="store_true", help="never ask the hub for a model's config")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")


def run(args: Namespace) -> int:
    """Print the rule's documentation, and its findings in a file."""
    if args.rule is None:
        raise UserError("name a rule, as in `memlint explain MEM101`; `memlint rules` lists them")
    code = names_one(args.rule)
    if code is None:
        check_selectors((args.rule,))
        raise UserError(f"`{args.rule}` stands for several rules; name one, as in `memlint explain MEM301`")
    import os

    if args.file is not None and not os.path.isfile(args.file):
        raise UserError(f"{args.file}: no such file")
    if args.file is None and args.target is not None:
        raise UserError("--target needs --file: a rule's reasons are the same for every GPU")
    entry = BY_CODE[code]
    rule = entry.load()
    heading = f"{entry.code} {entry.name} ({entry.severity.label}, since {rule.META.since})"
    sys.stdout.write(f"{heading}\n\n{(rule.__doc__ or '').strip()}\n")
    if args.file is not None:
        from memlint.commands.arithmetic import explain_file

        text = explain_file(code, args.file, target=args.target, offline=args.offline, color=args.color)
        sys.stdout.write("\n" + text)
    return Exit.OK
