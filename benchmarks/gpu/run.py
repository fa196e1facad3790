"""Run the GPU suite and write one JSON object a line: python -m benchmarks.gpu.run --output measured.jsonl

Needs memlint's folder, torch, transformers, accelerate and peft, and no network: weights are random, models come from
the bundled catalog. Jobs that cannot run here (a package or memory is missing, out of time) are lines with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

if __package__ in (None, ""):  # started by its path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from benchmarks.gpu.suite import CASES, Case, tiny
from memlint.errors import UserError

SKIPPED = "memlint-verify-skipped"
MINUTES = 8.0


def run_suite(
    cases: Iterable[Case], *, device: str, minutes: float = MINUTES, small: bool = False, layers: int = 4
) -> Iterator[dict[str, Any]]:
    """Yield one report for each case, or a line that says why there is none. ``small``: tiny models, for a CPU."""
    started = time.monotonic()
    slowest = 0.0
    for case in cases:
        left = minutes * 60 - (time.monotonic() - started)
        if left < slowest:
            yield _skipped(case, "out of time")
            continue
        began = time.monotonic()
        try:
            line = verify_case(case, device=device, small=small, layers=layers)
        except UserError as error:
            line = _skipped(case, str(error))
        except Exception as error:  # one job's failure must not cost the others their time on the GPU
            line = _skipped(case, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        taken = time.monotonic() - began
        slowest = max(slowest, taken)
        line["suite_seconds"] = round(taken, 2)
        yield line


def verify_case(case: Case, *, device: str, small: bool, layers: int) -> dict[str, Any]:
    """Run one case and return its report under the case's name. Raises UserError where it cannot be run."""
    from memlint.engine.source import open_source
    from memlint.measure.verify.request import Request
    from memlint.measure.verify.run import verify_job

    job = case.native()
    if small:
        job = tiny(case, full_config(case.model), layers)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"{case.name}.json")
        with open(path, "w", encoding="utf-8") as handle:
            json.dump(job, handle)
        source = open_source(path, offline=True, isolated=True)
    if source.problems:
        raise UserError("; ".join(source.problems))
    deep = None if small else case.layers
    report = verify_job(
        Request(job=source.job, file=f"{case.name}.json", dialect=source.dialect_name, device=device, layers=deep)
    )
    assert report is not None
    return {"name": case.name, "separates": case.separates, **report}


def full_config(model: str) -> dict[str, Any]:
    """Return the config of a catalog model with the defaults of its class filled in."""
    from memlint.models.architecture import Architecture
    from memlint.models.catalog import find
    from memlint.models.config import read_config

    row = find(model)
    assert row is not None, f"{model} is not in the catalog"
    read = read_config(row.config, id=model)
    assert isinstance(read, Architecture), read
    return dict(read.config)


def _skipped(case: Case, reason: str) -> dict[str, Any]:
    return {"kind": SKIPPED, "name": case.name, "separates": case.separates, "reason": reason}


def main(argv: list[str] | None = None) -> int:
    """Run the suite from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default="gpu-suite.jsonl", help="file to write, one JSON object a line")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models of the same kinds, for a CPU")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="start no job that may end after this")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this case; repeatable")
    args = parser.parse_args(argv)
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("no CUDA device; --device cpu --tiny runs the suite without one", file=sys.stderr)
            return 2
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    if not chosen:
        print(f"no case is called {', '.join(args.only)}: {', '.join(case.name for case in CASES)}", file=sys.stderr)
        return 2
    with open(args.output, "w", encoding="utf-8") as handle:
        for number, line in enumerate(run_suite(chosen, device=args.device, minutes=args.minutes, small=args.tiny), 1):
            handle.write(json.dumps(line) + "\n")
            handle.flush()
            print(f"{number}/{len(chosen)} {line['name']}: {outcome(line)}", file=sys.stderr)
    return 0


def outcome(line: dict[str, Any]) -> str:
    """Return what became of a case in a few words."""
    if line["kind"] == SKIPPED:
        return f"skipped: {line['reason']}"
    from memlint.measure.verify.checked import summary

    return f"{summary(line)} ({line['suite_seconds']} s)"


if __name__ == "__main__":
    sys.exit(main())
