"""From the allocated peak to what the device shows: reserved and device bytes, and the interval around them."""

from __future__ import annotations

from memlint.estimate.result import Overhead
from memlint.hardware.overheads import device_overheads
from memlint.hardware.target import Target
from memlint.job import REPLICATED, TrainingJob
from memlint.records import dataclass

INSIDE = ("cublas_workspace", "allocator_slack")
"""Overheads that lie inside what PyTorch reserves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Bytes of one process on the device."""

    reserved: int
    device: int
    low: int
    high: int
    overheads: tuple[Overhead, ...]


def device_interval(
    job: TrainingJob,
    target: Target | None,
    *,
    world: int,
    allocated: int,
    allocated_low: int,
    allocated_high: int,
    churn: int,
    replay: tuple[int, int] | None = None,
    loading: int = 0,
) -> Interval:
    """Add the stated overheads to the allocated peak.

    ``allocated_low`` and ``allocated_high`` bound the allocated peak itself by the assumptions made. ``churn`` are the
    bytes at the peak that come and go within the step: only they fragment (weights and states are laid down once).
    ``replay``: middle and highest reserved bytes where the data's lengths are known (estimate/varying_lengths.py).
    ``loading``: bytes that loading the model may take before the first step (estimate/loading.py).
    """
    overheads = device_overheads(
        churn,
        capability=target.compute_capability if target is not None else None,
        gpus=world,
        nodes=target.nodes if target is not None else 1,
        sharded=job.parallelism.strategy not in REPLICATED,
    )
    if replay is not None:
        overheads = tuple([_replayed(o, replay, overheads[0], allocated) for o in overheads])
    if loading > allocated_high:
        source = "transformers 5.0 to 5.3 may hold the whole model in half precision before it is quantised"
        overheads += (
            Overhead(name="loading", low_bytes=0, expected_bytes=0, high_bytes=loading - allocated_high, source=source),
        )
    share = job.training.vllm_memory_share
    if share and target is not None:
        engine = int(share * target.usable_bytes)
        source = "vllm gpu_memory_utilization: the engine takes this share of the device"
        overheads += (
            Overhead(name="vllm_engine", low_bytes=engine, expected_bytes=engine, high_bytes=engine, source=source),
        )
    reserved = allocated + sum(o.expected_bytes for o in overheads if o.name in INSIDE)
    return Interval(
        reserved=reserved,
        device=allocated + sum(o.expected_bytes for o in overheads),
        low=allocated_low + sum(o.low_bytes for o in overheads),
        high=allocated_high + sum(o.high_bytes for o in overheads),
        overheads=overheads,
    )


def _replayed(overhead: Overhead, replay: tuple[int, int], workspace: Overhead, allocated: int) -> Overhead:
    """Allocator slack from a replay: its middle, and up to its highest with the stated share on top."""
    if overhead.name != "allocator_slack":
        return overhead
    below = allocated + workspace.expected_bytes
    return Overhead(
        name=overhead.name,
        low_bytes=0,
        expected_bytes=max(0, replay[0] - below),
        high_bytes=max(0, replay[1] - below) + overhead.high_bytes,
        source="the caching allocator replayed over the data's lengths (estimate/varying_lengths.py); "
        + overhead.source,
    )
