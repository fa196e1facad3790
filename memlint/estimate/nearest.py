"""The interval of a model whose type nobody has compared, computed as the nearest shape of its config's fields."""

from __future__ import annotations

from memlint.estimate.result import Estimate
from memlint.models.architecture import Architecture
from memlint.models.families import NEAREST
from memlint.records import replace

RANGES = {"llama": (0.65, 1.5), "moe": (0.65, 2.1), "mla": (0.65, 2.1)}
"""Nearest family -> allocated peak of a type's own shape over that of the nearest one: least, most.

Seen by taking every decoder of the catalog and of the grid that memlint knows as if it did not, at its own size and
small, full and with LoRA, with and without checkpointing (tests/estimate/test_nearest.py): 0.67 to 1.47 for plain
decoders (norms and feed-forwards of other kinds, eager attention), up to 2.07 for experts, whose adapters a nearest
shape does not have. The median is 1.00.
"""


def widened(estimate: Estimate, architecture: Architecture) -> Estimate:
    """The estimate with the interval of its nearest shape; as it is for a type of its own."""
    family = architecture.family if architecture.model_type in NEAREST else architecture.get("nearest_family")
    found = RANGES.get(str(family))
    if found is None:
        return estimate
    least, most = found
    return replace(
        estimate,
        low_bytes=int(estimate.low_bytes - (1 - least) * estimate.allocated_bytes),
        high_bytes=int(estimate.high_bytes + (most - 1) * estimate.allocated_bytes),
    )
