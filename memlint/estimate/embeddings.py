"""The embedding of a model's inputs as its modules run it."""

from __future__ import annotations

from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import scale
from memlint.estimate.ops.images import requiring_grad
from memlint.estimate.ops.linear import Weight, embedding


class Embedding:
    """nn.Embedding."""

    __slots__ = ("hooked", "scaled", "weight")

    def __init__(self, weight: Weight, hooked: bool = False, scaled: bool = False) -> None:
        self.weight = weight
        self.hooked = hooked
        self.scaled = scaled
        """The module multiplies what it looks up (Gemma's, BART's ScaledWordEmbedding)."""

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [...] -> [..., H]."""
        out = embedding(f, self.weight, ids)
        if self.scaled:
            out = scale(f, out)
        return requiring_grad(f, out) if self.hooked else out
