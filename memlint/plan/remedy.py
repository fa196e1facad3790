"""A remedy: a change of native job fields, and what it costs."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.records import dataclass, field

Changes = Mapping[str, Any]

CATEGORIES = ("free", "kernel", "compute", "optimizer", "batch", "sharding", "offload", "model-parallel")
"""What a remedy is paid with, cheapest first: nothing; another kernel or package; compute; a risk for convergence;
utilisation of the GPU; communication; the host's memory and the way there; communication inside every layer. This is
the handbook's order of preference: mixed precision, fused kernels, checkpointing, optimizer, micro batch, sharding,
offload, and tensor parallelism for what none of these divides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a remedy costs, with its source."""

    compute: float = 0.0
    """Change of the step's FLOPs as a share: 0.31 is 31 % more. Computed from the model's shape where it is not 0."""
    convergence: str = "none"
    """none (same result within numerics), small (published runs agree), risk (the recipe may need another tuning)."""
    complexity: str = "key"
    """key (one setting), package (another library), launcher (a distributed launch, a new file)."""
    sentence: str
    """The cost in words."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One option for one dimension of a job."""

    name: str
    """Unique: ``checkpointing-full``."""
    dimension: str
    """Options of one dimension exclude each other."""
    words: str
    """``activation checkpointing``."""
    changes: Changes
    cost: Cost
    rank: Mapping[str, int] = field(default_factory=dict)
    """Category -> price in it. Plans are compared by the sums, the dearest category first; a negative price is a gain:
    the remedy belongs into every plan in which it does not raise the peak."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Library -> first release that has it; a job whose own version is older does not have the remedy."""
    safe: bool = False
    """The training result is unchanged within numerics."""


def price(remedies: tuple[Remedy, ...], order: tuple[str, ...] = CATEGORIES) -> tuple[int, ...]:
    """Return the price of remedies taken together, dearest category of ``order`` first."""
    return tuple(sum(remedy.rank.get(category, 0) for remedy in remedies) for category in reversed(order))
