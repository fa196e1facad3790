"""Which tensor of a job has the size that could not be allocated."""

from __future__ import annotations

from memlint.estimate.engine.tape import Shape, Tape, Tensor
from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step
from memlint.job import TrainingJob
from memlint.oom.parse import OutOfMemory
from memlint.records import dataclass
from memlint.units import DTYPE_BYTES, gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One tensor (or list) that a step allocates."""

    size: int
    name: str
    phase: str


class _Watching(Tape):
    """A tape that notes every tensor's size and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[tuple[Shape, str], str] = {}
        self.backward = False

    def new(self, shape: Shape, dtype: str, component: int | None = None) -> Tensor:
        self.made.setdefault((shape, dtype), "backward" if self.backward else "forward")
        return super().new(shape, dtype, component)

    def run_backward(self, root: Tensor, grad: Tensor) -> None:
        self.backward = True
        super().run_backward(root, grad)


def candidates(job: TrainingJob, world: int = 1) -> list[Candidate]:
    """Every distinct size that one step of the job allocates, named by its shape; the largest first."""
    tape = _Watching()
    try:
        step = run_step(job, None, world=world, tape=tape)
    except Unsupported:
        return []
    assert job.architecture is not None
    result: list[Candidate] = []
    for (shape, dtype), phase in tape.made.items():
        size = DTYPE_BYTES[dtype]
        for side in shape:
            size *= side
        result.append(Candidate(size=size, name=_name(job, shape, dtype), phase=phase))
    records = [r for r in step.build.records if r.trainable and not r.host]
    trained = sum(r.count * r.numel for r in records)
    for name, elements, width, phase in (
        ("all gradients or one fp32 copy of all trained parameters", trained, 4, "optimizer"),
        ("one half-precision copy of all trained parameters", trained, 2, "setup"),
        ("this rank's fp32 partition of the trained parameters", -(-trained // world), 4, "setup"),
        ("this rank's half-precision partition of the trained parameters", -(-trained // world), 2, "setup"),
    ):
        if elements:
            result.append(Candidate(size=elements * width, name=name, phase=phase))
    for record in step.build.records:
        if record.host:
            continue
        for width in (2, 4):
            size = record.numel * width
            result.append(Candidate(size=size, name=f"a weight, gradient or state of `{record.name}`", phase="setup"))
    result.sort(key=lambda candidate: -candidate.size)
    return result


def _name(job: TrainingJob, shape: Shape, dtype: str) -> str:
    architecture = job.architecture
    assert architecture is not None
    rows = job.training.vocab_size or architecture.vocab_size
    length = job.training.sequence_length
    inner = architecture.get("intermediate_size")
    sides = " x ".join(f"{side:,}" for side in shape)
    if shape and shape[-1] == rows:
        return f"logits in {dtype} ({sides})"
    if len(shape) >= 3 and shape[-1] == shape[-2] == length:
        return f"the attention matrix in {dtype} ({sides})"
    if inner and shape and shape[-1] in (inner, 2 * inner):
        return f"an activation of the MLP in {dtype} ({sides})"
    if len(shape) == 2 and rows in shape:
        return f"the embedding's or head's weight-sized tensor in {dtype} ({sides})"
    if shape and shape[-1] == architecture.hidden_size:
        return f"hidden states in {dtype} ({sides})"
    return f"a {dtype} tensor ({sides})"


def matching(event: OutOfMemory, found: list[Candidate]) -> list[Candidate]:
    """Candidates whose size prints as the requested one."""
    if event.requested is None:
        return []
    return [c for c in found if abs(c.size - event.requested) <= max(event.requested_step, 1)]


def tokens_of_logits(event: OutOfMemory, vocabulary: int) -> str | None:
    """How many tokens' logits the request is, for a job whose real length the config does not say."""
    if event.requested is None or vocabulary <= 0:
        return None
    for dtype in ("fp32", "bf16"):
        tokens = event.requested / (vocabulary * DTYPE_BYTES[dtype])
        slack = event.requested_step / (vocabulary * DTYPE_BYTES[dtype])
        if slack <= 0.5 and abs(tokens - round(tokens)) <= slack and round(tokens) >= 16:
            return f"logits in {dtype} of {round(tokens):,} tokens ({gib(event.requested, 2)} GiB)"
    return None
