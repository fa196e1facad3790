"""The account of one traced step, and how it is summed up by phase and component."""

from __future__ import annotations

from dataclasses import dataclass

from memlint.estimate.result import PHASES as STEP
from memlint.measure.trace.recorder import Mark, Peak, Recorder, Storage

PHASES = (*STEP, "zero_grad")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """One training step on fake tensors (the last of the steps run). All sizes in bytes, storages rounded to 512."""

    parameters: int
    """Elements, tied weights once."""
    trainable_parameters: int
    peak_bytes: int
    peak_phase: str
    peak_op: str
    peak_module: str
    breakdown: dict[str, int]
    """Live bytes by component at the peak; sums to peak_bytes."""
    phase_peaks: dict[str, int]
    phase_breakdowns: dict[str, dict[str, int]]
    phase_decomposed: dict[str, int]
    """How far each peak would fall if CUDA's single kernels, which a trace sees in parts, were counted as one."""
    phase_ends: dict[str, int]
    peaks: dict[str, Peak]
    param_bytes: int
    buffer_bytes: int
    grad_bytes: int
    optim_bytes: int
    static_before_fwd_bytes: int
    fwd_end_bytes: int
    saved_activation_bytes: int
    saved_logits_loss_bytes: int
    saved_cast_weight_bytes: int
    bwd_end_bytes: int
    first_step_peak_bytes: int
    first_step_peak_phase: str
    sdpa_backend: dict[str, int]
    saved: list[Storage]
    """What forward left alive for backward, oldest first."""
    recorder: Recorder
    steps: int
    forward_end_event: int
    vocabulary: int
    extended_from: tuple[int, int] | None = None
    """Layers of the two shallow traces that this was carried on from; None when every layer was traced."""


def breakdown_at(result: TraceResult, event: int, workspace: int) -> dict[str, int]:
    """Live bytes by component after the first ``event`` events."""
    return _breakdown(result.recorder, event, workspace, (result.forward_end_event, result.vocabulary))


def _breakdown(recorder: Recorder, event: int, workspace: int, known: tuple[int, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for storage in recorder.alive(event):
        name = component_of(storage, *known)
        totals[name] = totals.get(name, 0) + storage.bytes
    if workspace:
        totals["kernel_workspace"] = workspace
    return totals


def summarise(
    recorder: Recorder, counted: tuple[int, int], steps: int, marks: dict[str, int], vocabulary: int
) -> TraceResult:
    """Sum up step ``steps`` of a finished trace; ``counted`` are the model's elements and the trainable ones."""
    begin, end, backward = marks["begin"], marks["forward_end"], marks["backward_end"]

    def level(event: int) -> int:
        return recorder.events[event - 1].live if event else 0

    def component(storage: Storage) -> str:
        return component_of(storage, end, vocabulary)

    def breakdown(peak: Peak) -> dict[str, int]:
        return _breakdown(recorder, peak.event, peak.workspace, (end, vocabulary))

    here = {mark.phase: mark for mark in recorder.marks if mark.step == steps and mark.phase in PHASES}
    first = {mark.phase: mark for mark in recorder.marks if mark.step == 1 and mark.phase in PHASES}
    top = max(here.values(), key=lambda mark: mark.peak.bytes)
    top_first = max(first.values(), key=lambda mark: mark.peak.bytes)
    at_start, at_end, after = recorder.alive(begin), recorder.alive(end), recorder.alive(backward)
    known = {storage.number for storage in at_start}
    saved = [storage for storage in at_end if storage.number not in known]

    def total(storages: list[Storage], name: str) -> int:
        return sum(storage.bytes for storage in storages if component(storage) == name)

    cast = total(saved, "cast_weights")
    return TraceResult(
        parameters=counted[0],
        trainable_parameters=counted[1],
        peak_bytes=top.peak.bytes,
        peak_phase=top.phase,
        peak_op=top.peak.op,
        peak_module=top.peak.module,
        breakdown=breakdown(top.peak),
        phase_peaks={phase: here[phase].peak.bytes for phase in PHASES if phase in here},
        phase_breakdowns={phase: breakdown(here[phase].peak) for phase in PHASES if phase in here},
        phase_decomposed={
            phase: here[phase].peak.bytes - _lowest(recorder, here[phase]) for phase in PHASES if phase in here
        },
        phase_ends={phase: here[phase].end_bytes for phase in PHASES if phase in here},
        peaks={phase: here[phase].peak for phase in PHASES if phase in here},
        param_bytes=total(at_start, "params"),
        buffer_bytes=total(at_start, "buffers"),
        grad_bytes=total(after, "grads"),
        optim_bytes=total(at_start, "optim"),
        static_before_fwd_bytes=level(begin),
        fwd_end_bytes=level(end),
        saved_activation_bytes=level(end) - level(begin) - cast,
        saved_logits_loss_bytes=total(saved, "logits_loss"),
        saved_cast_weight_bytes=cast,
        bwd_end_bytes=level(backward),
        first_step_peak_bytes=top_first.peak.bytes,
        first_step_peak_phase=top_first.phase,
        sdpa_backend=dict(recorder.kernels),
        saved=saved,
        recorder=recorder,
        steps=steps,
        forward_end_event=end,
        vocabulary=vocabulary,
    )


def _lowest(recorder: Recorder, mark: Mark) -> int:
    start = recorder.events[mark.start_event - 1].live if mark.start_event else 0
    return max(
        [start] + [op.live - op.decomposed for op in recorder.ops if op.step == mark.step and op.phase == mark.phase]
    )


def component_of(storage: Storage, forward_end: int, vocabulary: int) -> str:
    """Name the component a storage belongs to, from what it was used for and when it lived."""
    if storage.component:
        return storage.component
    if storage.communication:
        return "communication"
    if storage.cast:
        return "cast_weights"
    if len(storage.shape) > 1 and storage.shape[-1] == vocabulary:
        return "logits_loss"
    if storage.recomputed:
        return "recompute_activations"
    if storage.phase in ("forward", "loss") and (storage.died < 0 or storage.died >= forward_end):
        return "activations"
    return "temporaries"
