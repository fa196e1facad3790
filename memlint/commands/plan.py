"""Find the cheapest changes that make a job fit its GPU.

SOURCE is a training config, a native job file, a Hugging Face config.json, a model folder, or a model ID. Plans are
listed best first, in the order of the handbook: mixed precision, fused kernels, checkpointing, optimizer, micro batch,
sharding, offload. `memlint check --fix --unsafe-fixes SOURCE` applies the first one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memlint.commands.estimate import SHORT_FORMS, configure_source, source_from
from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

GOALS = ("fit", "speed", "headroom")


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint plan`."""
    configure_source(parser)
    parser.add_argument(
        "--for",
        dest="goal",
        choices=GOALS,
        default="fit",
        help="fit: least invasive change that fits; speed: shortest step that fits; headroom: keep a quarter free",
    )
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="text, or JSON")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")


def run(args: Namespace) -> int:
    """Plan and print; exit 1 where a target is declared and no plan fits it."""
    from memlint.engine.predict import predict, usable_bytes
    from memlint.plan.planner import Planner
    from memlint.plan.question import from_source

    source, method = source_from(args)
    if method != "simulated":
        raise UserError("`plan` compares simulated predictions; leave out --method first-order")
    estimate, reason = predict(source.job, source.target)
    if estimate is None:
        raise UserError(f"{args.source}: {reason}")
    asked = args.sets or args.method or any(getattr(args, name[2:].replace("-", "_")) for name, _, _ in SHORT_FORMS)
    question = from_source(source, estimate, hypothetical=bool(asked), goal=args.goal)
    report = Planner(question).report()
    usable = usable_bytes(source.job, source.target)
    if args.output_format == "json":
        import json

        from memlint.plan.data import plan_object

        data = plan_object(report, source, usable, args.goal)
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        from memlint.plan.text import plan_text
        from memlint.report.style import Style, wants_color

        style = Style(wants_color(args.color, sys.stdout))
        sys.stdout.write(plan_text(report, source, usable, style, columns=_columns()))
    if source.target is None:
        return Exit.OK
    fits = bool(report.plans) and report.plans[0].verdict == "fits"
    return Exit.OK if fits else Exit.FINDINGS


def _columns() -> int | None:
    """The terminal's width, or what COLUMNS says; None in a pipe or a file."""
    import os
    import shutil

    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns
