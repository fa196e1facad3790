"""Selective checkpointing: the outputs of some operations are kept, so that they are not computed a second time.

Source: torch 2.13 utils/checkpoint.py create_selective_checkpoint_contexts: the forward caches what the policy saves,
the recomputation takes it from the cache in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.pool import ACTIVATIONS

if TYPE_CHECKING:
    from memlint.estimate.engine.graph import Shape, Tensor
    from memlint.estimate.engine.tape import Tape

DEFAULT = ("attention", "mm/2")
"""torchtitan's policy (distributed/activation_checkpoint.py): attention, and every second matrix product."""

_PRODUCT = "aten::addmm.default aten::mm.default"
"""F.linear with and without a bias."""


class Selection:
    """What a checkpointed block keeps. ``names``: ``attention``, ``mm/2``, or parts of an operator's name."""

    __slots__ = ("_attention", "_every", "_kept", "_products", "_replaying")

    def __init__(self, names: tuple[str, ...]) -> None:
        """Nothing is kept yet."""
        names = names or DEFAULT
        self._attention = "attention" in names
        self._every = 2 if "mm/2" in names else 0
        if any(name and name in _PRODUCT for name in names):
            self._every = 1
        self._kept: list[Tensor] = []
        self._products = 0
        self._replaying = False

    def replay(self) -> Selection:
        """Begin the recomputation."""
        self._products, self._replaying = 0, True
        return self

    def output(self, f: Tape, op: str, shape: Shape, dtype: str) -> Tensor:
        """The result of an operation (``mm`` or ``attention``): new, kept, or from what was kept."""
        keeps = self._attention
        if op == "mm":
            self._products += 1
            keeps = self._every > 0 and (self._products - 1) % self._every == 0
        if not keeps:
            return f.new(shape, dtype)
        if self._replaying:
            return self._kept.pop(0)
        out = f.new(shape, dtype, ACTIVATIONS)
        self._kept.append(out.detach())
        return out
