"""What a rule may look at: the document and its problems, the job, the prediction, and "what if"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from memlint.findings import Finding, Fix, Help, KeyEdit
from memlint.job import KeyPath
from memlint.records import dataclass, field
from memlint.units import gib

if TYPE_CHECKING:
    from memlint.dialects.base import Problem
    from memlint.document.model import Document
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.plan.remedy import Remedy
    from memlint.rules.meta import RuleMeta

WASTE_SHARE = 4
"""A suggestion is also worth a word when it saves more than a quarter of the usable memory (CONTRACT.md, Rules)."""

NOTICEABLE_SHARE = 100
"""For a job that does not fit, a change that saves less than 1 % of the usable memory is no remedy."""

LACKING_SHARE = 10
"""Nor is one outside the plan that saves less than a tenth of what the job lacks: some like it are not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContext:
    """A document as read, before any prediction."""

    document: Document
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A change of the job, recomputed, and how the config's own dialect writes it."""

    estimate: Estimate
    text: str | None
    """```gradient_checkpointing: true```, None where the dialect has no key for it."""
    edits: tuple[KeyEdit, ...] = ()
    job: TrainingJob | None = None
    """The job with the change, as the dialect reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run of the job took on one GPU, beside the interval that was predicted for it. Sizes in bytes."""

    measured_bytes: int | None
    """None: the run ran out of memory."""
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    usable_bytes: int | None = None
    """Of the GPU that it ran on."""
    where: str
    """``on NVIDIA H200``, or ``stated in a comment``."""
    notes: tuple[str, ...] = ()
    line: int | None = None
    column: int | None = None
    """Place of the comment that states it."""


