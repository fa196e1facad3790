"""What torch.compile makes of a decoder layer and of the loss.

The rule is that of the min-cut partitioner (torch 2.5 _functorch/partitioners.py): products are never recomputed
(default_recomputable_ops holds pointwise, view and reduction operators), and what the backward would have to lay down
in memory anyway (ban_if_materialized_backward), such as the input of a weight gradient's product, is kept. Pointwise
work in between (rotation, silu, the residual sums' operands, the normalised values before their scale) is done again.
"""

from __future__ import annotations

from math import prod
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import GRADIENTS
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.torchtune_layers import LoraLinear, Maker, Nf4Linear
from memlint.estimate.ops.linear import Weight
from memlint.models.architecture import Architecture


def _compiled_loss_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(*node.shapes[0]),)


def compiled_cross_entropy(f: Tape, logits: Tensor) -> Tensor:
    """compute_cross_entropy compiled: keeps the half logits and two fp32 values a row; no fp32 copy is laid down."""
    rows = (prod(logits.shape[:-1]),)
    recorded = f.needs(logits)
    highest, total = f.new(rows, "fp32"), f.new(rows, "fp32")
    saved = f.save(logits, highest, total) if recorded else ()
    del highest, total
    loss = f.new((), "fp32")
    return f.record(loss, _compiled_loss_backward, (logits,), saved) if recorded else loss


class CompiledBlock:
    """TransformerSelfAttentionLayer under ``layer.compile()``: one forward and one backward call."""

    def __init__(self, a: Architecture, b: Build, maker: Maker, index: int, env: Env) -> None:
        name = f"layers.{index}"
        self.hidden, self.ffn = a.hidden_size, int(a.get("intermediate_size"))
        self.heads = int(a.get("num_attention_heads"))
        self.kv = int(a.get("num_key_value_heads", self.heads))
        self.width = int(a.get("head_dim") or a.hidden_size // self.heads)
        h, q, kv = self.hidden, self.heads * self.width, self.kv * self.width
        bias = a.model_type == "qwen2"
        self.scales = [b.parameter(f"{name}.{part}.scale", h) for part in ("sa_norm", "mlp_norm")]
        self.q = maker.linear(f"{name}.attn.q_proj", h, q, bias)
        self.k = maker.linear(f"{name}.attn.k_proj", h, kv, bias)
        self.v = maker.linear(f"{name}.attn.v_proj", h, kv, bias)
        self.o = maker.linear(f"{name}.attn.output_proj", q, h)
        self.w1 = maker.linear(f"{name}.mlp.w1", h, self.ffn)
        self.w2 = maker.linear(f"{name}.mlp.w2", self.ffn, h)
        self.w3 = maker.linear(f"{name}.mlp.w3", h, self.ffn)

    def product(self, f: Tape, layer: Any, tokens: tuple[int, int], outputs: int, dtype: str) -> Tensor:
        """One matrix product; a 4-bit weight is laid down first, a LoRA branch adds its narrow tensor."""
        base = layer.base if isinstance(layer, LoraLinear) else layer
        dense = base.dequantised(f, dtype) if isinstance(base, Nf4Linear) else None
        out = f.new((*tokens, outputs), dtype)
        del dense
        if isinstance(layer, LoraLinear):
            f.new((*tokens, layer.a.shape[0]), dtype)
            branch = f.new((*tokens, outputs), dtype)
            del branch
        return out

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, h = x.shape
        dtype, at = x.dtype, (b, s)
        wide = self.heads * self.width
        trainable = self.weights()
        recorded = f.needs(x, *trainable)
        kept: list[Tensor] = []

        def keep(tensor: Tensor, wanted: bool = True) -> Tensor:
            if recorded and wanted:
                kept.append(tensor)
            return tensor

        keep(x)
        n1 = keep(f.new((b, s, h), dtype), _needs_input(self.q, self.k, self.v))
        parts = [
            self.product(f, layer, at, n, dtype)
            for layer, n in ((self.q, wide), (self.k, self.kv * self.width), (self.v, self.kv * self.width))
        ]
        del n1
        q, k, v = [keep(f.new((b, s, wide), dtype)) for _ in range(3)]
        del parts
        out, lse = keep(f.new((b, s, wide), dtype)), keep(f.new((b, self.heads, s), "fp32"))
        del q, k, v, lse
        projected = self.product(f, self.o, at, h, dtype)
        del out
        residual = keep(f.new((b, s, h), dtype))
        del projected
        n2 = keep(f.new((b, s, h), dtype), _needs_input(self.w1, self.w3))
        gate = keep(self.product(f, self.w1, at, self.ffn, dtype))
        up = keep(self.product(f, self.w3, at, self.ffn, dtype))
        del n2
        hidden = keep(f.new((b, s, self.ffn), dtype), _needs_input(self.w2))
        del gate, up
        down = self.product(f, self.w2, at, h, dtype)
        del hidden, residual
        result = f.new((b, s, h), dtype)
        del down
        if not recorded:
            return result
        return f.record(result, self.backward, (x, *trainable), f.save(*kept))

    def weights(self) -> list[Weight]:
        """Trainable parameters of the layer."""
        found = [w for w in self.scales if w.trainable]
        for layer in (self.q, self.k, self.v, self.o, self.w1, self.w2, self.w3):
            if isinstance(layer, LoraLinear):
                found += [layer.a, layer.b]
            elif not isinstance(layer, Nf4Linear):
                found += [w for w in (layer.weight, layer.bias) if w is not None and w.trainable]
        return found

    def backward(self, f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The widest moment is the feed-forward's: the gradients of product, gate and up, [B, S, ffn] each."""
        b, s, h = grad.shape
        wide = self.heads * self.width
        inner = self.product(f, self.w2, (b, s), self.ffn, grad.dtype)
        gate, up = f.new((b, s, self.ffn), grad.dtype), f.new((b, s, self.ffn), grad.dtype)
        del inner
        back = [f.new((b, s, h), grad.dtype) for _ in range(2)]
        del gate, up, back
        attention = [f.new((b, s, wide), grad.dtype) for _ in range(4)]
        delta = f.new((b, self.heads, s), "fp32")
        del attention, delta
        grads = [f.new(shape, dtype, GRADIENTS) for shape, dtype in node.shapes[1:]]
        return (f.new((b, s, h), grad.dtype), *grads)


def _needs_input(*layers: Any) -> bool:
    # Whether a weight gradient of one of these products is taken: then its input is laid down in backward.
    for layer in layers:
        if isinstance(layer, LoraLinear) or (not isinstance(layer, Nf4Linear) and layer.weight.trainable):
            return True
    return False
