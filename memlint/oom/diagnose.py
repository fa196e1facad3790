"""From a parsed message, a traceback and, where given, a job: the cause, the tensor, the phase, and the next steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Sequence

from memlint.job import replace_fields
from memlint.oom.hints import Hint, hint_of
from memlint.oom.parse import OutOfMemory
from memlint.oom.tensors import Candidate, candidates, matching, tokens_of_logits
from memlint.plan import options, options_scale
from memlint.plan.options_checkpointing import checkpointing
from memlint.records import dataclass
from memlint.units import GIB, MIB, gib

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.plan.remedy import Remedy

CONTEXT_LIMIT = int(1.4 * GIB)
"""A stray process with no more than this holds a bare CUDA context (870 MB to 1.2 GB: pytorch/pytorch#49481)."""
SMALL = 0.05
"""Share of the device that is not called another process's when the message lists none: contexts and NCCL buffers
vary.
"""
PIECES = 0.02
"""Share of the device that free pieces must make up to be the cause: the median of public out-of-memory texts, where
nothing was wrong but the size, is 2.2 % (memlint/hardware/overheads.py allocator_slack)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do next, with the peak it would have where a job is known."""

    text: str
    device_bytes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What one message means."""

    event: OutOfMemory
    cause: str
    """excess, fragmentation, other-processes, stray-contexts, memory-cap, host, external-limit, communication."""
    explanation: str
    tensor: str | None
    phase: str | None
    how: str | None
    """How the tensor was found: its size, or the traceback."""
    steps: tuple[Step, ...]


def diagnose(event: OutOfMemory, job: TrainingJob | None = None, world: int = 1) -> Diagnosis:
    """Explain one message; with a job the request is compared with every tensor of its step."""
    hint = hint_of(event.frames)
    cause, explanation = _cause(event)
    tensor, phase, how = _tensor(event, hint, job, world)
    steps = tuple(_first_steps(event, cause, hint))
    return Diagnosis(
        event=event, cause=cause, explanation=explanation, tensor=tensor, phase=phase, how=how, steps=steps
    )


def _cause(event: OutOfMemory) -> tuple[str, str]:
    requested = event.requested
    if event.device == "host":
        return "host", "the host's memory ran out, not the GPU's"
    if event.device == "nccl":
        return "communication", "NCCL could not allocate its buffers: they lie outside PyTorch's allocator"
    if event.allowed is not None:
        return "memory-cap", f"the process may use only {gib(event.allowed, 2)} GiB (set_per_process_memory_fraction)"
    if requested is not None and event.free is not None and event.free >= requested:
        return (
            "external-limit",
            f"{gib(event.free, 2)} GiB were free, more than the {gib(requested, 2)} GiB asked for: the driver refused"
            " (WSL or a virtual machine's limit, pinned host memory, or another process that took it meanwhile)",
        )
    others = sum(size for _, size in event.others) or _hidden_others(event)
    if others >= min(requested or 512 * MIB, 512 * MIB):
        if event.others and all(size <= CONTEXT_LIMIT for _, size in event.others):
            return (
                "stray-contexts",
                f"{len(event.others)} other processes hold {gib(others, 2)} GiB on this GPU, each no more than a CUDA"
                " context: other ranks have touched it",
            )
        return "other-processes", f"other processes hold {gib(others, 2)} GiB of this GPU"
    if (
        requested is not None
        and event.reserved_free is not None
        and event.reserved_free >= max(requested, int(PIECES * (event.capacity or 0)))
    ):
        return (
            "fragmentation",
            f"PyTorch holds {gib(event.reserved_free, 2)} GiB reserved but free, more than the {gib(requested, 2)} GiB"
            " asked for, in pieces that are too small",
        )
    return "excess", "the run needs more than the GPU has"


def _hidden_others(event: OutOfMemory) -> int:
    """What others hold where the message does not list them: capacity less free less what PyTorch holds and a
    context.
    """
    if event.capacity is None or event.free is None or event.allocated is None:
        return 0
    held = event.process
    if not held or held > event.capacity:  # containers report 0, some drivers nonsense
        held = event.allocated + (event.reserved_free or 0) + CONTEXT_LIMIT
    hidden = event.capacity - event.free - held
    return hidden if hidden > SMALL * event.capacity else 0


def _tensor(
    event: OutOfMemory, hint: Hint | None, job: TrainingJob | None, world: int
) -> tuple[str | None, str | None, str | None]:
    found: list[Candidate] = []
    if job is not None and job.architecture is not None:
        found = matching(event, candidates(job, world))
        if hint is not None and len(found) > 1:
            agreeing = [c for c in found if _agrees(c, hint)]
            found = agreeing or found
        if found:
            phase = hint.phase if hint is not None else found[0].phase
            return found[0].name, phase, "its size is exactly this tensor's"
        if hint is not None and "logits" in hint.tensor:
            rows = job.training.vocab_size or job.architecture.vocab_size
            logits = tokens_of_logits(event, rows)
            if logits is not None:
                return logits, hint.phase, "its size divides by the vocabulary"
    if hint is not None:
        return hint.tensor, hint.phase, "the traceback says so"
    return None, None, None


_WORDS: Mapping[str, tuple[str, ...]] = {
    "loss": ("logits",),
    "optimizer": ("trained parameters", "gradients", "state"),
    "setup": ("partition", "copy", "weight"),
    "loading": ("weight",),
}


def _agrees(candidate: Candidate, hint: Hint) -> bool:
    words = _WORDS.get(hint.phase, ())
    if any(word in candidate.name for word in words):
        return True
    return any(word in hint.tensor and word in candidate.name for word in ("logits", "attention", "MLP", "weight"))


def _first_steps(event: OutOfMemory, cause: str, hint: Hint | None) -> list[Step]:
    """What helps against this cause before anything about the run itself is changed."""
    steps: list[Step] = []
    if cause == "host":
        steps.append(
            Step(text="free host memory: fewer dataloader workers, no CPU offload, or a machine with more RAM")
        )
    if cause == "fragmentation":
        steps.append(Step(text="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"))
    if cause == "other-processes":
        names = ", ".join(f"process {number} ({gib(size, 2)} GiB)" for number, size in event.others)
        steps.append(
            Step(text=f"end the other processes on the GPU{': ' + names if names else ' (nvidia-smi lists them)'}")
        )
    if cause == "stray-contexts":
        steps.append(
            Step(text="bind each rank to its GPU before anything touches CUDA: torch.cuda.set_device(local_rank)")
        )
    if cause == "memory-cap":
        steps.append(Step(text="raise set_per_process_memory_fraction, or run the process alone on the GPU"))
    if cause == "external-limit":
        steps.append(
            Step(text="look at the limits around the process: WSL memory in .wslconfig, MIG slice, pinned host memory")
        )
    if cause == "communication":
        steps.append(
            Step(text="leave NCCL room: lower the micro batch, or NCCL_BUFFSIZE, or the number of communicators")
        )
    if hint is not None and hint.phase == "evaluation":
        steps.append(
            Step(text="set per_device_eval_batch_size: 1 and eval_accumulation_steps: 1, or prediction_loss_only: true")
        )
    if hint is not None and hint.phase == "saving":
        steps.append(Step(text="save a sharded state dict instead of gathering the whole one on the GPU"))
    if hint is not None and hint.phase == "loading":
        steps.append(
            Step(
                text="load in half precision (dtype: bfloat16), sharded, or quantised; nothing of the batch matters yet"
            )
        )
    if hint is not None and hint.phase == "generation":
        steps.append(Step(text="generate fewer or shorter completions at once, or lower vllm_gpu_memory_utilization"))
    return steps


Found = Callable[["TrainingJob", "Target | None"], Sequence["Remedy"]]

RECOVERY: tuple[tuple[str, Found], ...] = (
    ("the smallest micro batch", lambda job, target: options_scale.micro_batches(job)[-1:]),
    ("mixed precision", options.mixed_precision),
    ("activation checkpointing", lambda job, target: _named("checkpointing-full", checkpointing(job, 0))),
    ("a fused loss", lambda job, target: options.fused_loss(job)),
    ("an 8-bit optimizer", lambda job, target: _paged(job)),
    ("half the sequence", lambda job, target: _half(job)),
    ("LoRA", lambda job, target: _named("lora", options_scale.adapters(job))),
)
"""Techniques in the handbook's order, and the planner's remedy of each (none where a job has it already): a minimal
batch first, then one after the other, each on top of those before."""

SHORT = 512
"""Tokens: a sequence is not halved below what most samples of a chat data set need; a choice of memlint."""


def recovery(
    job: TrainingJob,
    predict: Callable[[TrainingJob], Estimate | None],
    usable: int | None,
    target: Target | None = None,
) -> list[Step]:
    """The recovery steps of a job, each with the peak predicted when it is added to those before it.

    ``usable``: bytes that the high end may take, None where that is not known.
    """
    steps: list[Step] = []
    current = job
    best: int | None = None
    for name, remedies in RECOVERY:
        for remedy in remedies(current, target):
            changed = replace_fields(current, remedy.changes)
            estimate = predict(changed)
            if estimate is None or (best is not None and estimate.device_bytes >= best):
                continue
            current, best = changed, estimate.device_bytes
            fits = None if usable is None else estimate.high_bytes <= usable
            steps.append(Step(text=_words(remedy, name), device_bytes=estimate.device_bytes, fits=fits))
            if fits:
                return steps
    return steps


def _words(remedy: Remedy, technique: str) -> str:
    rows = remedy.changes.get("training.micro_batch_size")
    if rows is not None:
        return f"micro batch {rows}"
    mini = remedy.changes.get("training.embedding_mini_batch")
    return technique if mini is None else f"a mini batch of {mini}, with cached gradients"


def _named(name: str, found: Sequence[Remedy]) -> list[Remedy]:
    return [remedy for remedy in found if remedy.name == name]


def _paged(job: TrainingJob) -> list[Remedy]:
    """Paged 8-bit states, where states are large: an adapter's are not."""
    paged = options.paged_states(job) if job.training.method in ("full", "freeze") else None
    return [paged] if paged is not None and "8bit" not in job.training.optimizer else []


def _half(job: TrainingJob) -> list[Remedy]:
    length = job.training.sequence_length
    return [options_scale.sequence(length // 2)] if length > SHORT else []
