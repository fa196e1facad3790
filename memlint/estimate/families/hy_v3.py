"""Hunyuan 3: norms of queries and keys, sigmoid routing, routed and shared experts added in fp32.

Source: transformers 5.24 models/hy_v3/modeling_hy_v3.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.families import moe
from memlint.estimate.families.expert_adapters import FoldedRouter, folded_router
from memlint.estimate.ops.basic import add, cast, saving_output, scale, shift
from memlint.estimate.ops.gather import divide, sum_last, take, topk
from memlint.estimate.ops.linear import linear
from memlint.models.architecture import Architecture


class Router:
    """HYV3TopKRouter: all of it in fp32."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32")
        self.adapter: FoldedRouter | None = None
        b.buffer(experts * 4)
        self.k = k

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, H] -> logits, weights [T, k], ids [T, k]."""
        logits = linear(f, cast(f, x, "fp32"), cast(f, folded_router(f, self), "fp32"))
        scores = saving_output(f, logits)
        choice = shift(f, scores)
        _, ids = topk(f, choice.detach(), self.k)
        weights = take(f, scores, ids)
        weights = divide(f, weights, shift(f, sum_last(f, weights)))
        return logits, scale(f, weights), ids


class SparseMlp(moe.Moe):
    """HYV3MoE."""

    wide = True
    """enable_moe_fp32_combine."""

    def make_router(self, a: Architecture, b: Build, name: str, experts: int) -> Any:
        """The router of this type."""
        return Router(b, name, experts, int(a.get("num_experts_per_tok", 8)), a.hidden_size)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        assert self.shared is not None
        shape = x.shape
        x = x.view(shape[0] * shape[1], shape[2])
        _, weights, ids = self.router(f, x)
        routed = self.experts(f, x, ids, weights)
        if self.wide:
            x = cast(f, add(f, cast(f, routed, "fp32"), cast(f, self.shared(f, x), "fp32")), x.dtype)
        else:
            x = add(f, routed, self.shared(f, x))
        return x.view(*shape)


class Block(moe.Block):
    """HYV3DecoderLayer."""

    def sparse_mlp(self, a: Architecture, b: Build, name: str) -> Any:
        """HYV3MoE."""
        mlp = SparseMlp(a, b, name, self.mixture)
        mlp.wide = bool(a.get("enable_moe_fp32_combine", True))
        return mlp


class Model(moe.Model):
    """HYV3Model: ids [B, S] -> hidden states [B, S, H]."""

    block = Block
