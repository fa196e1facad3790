"""Routers: which experts a token goes to, with which weight, as each model type computes it (transformers 5.24).

Each router takes x [T, H] and gives (weights [T, k], ids [T, k]) beside its logits, which the caller's ``_`` keeps.
Their tensors are small beside the experts' own, except where a router works in fp32 on the hidden states.
"""

from __future__ import annotations

from typing import Protocol

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.families.expert_adapters import FoldedRouter, folded_router
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import cast, cat, saving_output, scale, shift
from memlint.estimate.ops.gather import divide, divide_in_place, masked_fill, normalised, sum_last, take, topk
from memlint.estimate.ops.linear import linear

Routed = tuple[Tensor, Tensor, Tensor]
"""Logits, weights, ids."""


class Router(Protocol):
    """x [T, H] -> (logits, weights, ids)."""

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """Route the tokens of x."""
        ...


class SoftmaxRouter:
    """Softmax over all experts in fp32, then top-k: mixtral, qwen2_moe, qwen3_moe, olmoe, flex_olmo, hunyuan_v1_moe.

    ``normalise``: weights are divided by their sum; ``keep_fp32``: they stay fp32 (mixtral), which makes the weighted
    expert outputs fp32 too; ``fp32_weight``: the router itself is fp32 and so are the hidden states it sees (hunyuan).
    """

    def __init__(
        self,
        b: Build,
        name: str,
        experts: int,
        k: int,
        hidden: int,
        *,
        normalise: bool,
        keep_fp32: bool,
        fp32_weight: bool = False,
    ) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32" if fp32_weight else None)
        self.adapter: FoldedRouter | None = None
        self.k, self.normalise, self.keep_fp32, self.wide = k, normalise, keep_fp32, fp32_weight

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, cast(f, x, "fp32") if self.wide else x, folded_router(f, self))
        probabilities = softmax(f, cast(f, logits, "fp32"))
        values, ids = topk(f, probabilities, self.k)
        if self.normalise:
            values = normalised(f, values)
        return logits, values if self.keep_fp32 else cast(f, values, logits.dtype), ids


class TopFirstRouter:
    """Top-k of the logits, softmax over the chosen: granitemoe (in fp32, cast back), gpt_oss (in the logits' dtype)."""

    def __init__(
        self, b: Build, name: str, experts: int, k: int, hidden: int, *, bias: bool = False, fp32: bool = True
    ) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden)
        self.adapter: FoldedRouter | None = None
        self.bias = b.parameter(f"{name}.bias", experts) if bias else None
        self.k, self.fp32 = k, fp32

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, x, folded_router(f, self), self.bias)
        if self.fp32:
            logits = cast(f, logits, "fp32")
        values, ids = topk(f, logits, self.k)
        if not self.fp32:
            return logits, softmax(f, values, values.dtype), ids
        return logits, cast(f, softmax(f, values), x.dtype), ids


class SigmoidRouter:
    """Sigmoid scores, experts chosen by biased scores: minimax_m2; weights stay fp32."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden)
        self.adapter: FoldedRouter | None = None
        b.buffer(experts * 4)
        self.k = k

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, cast(f, x, self.weight.dtype), folded_router(f, self))
        scores = saving_output(f, cast(f, logits, "fp32"))
        choice = shift(f, scores)
        _, ids = topk(f, choice.detach(), self.k)
        weights = normalised(f, take(f, scores, ids))
        return logits, weights, ids


class BiasedRouter:
    """Sigmoid scores in the logits' dtype, experts chosen by scores plus a buffer in fp32: lfm2_moe."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int, *, normalise: bool, bias: bool) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden)
        self.adapter: FoldedRouter | None = None
        if bias:
            b.buffer(experts * 4)
        self.k, self.normalise, self.bias = k, normalise, bias

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, x, folded_router(f, self))
        scores = saving_output(f, logits)
        if self.bias:
            choice = f.like(scores, "fp32")
            _, ids = topk(f, choice, self.k)
            weights = take(f, scores, ids)
            del _, choice
        else:
            weights, ids = topk(f, scores, self.k)
        if self.normalise:
            weights = divide(f, weights, shift(f, sum_last(f, weights)))
        return logits, scale(f, weights), ids


