"""A model too large for the GPU at hand: run it with fewer layers, twice, and carry each phase on in a straight line.

The width, the batch and everything else stay. Between two depths that differ by whole periods of the model's layers,
every phase's peak grows by the same bytes a layer, as long as the peak stays at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memlint.errors import UserError
from memlint.job import TrainingJob
from memlint.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """Layers of the two runs and of the model itself."""

    low: int
    high: int
    full: int


def choose(
    job: TrainingJob,
    layers: int | None,
    *,
    may_fit: Callable[[TrainingJob], bool],
    fits: Callable[[TrainingJob], bool],
) -> Depths | None:
    """Return the two depths to run, the deeper one as deep as ``fits`` allows; None where the whole model is to be run.

    The whole model is tried where it ``may_fit``. ``layers`` is the user's own choice of the deeper depth. Raises
    UserError where no shallow form fits or exists.
    """
    if layers is None and may_fit(job):
        return None
    from memlint.measure.trace.build import make_config
    from memlint.measure.trace.extend import layer_kinds
    from memlint.measure.trace.from_job import hf_config

    config = make_config(hf_config(job))
    full = int(getattr(config, "num_hidden_layers", 0) or 0)
    if layers is not None and layers >= full:
        return None
    pairs = _pairs(layer_kinds(config, job.training.checkpointing.every) if full else (), full)
    if layers is not None:
        pairs = [pair for pair in pairs if pair.high <= layers]
        if not pairs:
            raise UserError(f"{layers} of {full} layers are too few to carry the model on from; the least is 3")
        return pairs[-1]
    fitting = [pair for pair in pairs if fits(shallow_job(job, pair.high))]
    if fitting:
        return fitting[-1]
    if not pairs:
        raise UserError("the model does not fit here, and has no equal layers to leave out; see `memlint plan`")
    raise UserError(
        f"even {pairs[0].high} of {full} layers do not fit here; run with a smaller `--set training.micro_batch_size=`"
        " or `--set training.sequence_length=`, or see `memlint plan`"
    )


def _pairs(kinds: tuple[str, ...], full: int) -> list[Depths]:
    """Every pair of depths from which ``full`` is reached in whole periods of layer kinds, shallow first."""
    for period in range(1, full // 2 + 1):
        start = _start(kinds, period)
        if start is None:
            continue
        first = start + period
        first += (full - first) % period
        # One layer alone is both first and last of its kind; the line begins at two.
        first += period if first < 2 else 0
        # The shallow run has half the layers of the deep one: a phase's peak then stands at the same place in both.
        return [
            Depths(low=max(first, high // 2 - (high // 2 - first) % period), high=high, full=full)
            for high in range(first + period, full, period)
        ]
    return []


def _start(kinds: tuple[str, ...], period: int) -> int | None:
    """The layer from which on the kinds repeat with ``period``."""
    last = len(kinds) - period
    return next((s for s in range(last - period) if all(kinds[i] == kinds[i + period] for i in range(s, last))), None)


def shallow_job(job: TrainingJob, depth: int) -> TrainingJob:
    """Return the job over a model of ``depth`` layers."""
    from memlint.measure.trace.build import make_config
    from memlint.measure.trace.extend import shallow
    from memlint.measure.trace.from_job import hf_config
    from memlint.models.architecture import Architecture
    from memlint.models.config import read_config

    values = hf_config(job)
    architecture = job.architecture
    assert architecture is not None
    read = read_config(shallow(values, make_config(values), depth), id=architecture.id, source=architecture.source)
    if not isinstance(read, Architecture):
        raise UserError(f"the model cannot be run with {depth} layers: {read[0].message}")
    return replace(job, architecture=read)


def extend(low: Mapping[str, Any], high: Mapping[str, Any], depths: Depths) -> dict[str, Any]:
    """Carry the measured figures of two runs on to the model's own depth.

    Slack keeps its share of what is allocated; context and workspaces do not grow with depth.
    """
    times = (depths.full - depths.high) / (depths.high - depths.low)

    def line(a: int, b: int) -> int:
        return round(b + times * (b - a))

    result = dict(high)
    for name in ("parameters", "trainable_parameters"):
        result[name] = line(low[name], high[name])
    result["static"] = {name: line(low["static"][name], size) for name, size in high["static"].items()}
    if high.get("allocated_bytes") is None:
        return result
    shallow = {phase["phase"]: phase for phase in low["timeline"]}
    result["timeline"] = [
        {
            "phase": phase["phase"],
            "peak_bytes": line(shallow[phase["phase"]]["peak_bytes"], phase["peak_bytes"]),
            "end_bytes": line(shallow[phase["phase"]]["end_bytes"], phase["end_bytes"]),
        }
        for phase in high["timeline"]
    ]
    top = max(result["timeline"], key=lambda phase: phase["peak_bytes"])
    result["phase"], result["allocated_bytes"] = top["phase"], top["peak_bytes"]
    result["forward_end_activation_bytes"] = line(
        low["forward_end_activation_bytes"], high["forward_end_activation_bytes"]
    )
    result["first_step_peak_bytes"] = line(low["first_step_peak_bytes"], high["first_step_peak_bytes"])
    share = high["reserved_bytes"] / max(1, high["allocated_bytes"])
    result["reserved_bytes"] = round(result["allocated_bytes"] * share)
    if high["device_bytes"] is not None:
        outside = high["device_bytes"] - high["reserved_bytes"]
        result["device_bytes"] = result["reserved_bytes"] + outside
    return result
