"""One steady training step through the shape-only autograd: the estimate of a job.

The step is the second or later one: optimizer states exist. With accumulation it is the last micro batch, whose forward
runs with gradients alive.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.compiled import compiled_step, expects, least_compiled, lowest_peak, told, unfollowed
from memlint.estimate.counts import count_parameters as count_parameters
from memlint.estimate.counts import parameter_records as parameter_records
from memlint.estimate.engine.change import Peak
from memlint.estimate.engine.pool import (
    COMMUNICATION,
    DECOMPOSED,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    TEMPORARIES,
    rounded,
)
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import registry
from memlint.estimate.kernels import least, ruled_out, sentence, sentences
from memlint.estimate.loading import most_while_loading
from memlint.estimate.objectives import without_dropout
from memlint.estimate.optimizer import clip_temporary_bytes, state_bytes, step_temporary_bytes
from memlint.estimate.overhead import device_interval
from memlint.estimate.parallel import one_gpu
from memlint.estimate.peft_kinds import OTHER_ADAPTERS, unmodelled
from memlint.estimate.peft_prompts import with_prompt
from memlint.estimate.records import slots_of
from memlint.estimate.result import COMPONENTS, Estimate, PhasePeak
from memlint.estimate.rollout import roll_out
from memlint.estimate.versions import before
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.records import dataclass, field, replace


@dataclass(slots=True)
class Step:
    """What one simulated step left behind, before overheads are added."""

    build: Build
    timeline: list[PhasePeak]
    static: dict[str, int]
    forward_end_bytes: int
    """Live when forward and loss are done, beyond parameters, states and inputs."""
    host_bytes: int = 0
    """What one GPU's process keeps in host memory."""
    one_kernel: list[PhasePeak] = field(default_factory=list)
    """The phases without the temporaries that only a trace on fake tensors has (silu's backward, zeros of a gather)."""
    asked: frozenset[str] = frozenset()
    """Optional packages that layers of the model use where they are installed (estimate/kernels.py)."""
    missing: frozenset[str] = frozenset()
    """Those of them that the step ran without."""


def _phase(tape: Tape, name: str, timeline: list[PhasePeak], one_kernel: list[PhasePeak]) -> None:
    pool = tape.pool
    own = phase_of(name, (pool.peak, pool.peak_components), pool.live)
    one_kernel.append(own)
    timeline.append(own if pool.traced[0] <= pool.peak else phase_of(name, pool.traced, pool.live))
    pool.begin()


def phase_of(name: str, peak: Peak, live: int) -> PhasePeak:
    """A phase that ends with ``live`` bytes."""
    components = dict(zip(COMPONENTS, peak[1]))
    components["temporaries"] += peak[1][DECOMPOSED]
    return PhasePeak(phase=name, peak_bytes=peak[0], end_bytes=live, components=components)


