"""The feed-forward of the Llama shape: gated or plain, fused or in three matrices, and Liger's kernel.

Sources: transformers 5.24 models/<type>/modeling_<type>.py; Liger-Kernel ops/swiglu.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import required
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape, flag
from memlint.estimate.families.xielu import Xielu
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import dropout, mul, slice_of
from memlint.models.architecture import Architecture


class Mlp:
    """Gated MLP ``down(act(gate(x)) * up(x))``, or a plain two-layer one."""

    def __init__(self, a: Architecture, b: Build, name: str, s: Shape) -> None:
        h, i = a.hidden_size, required(a, "intermediate_size")
        bias = flag(a, s.mlp_bias)
        self.shape = s
        self.width = i
        self.act = str(a.get("hidden_act") or a.get("hidden_activation") or "silu")
        if not s.gated:
            up, down = s.mlp_names
            self.up = b.linear(f"{name}.{up}", h, i, bias)
            self.down = b.linear(f"{name}.{down}", i, h, bias)
            if self.act == "xielu":
                self.xielu = Xielu(b, f"{name}.act_fn")
        elif s.fused_gate:
            self.up = b.linear(f"{name}.gate_up_proj", h, 2 * i, bias)
            self.down = b.linear(f"{name}.down_proj", i, h, bias)
        else:
            self.gate = b.linear(f"{name}.gate_proj", h, i, bias)
            self.up = b.linear(f"{name}.up_proj", h, i, bias)
            self.down = b.linear(f"{name}.down_proj", i, h, bias)
        self.inner_norm = Norm(b, f"{name}.ffn_sub_norm", i, s.norm) if s.inner_norms else None
        self.residual_dropout = float(a.get("residual_dropout", 0.0)) if s.residual_dropout else 0.0

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.branch(f, env, x)
        return dropout(f, x, self.residual_dropout)

    def branch(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """Everything but the dropout."""
        result: Tensor
        if not self.shape.gated:
            if self.act == "xielu":
                result = self.down(f, self.xielu(f, env, self.up(f, x)))
            else:
                result = self.down(f, activate(f, self.up(f, x), self.act))
            return result
        if self.shape.fused_gate:
            both = self.up(f, x)
            half = (*x.shape[:-1], self.width)
            gate, up = slice_of(f, both, half), slice_of(f, both, half)
            result = self.down(f, mul(f, up, activate(f, gate, self.act)))
        elif self.inner_norm is not None:
            x = mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x))
            result = self.down(f, self.inner_norm(f, env, x))
        elif "swiglu" in env.liger:
            result = self.down(f, fused_swiglu(f, self.gate(f, x), self.up(f, x)))
        else:
            result = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
        return result


def _swiglu_backward(f: Tape, node: Any, grad: Tensor) -> tuple[Tensor, ...]:
    # Liger-Kernel ops/swiglu.py: the gradients overwrite the saved gate and up tensors.
    return tuple(t.detach() for t in node.saved)


def fused_swiglu(f: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """Liger's silu(gate) * up: saves gate and up, writes their gradients over them."""
    recorded = f.needs(gate, up)
    saved = f.save(gate, up) if recorded else ()
    out = f.like(gate)
    return f.record(out, _swiglu_backward, (gate, up), saved) if recorded else out
