"""The report of a verification: one JSON object that can be stored and given back as evidence (`memlint calibrate`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memlint.estimate.result import COMPONENTS, Estimate
from memlint.measure.verify.compare import judge, rows_of

if TYPE_CHECKING:
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.measure.verify.depth import Depths
    from memlint.measure.verify.ranks import Ranks
    from memlint.measure.verify.request import Request

VERSION = 1
KIND = "memlint-verify"
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "liger-kernel", "flash-attn")


def prediction_object(estimate: Estimate, approximate: str | None) -> dict[str, Any]:
    """Return a prediction as a report holds it: the figures of the contract's `estimate` object, in bytes."""
    return {
        "method": estimate.method,
        "parameters": estimate.parameters,
        "trainable_parameters": estimate.trainable_parameters,
        "allocated_bytes": estimate.allocated_bytes,
        "reserved_bytes": estimate.reserved_bytes,
        "device_bytes": estimate.device_bytes,
        "low_bytes": estimate.low_bytes,
        "high_bytes": estimate.high_bytes,
        "phase": estimate.phase,
        "components": {name: estimate.components.get(name, 0) for name in COMPONENTS},
        "static": dict(estimate.static),
        "forward_end_activation_bytes": estimate.forward_end_activation_bytes,
        "timeline": [
            {"phase": phase.phase, "peak_bytes": phase.peak_bytes, "end_bytes": phase.end_bytes}
            for phase in estimate.timeline
        ],
        "overheads": [
            {
                "name": part.name,
                "low_bytes": part.low_bytes,
                "expected_bytes": part.expected_bytes,
                "high_bytes": part.high_bytes,
                "source": part.source,
            }
            for part in estimate.overheads
        ],
        "approximate": approximate,
    }


def make_report(
    request: Request,
    job: TrainingJob,
    ranks: Ranks,
    target: Target | None,
    depths: Depths | None,
    notes: tuple[str, ...],
    prediction: dict[str, Any],
    measured: dict[str, Any] | None,
    per_rank: list[dict[str, Any]],
    stopped: dict[str, Any] | None,
    parts: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Put a report together; ``stopped`` is where the memory ended, ``parts`` the runs with fewer layers."""
    from datetime import datetime, timezone

    from memlint import __version__
    from memlint.dialects.native import to_native

    architecture = job.architecture
    said = list(dict.fromkeys([*notes, *(measured["notes"] if measured else ())]))
    if depths is not None:
        said.append(
            f"run with {depths.low} and {depths.high} of {depths.full} layers, of the same width, and carried on"
            " layer by layer"
        )
    if request.device != "cuda":
        said.append("run on the CPU: memory is not compared, only what the tensors of the job add up to")
    said.append("synthetic data: every batch is as long as the job's longest; random weights")
    return {
        "version": VERSION,
        "kind": KIND,
        "memlint": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "file": request.file,
        "dialect": request.dialect,
        "model": {
            "id": architecture.id if architecture else None,
            "family": architecture.family if architecture else None,
            "model_type": architecture.model_type if architecture else None,
        },
        "job": to_native(job),
        "machine": {
            "device": request.device,
            "name": target.name if target else None,
            "capability": list(target.compute_capability) if target and target.compute_capability else None,
            "usable_bytes": target.usable_bytes if target else None,
            "world": ranks.world,
            "launcher": ranks.launcher,
            "versions": versions(),
        },
        "layers": None
        if depths is None
        else {"run": [depths.low, depths.high], "of": depths.full, "parts": parts or []},
        "prediction": prediction,
        "measured": measured,
        "comparison": rows_of(prediction, measured) if measured else [],
        "result": judge(prediction, measured, stopped is not None),
        "ranks": [
            {name: one[name] for name in ("rank", "allocated_bytes", "reserved_bytes", "device_bytes", "static")}
            for one in per_rank
        ],
        "out_of_memory": stopped,
        "notes": said,
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that decide the figures, and of CUDA."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    import torch

    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def failed(report: Mapping[str, Any]) -> bool:
    """Whether the run is a finding: outside the interval, or out of memory."""
    return report["result"]["verdict"] in ("above", "below", "out-of-memory")
