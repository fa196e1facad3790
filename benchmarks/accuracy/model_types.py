"""Every model type that is held to a trace of its own code, with its error: text, images and sound.

The runs are those of the tests: ``tests/estimate/traces_*.jsonl``, and the peaks of models that see in
``tests/estimate/vision_configs.py`` and ``test_vision_family.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.accuracy.tables import percent, table
from memlint.estimate.simulate import run_step
from memlint.job import Training, TrainingJob, replace_fields
from memlint.measure.trace.settings import CAPABILITY
from tests.estimate import family_points, traced
from tests.estimate.test_vision_family import SETUPS, SINGLE, SINGLE_PEAKS, job
from tests.estimate.vision_configs import PADDED, PEAKS

FILES = ("decoders", "encoders", "experts", "further", "heads", "hybrid", "media", "recent", "seq2seq", "text")
Error = tuple[str, str, float]
"""Family, model type, simulated over traced peak less one."""


def errors() -> Iterator[Error]:
    """Simulate every run."""
    for made, reference in runs():
        step = run_step(made, CAPABILITY)
        simulated = max(phase.peak_bytes for phase in step.timeline)
        assert made.architecture is not None
        yield made.architecture.family, made.architecture.model_type, simulated / reference - 1


def runs() -> Iterator[tuple[TrainingJob, int]]:
    """Every job that was traced, and its peak in bytes."""
    for name in FILES:
        for point in traced.points(f"traces_{name}.jsonl"):
            made = family_points.job(point) if "head" in point else traced.job(point)
            yield made, max(point["phase_peaks"].values())
    for kind, peaks in PEAKS.items():
        yield from ((job(kind, SETUPS[setup]), peak) for setup, peak in peaks.items())
    for setup, peak in PADDED.items():
        yield job("gemma4", {**SETUPS[setup], "training.padding": True}), peak
    for kind, objective, peaks in SINGLE_PEAKS:
        training = Training(micro_batch_size=8, objective=objective, optimizer="sgd")
        start = TrainingJob(model=kind, architecture=traced.architecture(SINGLE[kind]), training=training)
        yield from ((replace_fields(start, SETUPS[setup]), peak) for setup, peak in peaks.items())


def type_tables() -> list[str]:
    """Errors by family and by model type."""
    found = list(errors())
    lines = ["## Every model type, against the trace of its own code", ""]
    lines += _grouped("family", [(family, error) for family, _, error in found])
    named = [(f"{kind} ({family})", error) for family, kind, error in sorted(found)]
    return lines + _grouped("model type", named)


def _grouped(head: str, found: list[tuple[str, float]]) -> list[str]:
    groups: dict[str, list[float]] = {"all": [abs(error) for _, error in found]}
    for name, error in found:
        groups.setdefault(name, []).append(abs(error))
    rows = [
        (name, str(len(group)), percent(statistics.median(group)), percent(max(group)))
        for name, group in groups.items()
    ]
    return table((head, "runs", "median error", "worst"), rows)
