"""Explain an out-of-memory message and say what to do next.

LOG is a file with PyTorch's message, alone or inside a log or traceback; ``-`` reads standard input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit
from memlint.units import gib

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.engine.source import Source
    from memlint.oom.diagnose import Diagnosis, Step


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint oom`."""
    parser.add_argument(
        "log", metavar="LOG", help="file with the message, a whole log or a traceback; - is standard input"
    )
    parser.add_argument("--config", metavar="FILE", help="the run's config: names the tensor and recomputes each step")
    parser.add_argument("--target", metavar="TARGET", help="GPU, where the config does not declare it")
    parser.add_argument("--offline", action="store_true", help="never ask the hub for a model's config")
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="text, or JSON")


def run(args: Namespace) -> int:
    """Print what each message of the log means. Exit 0 when one was found, 2 when the log holds none."""
    from memlint.oom.diagnose import diagnose, recovery
    from memlint.oom.parse import find

    events = find(_read(args.log))
    if not events:
        raise UserError(
            f"{args.log} holds no out-of-memory message of PyTorch; give the log with the line"
            " `CUDA out of memory. ...`"
        )
    source, usable, estimate = None, None, None
    world = 1
    if args.config:
        source, usable, estimate, world = _open(args)
    job = source.job if source is not None else None
    found = [diagnose(event, job, world) for event in events]
    steps: list[Step] = []
    if source is not None and estimate is not None:
        from memlint.engine.predict import predict

        room = usable or next((event.capacity for event in events if event.capacity), None)
        if room is not None:
            room = int(room * (1 - source.margin))  # as `check` and `plan` judge
        steps = recovery(source.job, lambda changed: predict(changed, source.target)[0], room, source.target)
    if args.output_format == "json":
        import json

        print(json.dumps(_data(found, steps, estimate), indent=2))
    else:
        print("\n".join(_text(found, steps, estimate, args.config)))
    return Exit.OK


def _read(name: str) -> str:
    from memlint.oom.parse import LIMIT

    if name == "-":
        # The end of a log tells most; a log may hold any bytes.
        kept = b""
        while block := sys.stdin.buffer.read(LIMIT):
            kept = (kept + block)[-LIMIT:]
        return kept.decode("utf-8", "replace")
    import os

    try:
        size = os.path.getsize(name)
        with open(name, "rb") as handle:
            if size > LIMIT:
                handle.seek(size - LIMIT)
            return handle.read(LIMIT).decode("utf-8", "replace")
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror or error}") from None


def _open(args: Namespace) -> tuple[Source, int | None, Any, int]:
    from memlint.engine.predict import predict, usable_bytes
    from memlint.engine.source import open_source
    from memlint.estimate.simulate import world_size

    source = open_source(args.config, target=args.target, offline=args.offline)
    for problem in source.problems:
        print(f"memlint: {problem}", file=sys.stderr)
    estimate, _ = predict(source.job, source.target)
    return source, usable_bytes(source.job, source.target), estimate, world_size(source.job, source.target)


def _sizes(diagnosis: Diagnosis) -> list[tuple[str, int | None]]:
    event = diagnosis.event
    return [
        ("asked for", event.requested),
        ("capacity", event.capacity),
        ("free", event.free),
        ("allocated by PyTorch", event.allocated),
        ("reserved but free", event.reserved_free),
        ("this process in all", event.process),
        ("other processes", sum(size for _, size in event.others) if event.others else None),
    ]


def _text(found: list[Diagnosis], steps: list[Step], estimate: Any, config: str | None) -> list[str]:
    lines: list[str] = []
    for diagnosis in found[:8]:
        event = diagnosis.event
        where = f"rank {event.rank}, " if event.rank is not None else ""
        gpu = f"GPU {event.gpu}" if event.gpu is not None else event.device
        lines.append(f"line {event.line}: out of memory on {where}{gpu}: {diagnosis.cause}")
        lines.append(f"  {diagnosis.explanation}")
        if diagnosis.tensor is not None:
            lines.append(f"  what did not fit: {diagnosis.tensor}, in the {diagnosis.phase} ({diagnosis.how})")
        sizes = [f"{name} {gib(size, 2)}" for name, size in _sizes(diagnosis) if size is not None]
        if sizes:
            lines.append(f"  GiB: {', '.join(sizes)}")
        lines.extend(f"  = help: {step.text}" for step in diagnosis.steps)
        lines.append("")
    if len(found) > 8:
        lines.append(f"and {len(found) - 8} more messages, of other ranks or later tries")
    first = found[0]
    if estimate is not None:
        lines.append(
            f"predicted peak of {config}: {gib(estimate.device_bytes)} GiB ({gib(estimate.low_bytes)}-"
            f"{gib(estimate.high_bytes)}), in the {estimate.phase}"
        )
        capacity = first.event.capacity
        if capacity is not None and first.cause == "excess":
            if estimate.low_bytes > capacity:
                lines.append(f"  as predicted: even the low end exceeds the {gib(capacity, 2)} GiB of this GPU")
            elif estimate.high_bytes < capacity:
                lines.append(
                    "  the prediction fits this GPU: the run was not the one of this config, its rows were longer, or "
                    "something outside the training step took the memory"
                )
    if steps:
        lines.append("next, each on top of those before:")
        for number, step in enumerate(steps, 1):
            verdict = {True: ", fits", False: "", None: ""}[step.fits]
            size = f": {gib(step.device_bytes)} GiB{verdict}" if step.device_bytes is not None else ""
            lines.append(f"  {number}. {step.text}{size}")
        lines.append(f"`memlint plan {config}` searches all combinations and writes the edits.")
    elif config is None:
        lines.append(
            "next: a micro batch of 1 (more accumulation), then mixed precision, activation checkpointing, a fused"
        )
        lines.append(
            "loss, a lighter optimizer, sharding; `--config FILE` names the tensor and gives the number of each."
        )
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _data(found: list[Diagnosis], steps: list[Step], estimate: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "messages": [
            {
                "line": d.event.line,
                "rank": d.event.rank,
                "gpu": d.event.gpu,
                "cause": d.cause,
                "explanation": d.explanation,
                "tensor": d.tensor,
                "phase": d.phase,
                "found_by": d.how,
                "requested_bytes": d.event.requested,
                "capacity_bytes": d.event.capacity,
                "free_bytes": d.event.free,
                "allocated_bytes": d.event.allocated,
                "reserved_free_bytes": d.event.reserved_free,
                "process_bytes": d.event.process,
                "other_processes": [{"process": int(n), "bytes": size} for n, size in d.event.others],
                "steps": [step.text for step in d.steps],
            }
            for d in found
        ],
        "predicted": None
        if estimate is None
        else {
            "device_bytes": estimate.device_bytes,
            "low_bytes": estimate.low_bytes,
            "high_bytes": estimate.high_bytes,
            "phase": estimate.phase,
        },
        "recovery": [{"step": s.text, "device_bytes": s.device_bytes, "fits": s.fits} for s in steps],
    }
