"""Routers: which experts a token goes to, with which weight, as each model type computes it (transformers 5.24).

Each router takes x [T, H] and gives (weights [T, k], ids [T, k]) beside its logits, which the caller's ``_`` keeps.
Their tensors are small beside the experts' own, except where a router works in fp32 on the hidden states.
"""

from __future__ import annotations

from typing import Protocol

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, saving_output, scale, shift
from memlint.estimate.ops.gather import divide, divide_in_place, normalised, sum_last, take, topk
from memlint.estimate.ops.linear import linear

Routed = tuple[Tensor, Tensor, Tensor]
"""Logits, weights, ids."""


class Router(Protocol):
    """x [T, H] -> (logits, weights, ids)."""

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """Route the tokens of x."""
        ...


class SoftmaxRouter:
    """Softmax over all experts in fp32, then top-k: mixtral, qwen2_moe, qwen3_moe, olmoe, flex_olmo.

    ``normalise``: weights are divided by their sum; ``keep_fp32``: they stay fp32 (mixtral), which makes the weighted
    expert outputs fp32 too.
    """

    def __init__(
        self, b: Build, name: str, experts: int, k: int, hidden: int, *, normalise: bool, keep_fp32: bool
    ) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden)
        self.k, self.normalise, self.keep_fp32 = k, normalise, keep_fp32

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, x, self.weight)
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
        self.bias = b.parameter(f"{name}.bias", experts) if bias else None
        self.k, self.fp32 = k, fp32

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, x, self.weight, self.bias)
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
        b.buffer(experts * 4)
        self.k = k

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, cast(f, x, self.weight.dtype), self.weight)
        scores = saving_output(f, cast(f, logits, "fp32"))
        choice = shift(f, scores)
        _, ids = topk(f, choice.detach(), self.k)
        weights = normalised(f, take(f, scores, ids))
        return logits, weights, ids


class GroupedRouter:
    """Group-limited sigmoid (or softmax) routing in fp32: deepseek_v3, glm4_moe, dots1, exaone_moe, solar_open.

    The router's weight is fp32 whatever the model's dtype (_keep_in_fp32_modules_strict); the hidden states are cast to
    fp32 for it.
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
    ) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32" if fp32_weight else None)
        b.buffer(experts * 4)
        self.experts, self.k, self.groups, self.normalise = experts, k, groups, normalise
        self.kept_groups = kept_groups

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = linear(f, cast(f, x, "fp32"), cast(f, self.weight, "fp32"))
        scores = saving_output(f, logits)
        choice = shift(f, scores)
        tokens, groups = x.shape[0], self.groups
        best, places = topk(f, choice.view(tokens, groups, self.experts // groups), 2)
        del places
        group_scores = sum_last(f, best).view(tokens, groups)
        del best
        values, ids = topk(f, group_scores.detach(), self.kept_groups)
        del values
        group_mask = f.new((tokens, groups), "fp32")
        score_mask = f.new((tokens, self.experts), "fp32")
        flags = f.new((tokens, self.experts), "bool")
        inverse = f.new((tokens, self.experts), "bool")
        del flags
        masked = masked_fill(f, choice, inverse)
        del inverse
        del choice
        _, chosen = topk(f, masked, self.k)
        weights = take(f, scores, chosen)
        if self.normalise:
            weights = divide_in_place(f, weights, shift(f, sum_last(f, weights)))
        del group_mask, score_mask, ids, group_scores
        return logits, scale(f, weights), chosen


def masked_fill(f: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """``x.masked_fill(mask, value)``: saves the mask."""
    recorded = f.needs(x)
    saved = f.save(mask) if recorded else ()
    out = f.like(x)
    return f.record(out, lambda tape, node, grad: (tape.like(grad),), (x,), saved) if recorded else out


class ErnieRouter:
    """ernie4_5_moe: softmax in fp32 without autocast, biased choice, weights divided by their clamped sum."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int) -> None:
        self.weight = b.parameter(f"{name}.weight", experts, hidden, dtype="fp32")
        b.parameter(f"{name}.moe_statics.e_score_correction_bias", 1, experts, dtype="fp32", trainable=False)
        self.k = k

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        outer, f.autocast = f.autocast, None
        logits = linear(f, cast(f, x, "fp32"), cast(f, self.weight, "fp32"))
        probabilities = softmax(f, logits)
        _, ids = topk(f, shift(f, probabilities), self.k)
        weights = take(f, probabilities, ids)
        weights = divide(f, weights, shift(f, sum_last(f, weights)))
        f.autocast = outer
        return logits, cast(f, weights, x.dtype), ids


class SparseMixerRouter:
    """phimoe: two experts chosen one after the other by masked, noisy softmax (sparsemixer)."""

    def __init__(self, b: Build, name: str, experts: int, k: int, hidden: int) -> None:
        self.gate = b.linear(name, hidden, experts)
        self.experts = experts

    def __call__(self, f: Tape, x: Tensor) -> Routed:
        """See :class:`Router`."""
        logits = self.gate(f, x)
        kept: list[Tensor] = []
        multipliers: list[Tensor] = []
        for _ in range(2):
            mask = f.new(logits.shape, "bool")
            gates = masked_fill(f, logits, mask)
            noisy = f.like(gates)
            ids = f.new((x.shape[0], 1), "int64")
            del noisy
            gates = softmax(f, gates)
            multiplier = take(f, gates, ids)
            kept += [mask, ids]
            multipliers.append(multiplier)
        weights = add(f, multipliers[0], multipliers[1])
        out = f.record(f.new((x.shape[0], 2), weights.dtype), _halves, (weights,)) if weights.node else weights
        return logits, out, f.new((x.shape[0], 2), "int64")


def _halves(f: Tape, node: object, grad: Tensor) -> tuple[Tensor]:
    return (f.new((grad.shape[0], 1), grad.dtype),)