def run_step(
    job: TrainingJob,
    capability: tuple[int, int] | None = None,
    *,
    world: int = 1,
    full: bool = False,
    one_kernel_silu: bool = False,
    kernels: frozenset[str] | None = None,
    tape: Tape | None = None,
) -> Step:
    """Simulate one step of a job on one GPU of ``world``. ``full`` runs every layer instead of extending equal ones;
    ``kernels`` are optional packages taken instead of the job's own; ``tape`` is one that watches what is allocated.

    Raises:
        Unsupported: there is no model of this architecture.
    """
    job = with_prompt(without_dropout(job))
    training = job.training
    tape = tape or Tape()
    tape.one_kernel_silu = one_kernel_silu
    tape.counts_twice = tape.counts_twice and not full
    pool = tape.pool
    build = Build(job, world)
    build.run_all_layers = full
    env = Env.of(job, capability)
    if kernels is not None:
        env.kernels = kernels
    model = registry.build_model(job, build, env)
    sharding = build.sharding

    build.buffer_bytes += sum(build.shared.values())
    parameters = sum([r.count * sharding.parameter_bytes(r) for r in build.records]) + build.buffer_bytes
    pool.add(parameters, PARAMETERS)
    trained = slots_of(build.records)
    master = training.precision.master_weights
    slots = sharding.slots(trained, master=master)
    forced = training.precision.optimizer
    states = state_bytes(training.optimizer, slots, forced)
    if master:
        states += sum([s.count * rounded(4 * s.numel) for s in slots])
    host = 0
    if sharding.host_states or training.optimizer.startswith("paged-"):
        # Paged states live in unified memory and are evicted under pressure; they are counted on the device until then.
        host = states
    if sharding.host_states:
        states = 0
    host += sharding.host_bytes(build.records, trained)
    pool.add(states, OPTIMIZER)
    pool.add(sharding.static_communication(trained), COMMUNICATION)
    timeline: list[PhasePeak] = []
    one_kernel: list[PhasePeak] = []
    if training.objective == "ppo":
        roll_out(model, tape, lambda name: _phase(tape, name, timeline, one_kernel))
    gradients = sharding.gradient_bytes(trained)
    zero = sharding.zero
    resting = 0
    if (training.gradient_accumulation_steps > 1 or (zero is not None and zero.stage == 3)) and not (
        training.optimizer_in_backward
    ):
        # Stage 3 makes the tensor of its part of the gradients once (stage3.py grad_partitions_flat_buffer).
        resting = gradients
        pool.add(gradients, GRADIENTS)
        for leaf in build.leaves:
            leaf.grad = True
    elif training.optimizer_in_backward:
        for leaf in build.leaves:
            leaf.sink = _step_at_once
    batch = model.batch(tape)
    static_live = pool.live

    pool.begin()
    # FSDP2 computes in its policy's dtype: accelerate 1.15 _prepare_fsdp2 puts no autocast around the model.
    tape.autocast = training.precision.autocast if sharding.fully is None else None
    sharding.begin(tape, build.root)
    output = model.forward(tape, batch)
    _phase(tape, "forward", timeline, one_kernel)
    loss = model.loss(tape, output, batch)
    del output
    if sharding.fully is not None:
        sharding.fully.end_forward()
    tape.component = TEMPORARIES
    tape.autocast = None
    tape.cast_cache.clear()
    _phase(tape, "loss", timeline, one_kernel)
    forward_end = pool.live - static_live
    seed = tape.new((), loss.dtype)
    root, loss = loss, None  # type: ignore[assignment]
    tape.run_backward(root, seed)
    del root, seed
    tape.release()
    env.state.clear()
    sharding.finish(tape, build.leaves, resting)
    _phase(tape, "backward", timeline, one_kernel)
    if zero is not None:
        zero.norm(pool)
    if training.max_grad_norm is not None and trained:
        if zero is None:
            pool.touch(clip_temporary_bytes(sharding.slots(trained, master=False)), TEMPORARIES)
        _phase(tape, "clip", timeline, one_kernel)
    old = before(job, "torch", 2, 1)
    if sharding.host_states:
        temporary = 0
    elif training.optimizer_in_backward:
        # One optimizer for each parameter: its step makes temporaries of that parameter alone.
        alone = [replace(slot, count=1) for slot in slots]
        each = [step_temporary_bytes(training.optimizer, [slot], forced, two_lists=old) for slot in alone]
        temporary = max([0, *each])
    else:
        updated = slots if zero is None else zero.updated(slots)
        temporary = step_temporary_bytes(training.optimizer, updated, forced, two_lists=old)
    if zero is not None:
        zero.step(pool, slots, temporary, master=master)
    else:
        pool.touch(temporary, TEMPORARIES)
    _phase(tape, "optimizer", timeline, one_kernel)
    static = {"parameters": parameters, "gradients": gradients, "optimizer_states": states}
    asked = frozenset(env.asked)
    return Step(build, timeline, static, forward_end, host + tape.host_bytes, one_kernel, asked, asked - env.kernels)


def _step_at_once(tape: Tape, leaf: Leaf, grad: Tensor) -> None:
    """Optimizer in backward: the gradient is used and freed as soon as it is there."""


