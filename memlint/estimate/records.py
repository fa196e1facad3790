"""Parameters as they are recorded while a model is built, and as the optimizer sees them."""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import rounded
from memlint.records import dataclass
from memlint.units import DTYPE_BYTES


@dataclass(slots=True)
class Record:
    """One parameter tensor, or ``count`` equal ones in equal layers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    grad_dtype: str
    count: int
    blocks: tuple[int, ...]
    """Bytes of each storage that makes it up (a quantised weight has its statistics beside it), not rounded."""
    base: bool = True
    """Part of the model itself rather than of an adapter."""
    idle: bool = False
    """Takes no part in the step (a tower without images): no gradient, so no optimizer states."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        trainable: bool,
        grad_dtype: str,
        count: int,
        blocks: tuple[int, ...],
        base: bool = True,
        idle: bool = False,
    ) -> None:
        # Written out, since hundreds are made for an estimate.
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.trainable = trainable
        self.grad_dtype = grad_dtype
        self.count = count
        self.blocks = blocks
        self.base = base
        self.idle = idle

    @property
    def numel(self) -> int:
        """Elements of one tensor."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Slot:
    """One trainable tensor as the optimizer sees it (its shard or master copy), ``count`` times."""

    shape: tuple[int, ...]
    dtype: str
    grad_dtype: str
    count: int
    matrix: bool = True
    """Still has the parameter's own dimensions (a flat partition has not)."""
    after: int = 0
    """Elements of what stands before it among the trained ones; of equal ones, the most."""

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Rounded bytes of the parameter tensor."""
        return rounded(self.numel * DTYPE_BYTES[self.dtype])

    @property
    def grad_bytes(self) -> int:
        """Rounded bytes of its gradient."""
        return rounded(self.numel * DTYPE_BYTES[self.grad_dtype])


def slots_of(records: Sequence[Record]) -> list[Slot]:
    """Trainable tensors of a model, equal ones together."""
    counts: dict[tuple[tuple[int, ...], str, str], int] = {}
    after: dict[tuple[tuple[int, ...], str, str], int] = {}
    before = 0
    for record in records:
        if record.trainable and not record.idle:
            key = record.shape, record.dtype, record.grad_dtype
            counts[key] = counts.get(key, 0) + record.count
            after[key] = max(after.get(key, 0), before)
            before = record.numel
    return [Slot(*key, count, after=after[key]) for key, count in counts.items()]
