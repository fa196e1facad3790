"""Predict the peak GPU memory of one job.

SOURCE is a training config, a native job file, a Hugging Face config.json, a model folder, or a model ID.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.engine.source import Source
    from memlint.estimate.result import Estimate

METHODS = ("simulated", "first-order")

SHORT_FORMS = (
    ("--micro-batch-size", "training.micro_batch_size", "sequences on one GPU in one forward"),
    ("--sequence-length", "training.sequence_length", "tokens of one sequence"),
    ("--precision", "training.precision", "fp32, bf16-mixed, fp16-mixed, bf16, fp16"),
    ("--optimizer", "training.optimizer", "adamw, adamw-8bit, adafactor, sgd, ..."),
    ("--activation-checkpointing", "training.activation_checkpointing", "none, full, selective, offload"),
)
"""Short forms of ``--set``: option, native field, help."""


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint estimate`."""
    configure_source(parser)
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="text, or JSON")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")


def configure_source(parser: ArgumentParser) -> None:
    """Add what every command about one job takes."""
    add = parser.add_argument
    add(
        "source",
        metavar="SOURCE",
        help="config (`-`: stdin), native job, config.json, model folder, or model ID",
    )
    add("--target", metavar="TARGET", help="GPU to compare with, e.g. A100-80GB or 8xH100")
    add(
        "--set",
        dest="sets",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="change a native field, e.g. training.micro_batch_size=4; repeatable, applied last",
    )
    for option, _, text in SHORT_FORMS:
        add(option, metavar="VALUE", help=text)
    add(
        "--method",
        action="append",
        default=[],
        metavar="METHOD",
        help="how to predict (simulated, first-order), or what is trained (full, lora, qlora, ...); both may be given",
    )
    add("--job", type=int, default=1, metavar="N", help="which job of a source with several (default: the first)")
    add("--offline", action="store_true", help="never ask the hub for a model's config")
    add("--isolated", action="store_true", help="read no settings file")


def source_from(args: Namespace) -> tuple[Source, str]:
    """Return the opened source and the prediction method. Raises UserError."""
    from memlint.engine.source import open_source

    sets = []
    method = "simulated"
    for value in args.method:
        if value in METHODS:
            method = value
        else:
            sets.append(f"training.method={value}")
    for option, field, _ in SHORT_FORMS:
        value = getattr(args, option[2:].replace("-", "_"))
        if value is not None:
            sets.append(f"{field}={value}")
    if args.job < 1:
        raise UserError("--job counts from 1")
    source = open_source(
        args.source,
        target=args.target,
        sets=(*sets, *args.sets),
        offline=args.offline,
        isolated=args.isolated,
        index=args.job - 1,
    )
    if source.jobs > 1:
        print(f"memlint: {args.source} has {source.jobs} jobs; this is job {args.job} (--job N)", file=sys.stderr)
    for problem in source.problems:
        print(f"memlint: {problem}", file=sys.stderr)
    return source, method


def run(args: Namespace) -> int:
    """Predict and print; exit 1 where a target is declared and the job does not fit."""
    from memlint.engine.predict import predict

    source, method = source_from(args)
    estimate, approximate = predict(source.job, source.target, method)
    if estimate is None:
        raise UserError(f"{args.source}: {approximate}")
    data = estimate_data(source, estimate, approximate)
    if args.output_format == "json":
        import json

        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        from memlint.report.estimate_text import estimate_text
        from memlint.report.style import Style, wants_color

        beside = None
        if estimate.method == "simulated":
            other, _ = predict(source.job, source.target, "first-order")
            beside = estimate_data(source, other, None) if other is not None else None
        sys.stdout.write(estimate_text(data, Style(wants_color(args.color, sys.stdout)), beside))
    return Exit.FINDINGS if data["verdict"] == "oom" else Exit.OK


def estimate_data(source: Source, estimate: Estimate, approximate: str | None) -> dict[str, Any]:
    """Return the contract's `estimate` object."""
    from memlint.engine.estimate_json import estimate_object
    from memlint.engine.predict import judge, usable_bytes

    return estimate_object(
        document=source.document,
        companions=source.check.opened(),
        dialect=source.dialect_name,
        job=source.job,
        estimate=estimate,
        target=source.target,
        usable=usable_bytes(source.job, source.target),
        verdict=judge(estimate, source.job, source.target, source.margin),
        approximate=approximate,
    )
