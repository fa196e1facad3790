"""Run two real training steps on the GPU and hold the measured memory against the prediction.

SOURCE is as for `memlint estimate`. The data is synthetic, as long as the job's longest batch; the weights are random,
so that nothing is downloaded. With --gpus N the step runs in N processes through torchrun; under torchrun or srun, each
process takes its place by itself. Exit code 1: outside the predicted interval, or out of memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.engine.source import Source
    from memlint.measure.verify.request import Request


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint verify`."""
    from memlint.commands.estimate import configure_source

    configure_source(parser)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: run the step without comparing memory")
    add("--gpus", type=int, metavar="N", help="processes to start through torchrun (default: this one alone)")
    add("--layers", type=int, metavar="N", help="run no more than N layers and carry the figures on to all of them")
    add("--output-format", choices=("text", "json"), default="text", help="text, or JSON")
    add("--output", metavar="FILE", help="write the JSON report to FILE as well, as evidence for `memlint calibrate`")
    add("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")


def run(args: Namespace) -> int:
    """Run, print, and return the exit code."""
    from memlint.commands.estimate import source_from
    from memlint.measure.verify.ready import require_device, require_extra

    require_extra("memlint verify")
    if args.gpus is not None and args.gpus < 1:
        raise UserError("--gpus takes the number of processes, 1 or more")
    if args.layers is not None and args.layers < 1:
        raise UserError("--layers takes a number of layers, 1 or more")
    source, _ = source_from(args)
    request = _request(source, args)
    require_device(args.device, "memlint verify")
    with source.placing():
        report = _report(request, args.gpus)
    if report is None:
        return Exit.OK
    from memlint.measure.verify.report import failed

    text = _json(report)
    if args.output:
        from memlint.report.write import write_atomically

        write_atomically(args.output, text)
    if args.output_format == "text":
        from memlint.measure.verify.text import verify_text
        from memlint.report.style import Style, wants_color

        text = verify_text(report, Style(wants_color(args.color, sys.stdout)))
    sys.stdout.write(text)
    if args.gpus is None:
        from memlint.measure.verify.run import leave_at_once

        leave_at_once(report)
    return Exit.FINDINGS if failed(report) else Exit.OK


def _request(source: Source, args: Namespace) -> Request:
    from memlint.measure.verify.request import Request

    return Request(
        job=source.job,
        file=source.document.path,
        dialect=source.dialect_name,
        device=args.device,
        layers=args.layers,
    )


def _report(request: Request, gpus: int | None) -> dict[str, Any] | None:
    import os

    from memlint.measure.verify.ranks import ranks_from

    ranks = ranks_from(os.environ)
    if ranks.launcher is not None:
        if gpus is not None and gpus != ranks.world:
            raise UserError(
                f"--gpus {gpus}, but {ranks.launcher} has started {ranks.world} processes: leave --gpus out"
            )
    elif gpus is not None and gpus > 1:
        _enough(request.device, gpus)
        from memlint.measure.verify.launch import launch

        _say(f"running in {gpus} processes")
        return launch(request, gpus)
    from memlint.measure.verify.run import verify_job

    return verify_job(request, _say if ranks.rank == 0 else lambda text: None)


def _enough(device: str, gpus: int) -> None:
    if device != "cuda":
        return
    import torch

    there = torch.cuda.device_count()
    if there < gpus:
        raise UserError(f"--gpus {gpus}, but this machine has {there}")


def _say(text: str) -> None:
    print(f"memlint: {text}", file=sys.stderr)


def _json(report: dict[str, Any]) -> str:
    import json

    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"
