"""Plans: what to change, in steps, with the figures that were recomputed. Sizes in bytes per GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from memlint.plan.remedy import Remedy
from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.findings import KeyEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One remedy of a plan."""

    remedy: Remedy
    text: str | None
    """The edit of this step as the dialect writes it; None where it is written only together with another."""
    device_bytes: int | None
    """Predicted with this step and all before it; None where these alone cannot be written."""
    saves_bytes: int | None
    """Against the step before."""
    evaluation_bytes: int | None = None
    """Of an evaluation, where this step changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a plan reaches before it no longer fits. None: not even as it is."""

    micro_batch_size: int | None
    sequence_length: int | None
    sequence_capped: bool = False
    """The sequence stops at the model's positions, not at the memory."""
    batch_capped: bool = False
    """More rows than anybody trains with still fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A set of remedies, predicted as the edited file reads."""

    steps: tuple[Step, ...]
    changes: Mapping[str, Any]
    estimate: Estimate
    verdict: str
    text: str | None
    """All edits as the dialect writes them; None where there is nothing to change."""
    edits: tuple[KeyEdit, ...]
    compute: float
    """Change of a step's FLOPs, as a share."""
    limits: Limits | None = None

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """The remedies in order."""
        return tuple(step.remedy for step in self.steps)

    @property
    def safe(self) -> bool:
        """The training result is unchanged within numerics."""
        return all(step.remedy.safe for step in self.steps)

    @property
    def words(self) -> str:
        """``mixed precision, activation checkpointing and 8-bit AdamW``."""
        names = [step.remedy.words for step in self.steps]
        if not names:
            return "as it is"
        return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareNeed:
    """Where a job fits."""

    gpu: str | None
    """The smallest known GPU that fits it, in the number that is declared."""
    usable_bytes: int | None
    gpus: int | None
    """The fewest GPUs of the declared kind; None where more of them do not help or none is declared."""
    strategy: str | None = None
    """How the fewest GPUs divide the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """All that `memlint plan` says."""

    estimate: Estimate
    """Of the job as it is."""
    verdict: str
    plans: tuple[Plan, ...]
    """Pareto front of memory against cost, best first."""
    offers: tuple[Plan, ...]
    """Changes of the method (LoRA, QLoRA), with what else they need to fit."""
    floor: Plan | None
    """The smallest peak that the remedies reach, where nothing fits; None otherwise."""
    limits: Limits | None
    """Of the job as it is."""
    hardware: HardwareNeed | None
    """Of the job as it is."""
    hardware_of_best: HardwareNeed | None
    tried: int
    """Combinations that were predicted."""
