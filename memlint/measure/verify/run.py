"""Verify one job in this process, which may be one rank of several: predict, run, gather, compare."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from memlint.errors import SettingError, UserError, first_line
from memlint.estimate.kernels import CONV, FLA, MAMBA, XIELU, exactly
from memlint.estimate.result import Estimate
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.measure.verify import depth
from memlint.measure.verify.ranks import Ranks, process_group, ranks_from
from memlint.measure.verify.report import make_report, prediction_object
from memlint.measure.verify.request import Request, job_at_hand, plan_run

Progress = Callable[[str], None]

SPARE = 0.95
"""A run with fewer layers must fit into this share of the memory at its interval's high end."""
HOST_SHARE = 0.6
"""Share of the free host memory that a run on the CPU may take; kernels there keep copies that CUDA's do not."""


def verify_job(request: Request, progress: Progress = lambda text: None) -> dict[str, Any] | None:
    """Return the report of one verification; None on the ranks that do not speak for the others.

    Raises UserError for a job that cannot be run here.
    """
    import torch

    from memlint.measure.verify import driver as drivers

    ranks = ranks_from(os.environ)
    driver = drivers.look_before() if request.device == "cuda" else None
    if request.device == "cuda":
        torch.cuda.set_device(ranks.local_rank % torch.cuda.device_count())
    job, notes = job_at_hand(request.job, ranks.world)
    job = exactly(job, packages_here() if request.device == "cuda" else {})
    target = drivers.target_at_hand(ranks.world) if request.device == "cuda" else None
    plan_run(job, ranks.world, request.device)  # refuses what cannot run before anything is started
    depths = _depths(job, request, target, ranks)
    jobs = [job] if depths is None else [depth.shallow_job(job, d) for d in (depths.low, depths.high)]
    sample = _sampler(driver)
    grouped = ranks.world > 1 or plan_run(job, ranks.world, request.device).strategy == "fsdp"
    measured: list[dict[str, Any]] = []
    per_rank: list[dict[str, Any]] = []
    stopped = None
    with ExitStack() as stack:
        mesh = stack.enter_context(process_group(ranks, request.device)) if grouped else None
        for part in jobs:
            found, stopped = _measure(part, ranks, request.device, mesh, sample, progress)
            if stopped is not None:
                if ranks.world > 1:
                    # The other ranks wait in a collective: leaving the group would wait for them. This rank speaks, and
                    # its end (see `leave_at_once`) lets the launcher end the others.
                    _ABANDONED.append(stack.pop_all())
                return make_report(
                    request, job, ranks, target, depths, notes, _prediction(part, target), None, [], stopped
                )
            per_rank = _gather(found, ranks)
            measured.append(max(per_rank, key=lambda one: one["device_bytes"] or one["allocated_bytes"] or 0))
    if ranks.rank != 0:
        return None
    whole = measured[0] if depths is None else depth.extend(measured[0], measured[1], depths)
    return make_report(
        request, job, ranks, target, depths, notes, _prediction(job, target), whole, per_rank, None,
        parts=[] if depths is None else [
            {"prediction": _prediction(part, target), "measured": one} for part, one in zip(jobs, measured)
        ],
    )  # fmt: skip


def packages_here() -> dict[str, str]:
    """The optional packages that transformers finds on this machine (estimate/kernels.py)."""
    from importlib.util import find_spec

    modules = {FLA: "fla", CONV: "causal_conv1d", MAMBA: "mamba_ssm", XIELU: "xielu"}
    return {package: "any" for package, module in modules.items() if find_spec(module) is not None}


_ABANDONED: list[ExitStack] = []
"""Groups that are not left in order; kept, or the garbage collector would leave them."""


def leave_at_once(report: Mapping[str, Any]) -> None:
    """End this process where other ranks wait for it in vain: its report is out, and nothing else may run."""
    if report["out_of_memory"] is not None and report["machine"]["world"] > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _prediction(job: TrainingJob, target: Target | None) -> dict[str, Any]:
    estimate, approximate = _predict(job, target)
    return prediction_object(estimate, approximate)