def simulate(job: TrainingJob, target: Target | None = None) -> Estimate:
    """Predict the peak memory of one GPU in one steady step of a job.

    Raises:
        Unsupported: there is no model of this architecture or setup.
    """
    capability = target.compute_capability if target is not None else None
    world = world_size(job, target)
    whole = job
    job, notes = one_gpu(job)
    step = run_step(job, capability, world=world)
    peak = max(step.timeline, key=lambda p: p.peak_bytes)
    timeline, lighter = step.timeline, _with_kernels(job, step, capability, world)
    if lighter is not None:
        timeline = lighter
        notes = (*notes, sentence(step.missing - ruled_out(job), peak.peak_bytes, lowest_peak(job, lighter)))
    elif peak.phase == "backward":
        timeline = step.one_kernel
    notes = (*notes, *sentences(job, step.asked))
    lowest, most = lowest_peak(job, timeline), peak.peak_bytes
    compiled = compiled_step(job, capability, world)
    if compiled is not None:
        top = max(compiled.timeline, key=lambda p: p.peak_bytes)
        lowest, most = min(lowest, top.peak_bytes), max(most, top.peak_bytes)
        notes = (*notes, told(job))
        if expects(job):
            step, peak = compiled, top
    elif (unknown := unfollowed(job)) is not None:
        notes, lowest = (*notes, unknown), least_compiled(lowest, step)
    if step.build.nearest:
        notes = (*notes, unmodelled(job.training.method))
        lowest, most = int(lowest * OTHER_ADAPTERS[0]), int(most * OTHER_ADAPTERS[1])
    if job.training.optimizer.startswith("paged-"):
        # Paged states are moved to the host when the device is full (bitsandbytes functional.py get_paged).
        lowest -= step.static["optimizer_states"]
    records = step.build.records
    if job is not whole:
        # The counts are those of the whole model, whatever part of it this GPU holds.
        records = parameter_records(whole)
    settled = sum(step.static.values())
    in_flight = (job.parallelism.pipeline - 1) * step.forward_end_bytes
    interval = device_interval(
        job,
        target,
        world=world * job.parallelism.tensor * job.parallelism.pipeline,
        allocated=peak.peak_bytes,
        allocated_low=lowest,
        allocated_high=most + in_flight,
        churn=max(0, peak.peak_bytes - settled),
        replay=_replay(job, target)
        if job.training.length_mean is not None and world == 1 and compiled is None
        else None,
        loading=most_while_loading(job, records),
    )
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
        host_bytes=step.host_bytes * (target.gpus // target.nodes if target is not None and world > 1 else 1),
        assumptions=(*job.assumptions, *notes),
    )


def _with_kernels(
    job: TrainingJob, step: Step, capability: tuple[int, int] | None, world: int
) -> list[PhasePeak] | None:
    """The step's phases with the optional packages it did without; None where they would spare nothing."""
    missing = step.missing - ruled_out(job)
    highest = max(step.timeline, key=lambda p: p.peak_bytes)
    if not missing or highest.phase in ("clip", "optimizer"):
        return None
    lighter = run_step(job, capability, world=world, one_kernel_silu=True, kernels=least(job, missing)).timeline
    return lighter if lowest_peak(job, lighter) < lowest_peak(job, step.timeline) else None


def _replay(job: TrainingJob, target: Target | None) -> tuple[int, int, int]:
    from memlint.estimate.allocator import replayed_reserved

    if target is None:
        return replayed_reserved(job)
    return replayed_reserved(job, target.compute_capability, target.usable_high_bytes)


def world_size(job: TrainingJob, target: Target | None) -> int:
    """GPUs over which data-parallel work is divided: stated by the config, else those of the target."""
    parallelism = job.parallelism
    if parallelism.strategy in ("none", "device-map"):
        return 1
    gpus = parallelism.gpus or (target.gpus if target is not None else 1)
    return max(1, gpus // (parallelism.tensor * parallelism.pipeline * parallelism.context))
