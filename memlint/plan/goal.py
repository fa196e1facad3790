"""What is planned for: the job with everything that decides its plans, and the goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from memlint.plan.remedy import CATEGORIES
from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob
    from memlint.rules.context import Trial

ORDERS: dict[str, tuple[str, ...]] = {
    "fit": CATEGORIES,
    "headroom": CATEGORIES,
    # Time decides: recomputing and the host's bus are dearest, a lighter optimizer takes no time at all.
    "speed": ("free", "kernel", "optimizer", "sharding", "batch", "compute", "offload", "model-parallel"),
}
"""Categories from cheapest to dearest, by goal."""

HEADROOM = 0.25
"""Share of the usable memory that `--for headroom` keeps free at the high end: room for longer batches, evaluation, and
a second process; a choice of memlint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned for."""

    job: TrainingJob
    """With its architecture."""
    estimate: Estimate
    target: Target | None
    usable: int | None
    """Usable bytes of one GPU less what the job reserves."""
    margin: float
    gpus: int
    host_bytes: int | None = None
    """Main memory of one node, where it is known."""
    dialect: str
    try_changes: Callable[[Mapping[str, Any]], Trial | None]
    """Recompute as the dialect would write and read the change."""
    writable: Callable[[Mapping[str, Any]], bool]
    """Whether the dialect can write a change."""
    judge: Callable[[Estimate], str]
    predict: Callable[[TrainingJob, Target | None], Estimate | None]
    goal: str = "fit"
