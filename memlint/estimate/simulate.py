"""The estimate of a job: its step, with an interval for what is not known of the machine."""

from __future__ import annotations

from memlint.estimate.compiled import compiled_step, expects, least_compiled, lowest_peak, told, unfollowed
from memlint.estimate.counts import count_parameters as count_parameters
from memlint.estimate.counts import parameter_records as parameter_records
from memlint.estimate.kernels import least, ruled_out, sentence, sentences
from memlint.estimate.loading import most_while_loading
from memlint.estimate.overhead import device_interval
from memlint.estimate.parallel import one_gpu
from memlint.estimate.peft_kinds import OTHER_ADAPTERS, unmodelled
from memlint.estimate.result import Estimate, PhasePeak
from memlint.estimate.step import Prepared
from memlint.estimate.step import Step as Step
from memlint.estimate.step import run_step as run_step
from memlint.hardware.target import Target
from memlint.job import TrainingJob
from memlint.models.traits import ALIBI_MASK


def simulate(job: TrainingJob, target: Target | None = None) -> Estimate:
    """Predict the peak memory of one GPU in one steady step of a job.

    Raises:
        Unsupported: there is no model of this architecture or setup.
    """
    capability = target.compute_capability if target is not None else None
    world = world_size(job, target)
    whole = job
    job, notes = one_gpu(job)
    prepared = Prepared(job, capability, world=world)
    step = prepared.run()
    peak = max(step.timeline, key=lambda p: p.peak_bytes)
    timeline, lighter = step.timeline, _with_kernels(job, step, prepared)
    if lighter is not None:
        timeline = lighter
        notes = (*notes, sentence(step.missing - ruled_out(job), peak.peak_bytes, lowest_peak(job, lighter)))
    elif peak.phase == "backward":
        timeline = step.one_kernel
    notes = (*notes, *sentences(job, step.asked), *_other_attention(job, prepared))
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
    lora = job.training.lora
    if (
        lora is not None
        and lora.target_parameters
        and not any(".experts." in r.name for r in step.build.records if not r.base)
    ):
        named = ", ".join(lora.target_parameters)
        notes = (*notes, f"adapters of parameters ({named:.200}) are not followed in this model: they are left out")
    if not any(r.trainable for r in step.build.records):
        notes = (*notes, "what the config names to train is nowhere in the model: nothing trains")
    if job.parallelism.offload == "experts" and job.architecture and not any(r.host for r in step.build.records):
        from memlint.estimate.host_experts import left_on_gpu

        notes = (*notes, left_on_gpu(job.architecture.model_type))
    # Paged states are moved to the host when the device is full (bitsandbytes functional.py get_paged).
    lowest -= step.paged
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
        replay=_replay(job, target, peak.peak_bytes)
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
        host_bytes=step.host_bytes * (target.gpus // target.nodes if target is not None and world > 1 else 1)
        + step.host_once,
        paged_bytes=step.paged,
        assumptions=(*job.assumptions, *notes),
    )


def _other_attention(job: TrainingJob, prepared: Prepared) -> tuple[str, ...]:
    asked, taken = job.training.attention, prepared.env.attention
    if taken == asked or job.architecture is None:
        return ()
    if ALIBI_MASK in job.architecture.traits:
        return (f"the code that comes with the model has no {asked} attention: computed as it is written",)
    return (f"`{job.architecture.model_type}` has no {asked} attention in transformers: computed with {taken}",)


def _with_kernels(job: TrainingJob, step: Step, prepared: Prepared) -> list[PhasePeak] | None:
    """The step's phases with the optional packages it did without; None where they would spare nothing."""
    missing = step.missing - ruled_out(job)
    highest = max(step.timeline, key=lambda p: p.peak_bytes)
    if not missing or highest.phase in ("clip", "optimizer"):
        return None
    lighter = prepared.again().run(one_kernel_silu=True, kernels=least(job, missing)).timeline
    return lighter if lowest_peak(job, lighter) < lowest_peak(job, step.timeline) else None


def _replay(job: TrainingJob, target: Target | None, allocated: int) -> tuple[int, int]:
    if target is not None and allocated >= target.usable_high_bytes:
        return 0, 0  # the device is full before anything can lie idle
    from memlint.estimate.varying_lengths import replayed_reserved

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