def _predict(job: TrainingJob, target: Target | None) -> tuple[Estimate, str | None]:
    from memlint.engine.predict import predict

    estimate, approximate = predict(job, target)
    if estimate is None:
        raise UserError(f"the job cannot be predicted, so there is nothing to compare with: {approximate}")
    return estimate, approximate


def _depths(job: TrainingJob, request: Request, target: Target | None, ranks: Ranks) -> depth.Depths | None:
    if target is not None:
        usable = target.usable_bytes
        return depth.choose(
            job,
            request.layers,
            may_fit=lambda part: _predict(part, target)[0].low_bytes <= usable,
            fits=lambda part: _predict(part, target)[0].high_bytes <= SPARE * usable,
        )
    free = host_free_bytes()
    share = None if free is None else HOST_SHARE * free / ranks.world

    def fits(part: TrainingJob) -> bool:
        return share is None or _predict(part, None)[0].allocated_bytes <= share

    return depth.choose(job, request.layers, may_fit=fits, fits=fits)


def host_free_bytes() -> int | None:
    """Memory of this machine that is free or can be freed, in bytes; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as handle:
            for line in handle:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _sampler(driver: Any) -> Callable[[], Any]:
    if driver is None:
        return lambda: (None, None)
    from memlint.measure.verify.driver import device_bytes

    return lambda: device_bytes(driver)


def _measure(
    job: TrainingJob, ranks: Ranks, device: str, mesh: Any, sample: Callable[[], Any], progress: Progress
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run one job; return what was measured, or where the memory ended. Raises UserError."""
    from memlint.measure.verify.step import run_steps

    plan = plan_run(job, ranks.world, device)
    try:
        run, sampled = run_steps(plan, mesh, sample=sample, progress=progress)
    except UserError:
        raise
    except Exception as error:
        if os.environ.get("MEMLINT_DEBUG"):
            raise
        raise SettingError(
            f"the code of `{plan.config['model_type']}` does not run here with these settings ({first_line(error)});"
            " MEMLINT_DEBUG=1 shows where",
            "model",
        ) from None
    if run.out_of_memory is not None:
        return {}, {**run.out_of_memory, "rank": ranks.rank}
    held, how = sampled
    workspace = run.workspace or 0
    if held is not None and run.reserved is not None and run.reserved_at_end is not None:
        # The cache keeps what it reserved, unless it had to give blocks back on the way.
        held += run.reserved - run.reserved_at_end
    timeline = [{**phase, "peak_bytes": phase["peak_bytes"] - workspace} for phase in run.timeline]
    timeline = [{**phase, "end_bytes": phase["end_bytes"] - workspace} for phase in timeline]
    return {
        "rank": ranks.rank,
        "parameters": run.elements,
        "trainable_parameters": run.trained,
        "allocated_bytes": None if run.allocated is None else run.allocated - workspace,
        "workspace_bytes": run.workspace,
        "reserved_bytes": run.reserved,
        "device_bytes": held,
        "device_source": how,
        "phase": max(timeline, key=lambda phase: phase["peak_bytes"])["phase"] if timeline else None,
        "phases": run.phases,
        "timeline": timeline,
        "static": dict(run.static),
        "forward_end_activation_bytes": run.forward_end,
        "first_step_peak_bytes": None if run.first_step_peak is None else run.first_step_peak - workspace,
        "losses": [loss if loss == loss and abs(loss) != float("inf") else None for loss in run.losses],
        "seconds": [round(seconds, 3) for seconds in run.seconds],
        "notes": list(run.notes),
    }, None


def _gather(found: dict[str, Any], ranks: Ranks) -> list[dict[str, Any]]:
    if ranks.world == 1:
        return [found]
    import torch.distributed as dist

    everyone: list[Any] = [None] * ranks.world
    dist.all_gather_object(everyone, found)
    return everyone
