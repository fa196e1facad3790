"""Compare the predicted peaks of two jobs, component by component.

A and B are what `memlint estimate` takes: training configs, native job files, config.json files, or model IDs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

FORMATS = ("text", "markdown", "json")


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint compare`."""
    add = parser.add_argument
    add("first", metavar="A", help="the job to compare with")
    add("second", metavar="B", help="the job that is compared")
    add("--target", metavar="TARGET", help="GPU to hold both against, e.g. A100-80GB")
    add(
        "--set",
        dest="sets",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="change a native field in both, e.g. training.micro_batch_size=4; repeatable",
    )
    add("--offline", action="store_true", help="never ask the hub for a model's config")
    add("--isolated", action="store_true", help="read no settings file")
    add("--output-format", choices=FORMATS, default="text", help="text, Markdown for a review comment, or JSON")
    add("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")


def run(args: Namespace) -> int:
    """Compare and print; exit 1 where B does not fit its target."""
    from memlint.plan.difference import difference

    before, after = _estimate(args.first, args), _estimate(args.second, args)
    found = difference(before, after)
    name = f"{args.first} -> {args.second}"
    if args.output_format == "json":
        import json

        sys.stdout.write(json.dumps({"version": 1, **found}, indent=2, ensure_ascii=False) + "\n")
    elif args.output_format == "markdown":
        from memlint.plan.difference_text import markdown

        sys.stdout.write(markdown([(name, found)], "Predicted GPU memory"))
    else:
        from memlint.plan.difference_text import text
        from memlint.report.style import Style, wants_color

        sys.stdout.write(text(name, found, Style(wants_color(args.color, sys.stdout))))
    return Exit.FINDINGS if after["verdict"] == "oom" else Exit.OK


def _estimate(name: str, args: Namespace) -> dict[str, Any]:
    from memlint.commands.estimate import estimate_data
    from memlint.engine.predict import predict
    from memlint.engine.source import open_source

    source = open_source(name, target=args.target, sets=tuple(args.sets), offline=args.offline, isolated=args.isolated)
    for problem in source.problems:
        print(f"memlint: {problem}", file=sys.stderr)
    estimate, approximate = predict(source.job, source.target)
    if estimate is None:
        raise UserError(f"{name}: {approximate}")
    return estimate_data(source, estimate, approximate)
