"""Run points of ZeRO in DeepSpeed's real engine, and compare memlint with all that are known.

    python -m benchmarks.zero [--only TEXT [--exact]] [--output FILE] [--compare]

Needs deepspeed and peft beside the measure extra, and a system that forks. ``points.jsonl`` beside this module was
made with DeepSpeed 0.19.8, torch 2.13, transformers 5.24 and peft 0.21.2; points that the file holds are not run again.
``--compare`` runs nothing and needs none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from benchmarks.lines import add_line
from benchmarks.zero.compare import FILE, compared, kept
from benchmarks.zero.points import Spec, points


def run(name: str, spec: Spec) -> dict[str, Any] | None:
    """One point: the highest peaks of all ranks, where their parts differ (stages 1 and 2)."""
    peaks: dict[str, int] = {}
    for rank in range(spec["world"] if spec["zero"]["stage"] in (1, 2) else 1):
        result = _forked(spec, rank)
        if isinstance(result, str):
            print(f"{name}: {result}", file=sys.stderr)
            return None
        peaks = {phase: max(size, peaks.get(phase, 0)) for phase, size in result.items()}
    return {"name": name, "versions": _versions(), "spec": spec, "peaks": peaks}


def _forked(spec: Spec, rank: int) -> dict[str, int] | str:
    """The peaks of one rank, or why there are none: in a process forked from this one, which has everything imported."""
    from benchmarks.zero import real

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        result: dict[str, int] | str
        try:
            result = real.measured(spec, rank)
        except Exception as error:  # the parent tells
            result = f"{type(error).__name__}: {error}"[:400]
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, int] | str = json.loads(text) if text else "the process ended"
    return found


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name).split("+")[0] for name in ("deepspeed", "torch", "transformers", "peft")}


def main() -> int:
    """Run, write and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zero", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="points of which the name holds this text")
    parser.add_argument("--exact", action="store_true", help="... or is this text")
    parser.add_argument("--output", default=FILE)
    parser.add_argument("--compare", action="store_true", help="run nothing")
    options = parser.parse_args()
    try:
        known = {row["name"] for row in kept(options.output)}
        if not options.compare:
            os.environ["DS_ACCELERATOR"] = "cpu"
            from benchmarks.zero import real  # noqa: F401  # once, before the processes that are forked for the points
    except (ImportError, ValueError) as error:
        print(f"the points cannot be run: {error}", file=sys.stderr)
        return 2

    def asked(name: str) -> bool:
        return name == options.only if options.exact else options.only in name

    if not options.compare:
        for name, spec in points():
            if asked(name) and name not in known:
                row = run(name, spec)
                if row is not None:
                    add_line(options.output, row)
                    print(name, row["peaks"], flush=True)
    worst: float | None = None
    for row in kept(options.output):
        if asked(row["name"]):
            errors = compared(row)
            worst = max(worst or 0.0, *map(abs, errors.values()))
            print(f"{row['name']:40}", *(f"{phase} {100 * error:+.3f} %" for phase, error in errors.items()))
    if worst is None:
        print(f"no point of {options.output} is called {options.only}", file=sys.stderr)
        return 2
    print(f"worst: {100 * worst:.3f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
