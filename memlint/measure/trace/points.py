"""Trace reference points and print where a trace differs from them.

python -m memlint.measure.trace.points --points ../shared/oracle/points.jsonl [--id g150] [--events FILE] [--saved]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

from memlint.measure.trace.lines import read_lines
from memlint.measure.trace.report import saved_table, write_events
from memlint.measure.trace.result import TraceResult
from memlint.measure.trace.run import trace_model

FIGURES = (
    "param_bytes", "grad_bytes", "optim_bytes", "static_before_fwd_bytes", "fwd_end_bytes", "saved_activation_bytes",
    "saved_logits_loss_bytes", "saved_cast_weight_bytes", "bwd_end_bytes", "first_step_peak_bytes",
)  # fmt: skip
SETTINGS = ("id", "model", "model_type", "head", "config", "batch", "seq", "ckpt", "precision", "optim", "attn")
STATED = ("n_params", "peak_bytes", "peak_phase", "peak_op", "phase_peaks", "breakdown", "sdpa_backend", *FIGURES)
"""Columns that describe a point, and what it says of its trace."""


def read_points(path: str) -> list[dict[str, Any]]:
    """The points of a file. Raises OSError, and ValueError with file and line for a line that is none."""
    return read_lines(path, (*SETTINGS, *STATED))


def trace_point(point: dict[str, Any], every_layer: bool = True) -> TraceResult:
    """Trace one row of ``points.jsonl``, all its layers or carried on from a few."""
    return trace_model(
        {"model_type": point["model_type"], **point["config"]},
        head=point["head"],
        batch=point["batch"],
        seq=point["seq"],
        precision=point["precision"],
        checkpointing=point["ckpt"],
        optimizer=point["optim"],
        attention=point["attn"],
        every_layer=every_layer,
    )


def differences(point: dict[str, Any], result: TraceResult) -> list[tuple[str, int, int]]:
    """Pairs (name, expected, traced) of every figure the point states."""
    rows = [("n_params", point["n_params"], result.parameters), ("peak_bytes", point["peak_bytes"], result.peak_bytes)]
    rows += [(f"peak.{k}", v, result.phase_peaks.get(k, 0)) for k, v in point["phase_peaks"].items()]
    rows += [(name, point[name], getattr(result, name)) for name in FIGURES]
    names = list(dict.fromkeys([*point["breakdown"], *result.breakdown]))
    rows += [(f"at peak: {k}", point["breakdown"].get(k, 0), result.breakdown.get(k, 0)) for k in names]
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run the points asked for; exit 1 when one is off by more than 0.5 % or in its phase."""
    parser = argparse.ArgumentParser(prog="python -m memlint.measure.trace.points", description=__doc__)
    parser.add_argument("--points", required=True)
    parser.add_argument("--id", action="append", default=[], help="point to trace, repeatable; all when absent")
    parser.add_argument("--model", action="append", default=[], help="trace the points of this model or model type")
    parser.add_argument("--every-layer", action="store_true", help="trace all layers instead of carrying on from a few")
    parser.add_argument("--events", metavar="FILE", help="write every allocation and free of the second step")
    parser.add_argument("--saved", action="store_true", help="list what forward keeps for backward")
    parser.add_argument("--full", action="store_true", help="print equal figures too")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    failed = 0
    try:
        points = read_points(options.points)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.id:
        points = [point for point in points if point["id"] in options.id]
    if options.model:
        points = [p for p in points if p["model"] in options.model or p["model_type"] in options.model]
    if not points:
        print(f"{options.points} has no such point", file=sys.stderr)
        return 2
    for point in points:
        start = time.monotonic()
        name = "{id} {model} b{batch} s{seq} {precision} {optim} {attn} ckpt={ckpt}".format(**point)
        try:
            result = trace_point(point, options.every_layer or bool(options.events) or options.saved)
        except Exception as error:
            failed += 1
            if options.id:
                raise
            print(f"{name}: ERROR {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        relative = result.peak_bytes / point["peak_bytes"] - 1
        worst = max((abs(result.phase_peaks.get(k, 0) / v - 1), k) for k, v in point["phase_peaks"].items())
        good = abs(relative) <= 0.005 and result.peak_phase == point["peak_phase"]
        failed += not good
        print(
            f"{name}: {'ok ' if good else 'OFF'} peak {relative:+.4%} {result.peak_phase} {result.peak_op}"
            f" (expected {point['peak_phase']} {point['peak_op']}), worst phase {worst[1]} {worst[0]:.4%},"
            f" {time.monotonic() - start:.1f} s, kernels {result.sdpa_backend} / {point['sdpa_backend']}",
            flush=True,
        )
        if options.full or not good or options.id:
            for key, expected, traced in differences(point, result):
                if options.full or expected != traced:
                    change = traced - expected
                    print(f"    {key:32} expected {expected:>16,} traced {traced:>16,} difference {change:+,}")
        if options.saved:
            print(saved_table(result))
        if options.events:
            write_events(result, options.events)
    print(f"{len(points)} points, {failed} off", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
