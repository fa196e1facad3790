"""Measured against predicted, part by part; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.estimate.overhead import INSIDE

Rows = list[dict[str, Any]]


def rows_of(prediction: Mapping[str, Any], measured: Mapping[str, Any]) -> Rows:
    """Return one row a figure: name, predicted and measured bytes, and the relative error of the prediction.

    ``prediction`` and ``measured`` are those parts of a report. What was not measured has no row.
    """
    rows: Rows = []

    def add(name: str, predicted: int | None, found: int | None) -> None:
        if predicted is None or found is None:
            return
        error = predicted / found - 1 if found else None
        rows.append({"name": name, "predicted_bytes": predicted, "measured_bytes": found, "error": error})

    for name in ("parameters", "gradients", "optimizer_states"):
        add(name, prediction["static"].get(name), measured["static"].get(name))
    if measured.get("allocated_bytes") is None:
        return rows
    add("saved for backward", prediction["forward_end_activation_bytes"], measured["forward_end_activation_bytes"])
    peaks = {phase["phase"]: phase["peak_bytes"] for phase in prediction["timeline"]}
    for phase in measured["timeline"]:
        add(f"peak in {phase['phase']}", peaks.get(phase["phase"]), phase["peak_bytes"])
    add("allocated", prediction["allocated_bytes"], measured["allocated_bytes"])
    parts = {part["name"]: part["expected_bytes"] for part in prediction["overheads"]}
    add("cublas workspace", parts.get("cublas_workspace"), measured.get("workspace_bytes"))
    add("allocator slack", parts.get("allocator_slack"), slack_of(measured))
    add("reserved", prediction["reserved_bytes"], measured["reserved_bytes"])
    outside = [size for name, size in parts.items() if name not in INSIDE]
    add("context and libraries", sum(outside) if outside else None, outside_of(measured))
    add("device", prediction["device_bytes"], measured["device_bytes"])
    return rows


def slack_of(measured: Mapping[str, Any]) -> int | None:
    """Reserved bytes that neither tensors nor workspaces took."""
    if measured.get("reserved_bytes") is None:
        return None
    return int(measured["reserved_bytes"] - measured["allocated_bytes"] - (measured.get("workspace_bytes") or 0))


def outside_of(measured: Mapping[str, Any]) -> int | None:
    """Bytes of the process outside PyTorch's allocator: context, kernels, NCCL."""
    if measured.get("device_bytes") is None:
        return None
    return int(measured["device_bytes"] - measured["reserved_bytes"])


def judge(prediction: Mapping[str, Any], measured: Mapping[str, Any] | None, out_of_memory: bool) -> dict[str, Any]:
    """Return the verdict with the figure and the interval it stands on.

    ``inside``, ``above`` or ``below`` the interval; ``out-of-memory`` where the run did not get through;
    ``not-compared`` without memory figures. Where the driver could not say what this process holds, reserved bytes are
    judged, against the interval less what lies outside the allocator.
    """
    low, high = prediction["low_bytes"], prediction["high_bytes"]
    interval = {"low_bytes": low, "high_bytes": high}
    if out_of_memory:
        return {"verdict": "out-of-memory", "figure": "device", "measured_bytes": None, **interval}
    if measured is None or measured.get("allocated_bytes") is None:
        return {"verdict": "not-compared", "figure": None, "measured_bytes": None, **interval}
    figure, found = "device", measured["device_bytes"]
    if found is None:
        figure, found = "reserved", measured["reserved_bytes"]
        outside = [part for part in prediction["overheads"] if part["name"] not in INSIDE]
        interval = {
            "low_bytes": low - sum(part["low_bytes"] for part in outside),
            "high_bytes": high - sum(part["high_bytes"] for part in outside),
        }
    verdict = "above" if found > interval["high_bytes"] else "below" if found < interval["low_bytes"] else "inside"
    return {"verdict": verdict, "figure": figure, "measured_bytes": found, **interval}
