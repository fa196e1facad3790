"""Experts that are modules of their own, run one after another over the tokens they were chosen for.

Sources: modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base (DeepseekMoE.forward in training), and transformers
4.45 models/mixtral/modeling_mixtral.py (MixtralSparseMoeBlock.forward), as its types stood before version 5. Which
tokens an expert gets depends on data: all are taken to get equally many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Sequence

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast, expand_copy, mul
from memlint.estimate.ops.gather import index_rows, sum_groups
from memlint.estimate.ops.images import put_rows
from memlint.estimate.versions import before
from memlint.models.architecture import Architecture
from memlint.models.traits import EXPERT_MODULES

if TYPE_CHECKING:
    from memlint.estimate.build import Build


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


LOOPED = ("deepseek_v3", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe")
"""Types whose experts were linear modules, which 4 and 8 bits and adapters reach, before transformers 5 fused them."""
NAMES = {"mixtral": ("w1", "w3", "w2"), "phimoe": ("w1", "w3", "w2")}
"""Of gate, up and down, where it is not by those names."""


def looped(a: Architecture, b: Build) -> bool:
    """Whether the experts of a model are linear modules under the transformers that its job states."""
    return b.job.parallelism.offload != "experts" and a.model_type in LOOPED and before(b.job, "transformers", 5)


def in_modules(a: Architecture, b: Build) -> bool:
    """Whether each expert is a module of its own; on the host (host_experts.py) they are one operation."""
    return (EXPERT_MODULES in a.traits and b.job.parallelism.offload != "experts") or looped(a, b)


def _add_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # index_add_: self gets the gradient as it is, source ``grad.index_select``.
    return grad, f.new(node.shapes[1][0], grad.dtype)


class LoopedExperts:
    """``final.index_add_(0, top_x, experts[i](x[top_x]) * weights[top_x, idx])`` for each of them."""

    def __init__(self, experts: Sequence[Callable[[Tape, Tensor], Tensor]]) -> None:
        self.experts = experts

    def __call__(self, f: Tape, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, H], ids and weights [T, k] -> [T, H]."""
        tokens, k = ids.shape
        pairs, count = tokens * k, len(self.experts)
        weights = cast(f, weights, x.dtype)
        final = f.new(x.shape, x.dtype)
        mask = f.new((tokens, k, count), "int64")
        for number, expert in enumerate(self.experts):
            rows = (pairs * (number + 1)) // count - (pairs * number) // count
            if not rows:
                continue
            place, token = f.new((rows,), "int64"), f.new((rows,), "int64")
            out = expert(f, index_rows(f, x, token))
            out = mul(f, out, index_rows(f, weights.view(pairs), place).view(rows, 1))
            out = cast(f, out, x.dtype)
            added = Tensor(final.shape, final.dtype, final.storage, final.node)
            final = f.record(added, _add_backward, (final, out), f.save(token)) if f.needs(final, out) else final
            del out, place, token
        del mask
        return final