class GroupedRouter:
    """Group-limited sigmoid routing in fp32: deepseek_v3, glm4_moe, dots1, exaone_moe, solar_open.

    The router's weight is fp32 whatever the model's dtype (_keep_in_fp32_modules_strict); the hidden states are cast to
    fp32 for it. ``plain``: a softmax in the model's dtype, its scores unbiased (mistral4).
    """

    def __init__(
        self,
        b: Build,
        name: str,
        experts: int,
        k: int,
        hidden: int,
        *,
        groups: int,
        kept_groups: int,
        normalise: bool,
        fp32_weight: bool = True,
        plain: bool = False,
    ) -> None:
        fp32_weight = fp32_weight and not plain
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32" if fp32_weight else None)
        self.adapter: FoldedRouter | None = None
        self.plain = plain
        if not plain:
            b.buffer(experts * 4)
        self.experts, self.k, self.groups, self.normalise = experts, k, groups, normalise
        self.kept_groups = kept_groups

    def scored(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and scores of all experts."""
        if self.plain:
            logits = linear(f, x, folded_router(f, self))
            return logits, softmax(f, logits)
        logits = linear(f, cast(f, x, "fp32"), cast(f, folded_router(f, self), "fp32"))
        return logits, saving_output(f, logits)

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits, scores = self.scored(f, x)
        # The choice of experts gives ids only: its graph dies with its values, so nothing of it is saved.
        tokens, groups = x.shape[0], self.groups
        # The bias that is added is fp32.
        dtype = scores.dtype if self.plain else "fp32"
        choice = scores.detach() if self.plain else f.like(scores)
        best, places = topk(f, choice.view(tokens, groups, self.experts // groups), 2)
        group_scores = f.new((tokens, groups), dtype)
        del best
        values, ids = topk(f, group_scores, self.kept_groups)
        del values
        group_mask = f.new((tokens, groups), dtype)
        flags = f.new((tokens, self.experts), "bool")
        inverse = f.new((tokens, self.experts), "bool")
        del flags
        masked = f.like(scores)
        del choice
        values, chosen = topk(f, masked, self.k)
        del values
        weights = take(f, scores, chosen)
        if self.normalise:
            weights = divide_in_place(f, weights, shift(f, sum_last(f, weights)))
        weights = scale(f, weights)
        del group_mask, places, ids, group_scores, inverse, masked
        return logits, weights, chosen


class GroupedSoftmaxRouter:
    """deepseek_v2: softmax in fp32, greedy top-k or top-k within the best groups, weights scaled and kept in fp32."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int, *, limited: bool) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32")
        self.adapter: FoldedRouter | None = None
        self.k, self.limited = k, limited

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, cast(f, x, "fp32"), cast(f, folded_router(f, self), "fp32"))
        scores = softmax(f, logits, "fp32")
        if self.limited:
            scores = masked_fill(f, scores, f.new(scores.shape, "bool"))
        values, ids = topk(f, scores, self.k)
        return logits, scale(f, values), ids


class ErnieRouter:
    """ernie4_5_moe: softmax in fp32 without autocast, biased choice, weights divided by their clamped sum."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32")
        self.adapter: FoldedRouter | None = None
        b.parameter(f"{name}.moe_statics.e_score_correction_bias", 1, experts, dtype="fp32", trainable=False)
        self.k = k

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        outer, f.autocast = f.autocast, None
        logits = linear(f, cast(f, x, "fp32"), cast(f, folded_router(f, self), "fp32"))
        probabilities = softmax(f, logits)
        _, ids = topk(f, f.like(probabilities), self.k)
        weights = take(f, probabilities, ids)
        weights = divide(f, weights, shift(f, sum_last(f, weights)))
        f.autocast = outer
        return logits, cast(f, weights, x.dtype), ids


class SparseMixerRouter:
    """phimoe: two experts chosen one after the other by masked, noisy softmax (sparsemixer)."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int) -> None:
        self.gate = b.linear(name, hidden, experts, subclass=True)
        self.experts = experts

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits: Tensor = self.gate(f, x)
        parts, ids = [], f.new((x.shape[0], 2), "int64")
        for _ in range(2):
            factor = f.like(logits)
            gates = masked_fill(f, logits, f.new(logits.shape, "bool"))
            noisy = f.like(gates)
            chosen = f.new((x.shape[0], 1), "int64")
            del noisy
            gates = softmax(f, gates, gates.dtype)
            parts.append(_multiplier(f, logits, take(f, gates, chosen), chosen, gates))
            del factor
        return logits, cat(f, *parts), ids


def _multiplier(f: Tape, logits: Tensor, value: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
    """PhimoeMultiplier: an autograd function of its own whose gradient goes to the logits alone."""
    recorded = f.needs(logits)
    saved = f.save(value, ids, gates) if recorded else ()
    out = f.like(value)
    return f.record(out, _multiplier_backward, (logits,), saved) if recorded else out


def _multiplier_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    first, second = f.like(grad), f.like(grad)
    out = f.new(node.shapes[0][0], grad.dtype)
    del first, second
    return (out,)
