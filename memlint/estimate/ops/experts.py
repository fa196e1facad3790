"""Routed experts as transformers 5.24 runs them: fused 3-D weights and one grouped matrix product for all experts.

Source: integrations/moe.py (grouped_mm_experts_forward, the default of ``experts_implementation``), on CUDA from
compute capability 8.0. Tokens are copied once for each expert that takes them, so activations grow with tokens times
top-k.
"""

from __future__ import annotations

from typing import Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import GRADIENTS
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.families.expert_adapters import ExpertTargets, Folded, converted, parameter_targets
from memlint.estimate.host_experts import HostExperts
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import cast, mul
from memlint.estimate.ops.gather import index_rows, sum_groups
from memlint.estimate.ops.linear import Weight
from memlint.estimate.ops.views import split
from memlint.estimate.packed_experts import expert_parameter, opened


def _grouped_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # _grouped_mm: the weight's gradient (one tensor for all experts) is made before the input's.
    component = GRADIENTS if isinstance(node.edges[1], Leaf) else None
    grad_weight = f.new(node.shapes[1][0], grad.dtype, component) if node.edges[1] is not None else None
    grad_x = f.new(node.shapes[0][0], grad.dtype) if node.edges[0] is not None else None
    return grad_x, grad_weight


def grouped_mm(f: Tape, x: Tensor, weight: Tensor, offsets: Tensor, columns: int) -> Tensor:
    """``F.grouped_mm(x.to(weight.dtype), weight, offs=offsets)``: x [S, in] -> [S, columns]; autocast does not touch
    it.
    """
    x = cast(f, x, weight.dtype)
    recorded = f.needs(x, weight)
    saved = (
        f.save(x if weight.node is not None else None, weight if x.node is not None else None, offsets)
        if recorded
        else ()
    )
    out = f.new((x.shape[0], columns), x.dtype)
    return f.record(out, _grouped_backward, (x, weight), saved) if recorded else out


Gate = Callable[[Tape, Tensor], Tensor]
"""From the up projection [S, 2I] to what the down projection takes [S, I]."""


class Experts:
    """``experts.gate_up_proj`` [E, 2I, H] and ``experts.down_proj`` [E, H, I], parameters rather than linear modules.

    ``gate``: the type's own gating in place of ``act(gate) * up``. ``transposed``: weights are stored [E, in, out].
    ``gated`` False: ``up_proj`` [E, I, H] alone. bitsandbytes does not see these parameters
    (quantizers/quantizer_bnb_4bit.py: param_needs_quantization takes Linear4bit modules only), so they stay as loaded
    unless something else packs them (packed_experts.py).
    ``targets``: which of them have an adapter; None: those that the adapter's ``target_parameters`` name.
    """

    def __init__(
        self,
        b: Build,
        name: str,
        experts: int,
        hidden: int,
        width: int,
        act: str = "silu",
        *,
        gate: Gate | None = None,
        bias: bool = False,
        transposed: bool = False,
        gated: bool = True,
        targets: ExpertTargets | None = None,
    ) -> None:
        self.experts, self.hidden, self.width, self.act = experts, hidden, width, act
        self.gate, self.gated = gate, gated
        self.host: HostExperts | None = None
        if b.job.parallelism.offload == "experts":
            self.host = HostExperts(b, name, experts, hidden, width, gated=gated, bias=bias)
            return
        rows = 2 * width if gated else width
        first = "gate_up_proj" if gated else "up_proj"
        self.up_bias: Weight | None = None
        self.down_bias: Weight | None = None
        self.up = expert_parameter(b, f"{name}.{first}", experts, *((hidden, rows) if transposed else (rows, hidden)))
        if bias:
            self.up_bias = b.parameter(f"{name}.{first}_bias", experts, rows)
        last = (width, hidden) if transposed else (hidden, width)
        self.down = expert_parameter(b, f"{name}.down_proj", experts, *last)
        if bias:
            self.down_bias = b.parameter(f"{name}.down_proj_bias", experts, hidden)
        self.up_fold: Folded | None = None
        self.down_fold: Folded | None = None
        if targets is None:
            targets = parameter_targets(converted(b), f"{name}.{first}", f"{name}.down_proj")
        if b.lora is not None and targets.gate_up:
            self.up_fold = Folded(b, f"{name}.{first}", self.up, experts, rows, hidden, b.lora, targets.gate_up)
        if b.lora is not None and targets.down:
            self.down_fold = Folded(b, f"{name}.down_proj", self.down, experts, hidden, width, b.lora, targets.down)

    def __call__(self, f: Tape, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, H], ids and weights [T, k] -> [T, H]."""
        if self.host is not None:
            return self.host(f, x, ids, weights)
        tokens, k = ids.shape
        pairs = (tokens * k,)
        # Switched off, PEFT's ParamWrapper calls the layer as it is.
        up_fold, down_fold = (self.up_fold, self.down_fold) if f.adapters else (None, None)
        down_factors = down_fold.factors(f) if down_fold is not None else None
        up_factors = up_fold.factors(f) if up_fold is not None else None
        sorted_ids, order = f.new(pairs, "int64"), f.new(pairs, "int64")
        chosen = index_rows(f, x, f.new(pairs, "int64"))
        chosen_weights = index_rows(f, weights.view(*pairs), order)
        histogram_input = f.new(pairs, "int32")
        counts = f.new((self.experts,), "int32")
        offsets = f.new((self.experts,), "int32")
        bias = index_rows(f, self.up_bias, sorted_ids) if self.up_bias is not None else None
        up_weight = opened(f, self.up)
        up: Tensor = up_weight if up_fold is None or up_factors is None else up_fold.fold(f, up_factors)
        out = self._biased(f, grouped_mm(f, chosen, up, offsets, self.up_columns), bias)
        out = self._act(f, out)
        bias = index_rows(f, self.down_bias, sorted_ids) if self.down_bias is not None else None
        down_weight = opened(f, self.down)
        down: Tensor = down_weight if down_fold is None or down_factors is None else down_fold.fold(f, down_factors)
        out = self._biased(f, grouped_mm(f, out, down, offsets, self.hidden), bias)
        weighted = mul(f, out, chosen_weights.view(*pairs, 1))
        back = f.new(pairs, "int64")
        numbers = f.new(pairs, "int64")
        del numbers
        weighted = index_rows(f, weighted, back)
        final = sum_groups(f, weighted, k)
        del sorted_ids, histogram_input, counts, up, down, up_weight, down_weight
        return cast(f, final, x.dtype)

    @property
    def up_columns(self) -> int:
        """Columns of the first product."""
        return 2 * self.width if self.gated else self.width

    def _act(self, f: Tape, out: Tensor) -> Tensor:
        if self.gate is not None:
            return self.gate(f, out)
        if not self.gated:
            return activate(f, out, self.act)
        half = (out.shape[0], self.width)
        gate, up = split(f, out, half, half)
        return mul(f, activate(f, gate, self.act), up)

    def _biased(self, f: Tape, out: Tensor, bias: Tensor | None) -> Tensor:
        """``out.add_(bias)``: in place, both gradients are the incoming one."""
        if bias is None or not f.needs(out, bias):
            return out
        return f.record(Tensor(out.shape, out.dtype, out.storage), _add_in_place_backward, (out, bias))


def _add_in_place_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grad, grad
