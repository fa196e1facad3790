"""The feed-forward of a gate and two projections, dense or one expert of a mixture."""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.families.expert_adapters import plain_linear
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import mul
from memlint.estimate.ops.views import split
from memlint.models.architecture import Architecture


class GatedMlp:
    """``down(act(gate(x)) * up(x))`` of a given width; ``fused``: one input_linear whose halves are gate and up.

    ``a``: the model whose adapter targets may have been turned into parameters of its experts (expert_adapters).
    """

    def __init__(
        self,
        b: Build,
        name: str,
        hidden: int,
        width: int,
        act: str,
        *,
        fused: bool = False,
        bias: bool = False,
        a: Architecture | None = None,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        self.width, self.act, self.fused = width, act, fused
        if fused:
            self.up = b.linear(f"{name}.input_linear", hidden, 2 * width, bias)
            self.down = b.linear(f"{name}.output_linear", width, hidden, bias)
            return

        def layer(leaf: str, inputs: int, outputs: int) -> Any:
            full = f"{name}.{leaf}"
            if a is None:
                return b.linear(full, inputs, outputs, bias)
            return plain_linear(a, b, full, inputs, outputs, bias)

        gate, up, down = names
        self.gate = layer(gate, hidden, width)
        self.up = layer(up, hidden, width)
        self.down = layer(down, width, hidden)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]."""
        result: Tensor
        if self.fused:
            both = self.up(f, x)
            half = (*both.shape[:-1], self.width)
            parts = split(f, both, half, half)
            both = mul(f, activate(f, parts[0], self.act), parts[1])
            result = self.down(f, both)
            return result
        result = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
        return result
