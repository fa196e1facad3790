"""One steady training step through the shape-only autograd: the estimate of a job.

The step is the second or later one: optimizer states exist. With accumulation it is the last micro batch, whose forward runs
with gradients alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import DECOMPOSED, GRADIENTS, INPUTS, OPTIMIZER, PARAMETERS, TEMPORARIES, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import registry
from memlint.estimate.optimizer import clip_temporary_bytes, slots_of, state_bytes, step_temporary_bytes
from memlint.estimate.result import COMPONENTS, Estimate, PhasePeak
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES


@dataclass(slots=True)
class Step:
    """What one simulated step left behind, before overheads are added."""

    build: Build
    timeline: list[PhasePeak]
    static: dict[str, int]
    forward_end_bytes: int
    """Live when forward and loss are done, beyond parameters, states and inputs."""


def _phase(tape: Tape, name: str, timeline: list[PhasePeak]) -> None:
    pool = tape.pool
    components = dict(zip(COMPONENTS, pool.peak_components))
    components["temporaries"] += pool.peak_components[DECOMPOSED]
    timeline.append(PhasePeak(phase=name, peak_bytes=pool.peak, end_bytes=pool.live, components=components))
    pool.begin()


def run_step(job: TrainingJob, capability: tuple[int, int] | None = None, *, full: bool = False) -> Step:
    """Simulate one step of a job on one GPU. ``full`` runs every layer instead of extending equal ones.

    Raises:
        Unsupported: there is no model of this architecture.
    """
    training = job.training
    tape = Tape()
    pool = tape.pool
    build = Build(job)
    build.run_all_layers = full
    env = Env.of(job, capability)
    model = registry.build_model(job, build, env)

    parameters = sum(r.count * sum(rounded(b) for b in r.blocks) for r in build.records)
    pool.add(parameters + build.buffer_bytes, PARAMETERS)
    slots = slots_of(build.records)
    forced = training.precision.optimizer
    states = state_bytes(training.optimizer, slots, forced)
    pool.add(states, OPTIMIZER)
    gradients = sum(s.count * rounded(s.numel * DTYPE_BYTES[s.grad_dtype]) for s in slots)
    accumulates = training.gradient_accumulation_steps > 1
    if accumulates:
        pool.add(gradients, GRADIENTS)
        for leaf in model.leaves():
            leaf.grad = True
    batch = model.batch(tape)
    static_live = pool.live

    timeline: list[PhasePeak] = []
    pool.begin()
    tape.autocast = training.precision.autocast
    output = model.forward(tape, batch)
    _phase(tape, "forward", timeline)
    loss = model.loss(tape, output, batch)
    del output
    tape.component = TEMPORARIES
    tape.autocast = None
    tape.cast_cache.clear()
    _phase(tape, "loss", timeline)
    forward_end = pool.live - static_live
    seed = tape.new((), loss.dtype)
    root, loss = loss, None  # type: ignore[assignment]
    tape.run_backward(root, seed)
    del root, seed
    env.state.clear()
    _phase(tape, "backward", timeline)
    if training.max_grad_norm is not None and slots:
        pool.touch(clip_temporary_bytes(slots), TEMPORARIES)
        _phase(tape, "clip", timeline)
    pool.touch(step_temporary_bytes(training.optimizer, slots, forced), TEMPORARIES)
    _phase(tape, "optimizer", timeline)
    static = {"parameters": parameters + build.buffer_bytes, "gradients": gradients, "optimizer_states": states}
    return Step(build, timeline, static, forward_end)


def simulate(job: TrainingJob, target: Target | None = None) -> Estimate:
    """Predict the peak memory of one GPU in one steady step of a job.

    Raises:
        Unsupported: there is no model of this architecture or setup.
    """
    from memlint.estimate.overhead import device_interval

    capability = target.compute_capability if target is not None else None
    step = run_step(job, capability)
    peak = max(step.timeline, key=lambda p: p.peak_bytes)
    records = step.build.records
    interval = device_interval(job, target, step, peak)
    return Estimate(
        method="simulated",
        parameters=sum(r.count * r.numel for r in records if r.base),
        trainable_parameters=sum(r.count * r.numel for r in records if r.trainable),
        allocated_bytes=peak.peak_bytes,
        reserved_bytes=interval.reserved,
        device_bytes=interval.device,
        low_bytes=interval.low,
        high_bytes=interval.high,
        phase=peak.phase,
        components=peak.components,
        static=step.static,
        forward_end_activation_bytes=step.forward_end_bytes,
        timeline=tuple(step.timeline),
        overheads=interval.overheads,
        assumptions=tuple(job.assumptions),
    )


def count_parameters(architecture: Architecture) -> int:
    """Elements of a model as transformers builds it, tied weights once.

    Raises:
        Unsupported: there is no model of this architecture.
    """
    job = TrainingJob(model=architecture.id or "", architecture=architecture)
    build = Build(job)
    registry.build_model(job, build, Env.of(job, None))
    return sum(r.count * r.numel for r in build.records)


