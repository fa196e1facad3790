"""Experts that are modules of their own, run one after another over the tokens they were chosen for.

Source: modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base (DeepseekMoE.forward in training). Which tokens an
expert gets depends on data: all are taken to get equally many.
"""

from __future__ import annotations

from typing import Callable

from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import expand_copy, mul
from memlint.estimate.ops.gather import index_rows, sum_groups
from memlint.estimate.ops.images import put_rows


class ModuleExperts:
    """``y[chosen == i] = experts[i](x[chosen == i])`` for each of them."""

    def __init__(self, experts: list[Callable[[Tape, Tensor], Tensor]]) -> None:
        self.experts = experts

    def __call__(self, f: Tape, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, H], ids and weights [T, k] -> [T, H]."""
        tokens, k = ids.shape
        pairs, width = tokens * k, x.shape[-1]
        # repeat_interleave copies each token for every expert that it goes to.
        repeated = expand_copy(f, x.view(tokens, 1, width), (tokens, k, width)).view(pairs, width)
        y = f.like(repeated)
        count = len(self.experts)
        for number, expert in enumerate(self.experts):
            rows = (pairs * (number + 1)) // count - (pairs * number) // count
            if rows:
                out = expert(f, index_rows(f, repeated, f.new((rows,), "int64")))
                y = put_rows(f, y, out)
        y = mul(f, y, weights.view(pairs, 1))
        return sum_groups(f, y, k)
