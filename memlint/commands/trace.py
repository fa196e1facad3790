"""Trace one job in the real transformers code, on fake tensors, beside the simulated figures.

Needs the extra `measure` (torch, transformers, peft) and a C++ compiler once; no GPU, no weights. SOURCE as in
`memlint estimate`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.measure.trace.compare import Comparison
    from memlint.measure.trace.result import TraceResult

NEEDS = (
    "memlint trace needs torch and transformers: run `pip install 'memlint-gpu[measure]'`, or in"
    " .pre-commit-config.yaml add `additional_dependencies: ['memlint-gpu[measure]']` to the hook"
)


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint trace`."""
    from memlint.commands.estimate import configure_source

    configure_source(parser)
    add = parser.add_argument
    add("--output-format", choices=("text", "json"), default="text", help="text, or JSON")
    add("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")
    add("--every-layer", action="store_true", help="trace every layer instead of carrying on from a few equal ones")
    add("--saved", action="store_true", help="list every tensor that forward keeps for backward (text only)")
    add("--events", metavar="FILE", help="write every allocation and free of the step as tab-separated lines")
    add("--trust-remote-code", action="store_true", help="run the code that the model's repository brings along")
    add("--quiet", action="store_true", help="no progress on stderr")


def run(args: Namespace) -> int:
    """Trace and print; exit 1 where a target is declared and the job does not fit."""
    _require_extra()
    import warnings

    from memlint.commands.estimate import estimate_data, source_from
    from memlint.measure.trace.job import trace_job
    from memlint.measure.trace.progress import Progress

    source, _ = source_from(args)
    _quieten()
    with Progress(args.quiet) as progress, source.placing(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside transformers, peft and torch are not the user's
        traced, result = trace_job(
            source.job,
            source.target,
            every_layer=args.every_layer or args.saved or bool(args.events),
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    comparison = _compared(source, traced, result)
    data = estimate_data(source, traced, None)
    if args.events:
        from memlint.measure.trace.report import write_events

        try:
            write_events(result, args.events)
        except OSError as error:
            raise UserError(f"{args.events}: cannot write the events: {error.strerror}") from None
    if args.output_format == "json":
        import json

        data["comparison"] = comparison.as_json() if comparison is not None else None
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_text(args, data, comparison, result))
    return Exit.FINDINGS if data["verdict"] == "oom" else Exit.OK


def _require_extra() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("transformers") is None:
        raise UserError(NEEDS)


def _quieten() -> None:
    """Leave stderr to memlint: transformers warns of loss types, PyTorch logs what it then raises."""
    import logging

    for name in ("transformers", "torch._subclasses.fake_tensor"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _compared(source: Any, traced: Any, result: TraceResult) -> Comparison | None:
    """The simulated figures beside the trace; None where the estimator has no model of this architecture."""
    from memlint.estimate.errors import Unsupported
    from memlint.estimate.kernels import exactly
    from memlint.estimate.simulate import simulate
    from memlint.measure.trace.compare import compare

    # No kernel runs on fake tensors: what was traced is transformers' own code.
    job = exactly(source.job, {})
    try:
        return compare(job, source.target, traced, simulate(job, source.target), result)
    except Unsupported as reason:
        print(f"memlint: no simulated figures beside the trace: {reason}", file=sys.stderr)
        return None


def _text(args: Namespace, data: dict[str, Any], comparison: Comparison | None, result: TraceResult) -> str:
    from memlint.measure.trace.report import saved_table
    from memlint.measure.trace.text import comparison_text
    from memlint.report.estimate_text import estimate_text
    from memlint.report.style import Style, wants_color

    parts = [estimate_text(data, Style(wants_color(args.color, sys.stdout)))]
    if result.extended_from is not None:
        low, high = result.extended_from
        parts.append(f"Traced at {low} and {high} layers and carried on (--every-layer traces them all).\n")
    if comparison is not None:
        parts.append(comparison_text(comparison))
    if args.saved:
        parts.append(saved_table(result) + "\n")
    return "\n".join(parts)