@dataclass(slots=True, kw_only=True)
class Context:
    """One job with its prediction. Sizes in bytes, per GPU."""

    document: Document
    job: TrainingJob
    estimate: Estimate | None
    target: Target | None
    verdict: str
    """fits, tight, oom or unknown."""
    usable: int | None
    """Usable bytes of one GPU less what the job reserves; None without a target."""
    margin: float
    named: frozenset[str]
    """Codes that the user named in full with ``--select``."""
    unresolved: str | None = None
    """Why there is no architecture, as a sentence."""
    approximate: str | None = None
    """Why the prediction is only approximate, as a sentence."""
    try_changes: Callable[[Mapping[str, Any]], Trial | None]
    """Recompute with native fields changed; None where the changed job cannot be predicted. Cached by the engine."""
    judge: Callable[[Estimate], str]
    """Verdict of a prediction against the target and margin."""
    measured: Measured | None = None
    """What a run took, where `--verify` ran one or a comment states it."""
    writable: Callable[[Mapping[str, Any]], bool] = lambda changes: True
    """Whether the config's dialect has keys for a change; nothing is predicted."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What rules share: the plan, made once (:mod:`memlint.rules.remedies`)."""

    @property
    def gpus(self) -> int:
        """GPUs of the run: as the config states, else as the target has, else one."""
        return self.job.parallelism.gpus or (self.target.gpus if self.target else 1)

    @property
    def host_limit(self) -> int | None:
        """Main memory of one node in bytes; None where it is not known, or nothing must be kept there."""
        from memlint.hardware.target import host_memory

        return None if self.job.pages else host_memory(self.job.hardware.host_memory, self.target)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was taken for granted, as notes under a verdict."""
        sentences = (*self.job.assumptions, *(self.estimate.assumptions if self.estimate is not None else ()))
        return tuple(f"assumed: {sentence}" for sentence in dict.fromkeys(sentences))

    def matters(self, meta: RuleMeta, saved: int) -> bool:
        """Whether a suggestion that saves ``saved`` bytes is worth a word (CONTRACT.md, Rules, last paragraph)."""
        if saved <= 0:
            return False
        if meta.code in self.named:
            return True
        if self.usable is None:
            return False
        if saved * WASTE_SHARE > self.usable:
            return True
        return self.verdict in ("tight", "oom") and saved * NOTICEABLE_SHARE > self.usable

    def _helps(self, meta: RuleMeta, saved: int) -> bool:
        """Whether a saving that :meth:`matters` is one without being a step of the plan."""
        if self.estimate is None or self.usable is None or meta.code in self.named:
            return True
        lacking = self.estimate.high_bytes - self.usable * (1 - self.margin)
        return saved * LACKING_SHARE >= lacking or saved * WASTE_SHARE > self.usable

    def place(self, *names: str) -> tuple[KeyPath | None, str | None]:
        """Return key path and file of the first of ``names`` (native fields) that a file states."""
        for name in names:
            origin = self.job.origin(name)
            if origin is not None and origin.file is not None and (origin.key or origin.line):
                return origin.key, origin.file
        return None, None

    def stated(self, name: str) -> bool:
        """Whether a file states the field ``name``, rather than a default or an assumption."""
        origin = self.job.origin(name)
        return origin is not None and origin.file is not None

    def value_at(self, name: str) -> Any:
        """The raw value in the document that fed field ``name``, or None."""
        origin = self.job.origin(name)
        if origin is None or origin.file != self.document.path:
            return None
        value: Any = self.document.data
        for step in origin.key:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def finding(self, meta: RuleMeta, message: str, *, at: tuple[str, ...], **rest: Any) -> Finding:
        """Make a finding of ``meta`` at the first field of ``at`` that a file states."""
        key, file = self.place(*at)
        return Finding(
            code=meta.code, name=meta.name, severity=meta.severity, message=message, key=key, file=file, **rest
        )

    def help(self, trial: Trial, *, otherwise: str, safe: bool = False) -> Help:
        """Make the help line of a recomputed change; ``otherwise`` names it where the dialect has no key for it."""
        assert self.estimate is not None
        saved = self.estimate.device_bytes - trial.estimate.device_bytes
        verdict = self.judge(trial.estimate)
        what = trial.text or otherwise
        predicted = f"predicted {gib(trial.estimate.device_bytes)} GiB"
        if verdict == "fits" and self.verdict != "fits":
            text = f"{what} {'fit' if len(trial.edits) > 2 else 'fits'}, {predicted}"
        elif verdict == "tight" and self.verdict == "oom":
            text = f"{what} saves {gib(saved)} GiB, {predicted}: tight"
        elif verdict in ("tight", "oom"):
            text = f"{what} saves {gib(saved)} GiB, {predicted}: not enough alone"
        else:
            text = f"{what} saves {gib(saved)} GiB, {predicted}"
        return Help(
            text=text,
            saves_bytes=saved,
            fits_after=None if verdict == "unknown" else verdict == "fits",
            fix=Fix(safe=safe, edits=trial.edits) if trial.edits else None,
        )

    def replacement(self, trial: Trial) -> Help:
        """Make the help line of a change that is needed whatever it saves."""
        return Help(
            text=f"{trial.text} works there, predicted {gib(trial.estimate.device_bytes)} GiB",
            fits_after=None if (verdict := self.judge(trial.estimate)) == "unknown" else verdict == "fits",
            fix=Fix(safe=False, edits=trial.edits) if trial.edits else None,
        )

    def suggest(
        self,
        meta: RuleMeta,
        candidates: Sequence[Remedy],
        *,
        message: Callable[[int], str],
        at: tuple[str, ...],
        label: str | None = None,
    ) -> Finding | None:
        """Try each candidate and make one finding of those that matter, or None.

        ``message`` receives the bytes saved by the first candidate kept.
        """
        if self.estimate is None:
            return None
        helps: list[Help] = []
        kept: list[Remedy] = []
        for remedy in candidates:
            trial = self.try_changes(remedy.changes)
            if trial is None:
                continue
            saved = self.estimate.device_bytes - trial.estimate.device_bytes
            if self.matters(meta, saved):
                helps.append(self.help(trial, otherwise=remedy.words, safe=remedy.safe))
                kept.append(remedy)
        if not helps:
            return None
        first = helps[0]
        from memlint.rules.remedies import part_of_plan

        part = part_of_plan(self, kept[0])
        if part is None and not any(self._helps(meta, one.saves_bytes or 0) for one in helps):
            return None
        return self.finding(
            meta,
            message(first.saves_bytes or 0),
            at=at,
            label=label,
            helps=tuple(helps),
            notes=(part,) if part is not None else (),
            saves_bytes=first.saves_bytes,
            fits_after=first.fits_after,
            fix=first.fix,
        )


def breakdown(estimate: Estimate) -> str:
    """Return the device peak by part, in GiB: ``weights 16.1, gradients 16.1, ..., other 6.3 (GiB per GPU)``."""
    parts = estimate.components
    shown = [
        ("weights", parts.get("parameters", 0)),
        ("gradients", parts.get("gradients", 0)),
        ("optimizer", parts.get("optimizer_states", 0)),
        ("activations", parts.get("activations", 0)),
        ("logits", parts.get("logits", 0)),
        ("temporaries", parts.get("temporaries", 0)),
        ("communication", parts.get("communication", 0)),
        ("vLLM engine", sum(part.expected_bytes for part in estimate.overheads if part.name == "vllm_engine")),
    ]
    kept = [(name, size) for name, size in shown if size * 2000 > estimate.device_bytes]
    rest = estimate.device_bytes - sum(size for _, size in kept)
    return ", ".join(f"{name} {gib(size)}" for name, size in [*kept, ("other", rest)]) + " (GiB per GPU)"
