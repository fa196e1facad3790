"""A LoRA branch beside an embedding, where an adapter's targets name one.

Source: peft 0.21 tuners/lora/layer.py, Embedding.forward: ``result + embedding(x, A.T) @ B.T * scaling``, without
dropout, in the dtype of the branch, then in the base's; times the base's own scale where it has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.pool import GRADIENTS
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, scale
from memlint.estimate.ops.linear import Weight, linear
from memlint.job import Lora

if TYPE_CHECKING:
    from memlint.estimate.build import Build
    from memlint.estimate.embeddings import Embedding


class LoraEmbedding:
    """A frozen table with its branch: A [r, V], B [H, r]."""

    __slots__ = ("a", "b", "base", "weight")

    def __init__(self, build: Build, name: str, base: Embedding, rows: int, width: int, lora: Lora) -> None:
        self.base = base
        self.weight = base.weight
        self.a = build.parameter(f"{name}.lora_embedding_A", lora.rank, rows, dtype=lora.dtype, adapter=True)
        self.b = build.parameter(f"{name}.lora_embedding_B", width, lora.rank, dtype=lora.dtype, adapter=True)

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [...] -> [..., H]."""
        result = self.base(f, ids)
        if not f.adapters:
            return result
        dtype = result.dtype
        own = scale(f, _product(f, self._low(f, ids), self.b))
        if self.base.scaled:
            own = scale(f, own)  # _get_embed_scale, as the base does
        result = add(f, result, own)
        return cast(f, result, dtype)

    def _low(self, f: Tape, ids: Tensor) -> Tensor:
        out = f.new((*ids.shape, self.a.shape[0]), self.a.dtype)
        return f.record(out, _backward, (self.a, ids), f.save(ids)) if f.needs(self.a) else out


def _backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, None]:
    # embedding_dense_backward of A.T, whose transposed view A gets.
    return f.new(node.shapes[0][0], grad.dtype, GRADIENTS), None


def _product(f: Tape, low: Tensor, b: Weight) -> Tensor:
    """``after_A @ B.T``: autocast casts the transposed view at each use, which is no leaf that it would cache."""
    out = linear(f, low, b)
    f.cast_cache.pop(id(b), None)
    return out
