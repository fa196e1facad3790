"""What torch.compile makes of a decoder layer and of the loss.

The rule is that of the min-cut partitioner (estimate/engine/compiled_tape.py); that it keeps these tensors of
torchtune's own TransformerSelfAttentionLayer, trained whole or by adapters, was seen with torchtune 0.4.0 under torch
2.13. Of a layer over NF4 weights torch 2.13 also keeps the seven unpacked weights from forward to backward: with
torchao 0.7 both directions unpack in one graph, where common subexpressions are made once. The measured rows, of torch
2.4 and 2.5, leave no room for that, and it is not counted.
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

    def product(self, f: Tape, layer: Any, tokens: tuple[int, int], outputs: int, dtype: str) -> tuple[Tensor, ...]:
        """One matrix product; a 4-bit weight is laid down first, a LoRA branch adds its narrow tensor."""
        base = layer.base if isinstance(layer, LoraLinear) else layer
        dense = base.dequantised(f, dtype) if isinstance(base, Nf4Linear) else None
        out = f.new((*tokens, outputs), dtype)
        del dense
        if not isinstance(layer, LoraLinear):
            return (out,)
        narrow = f.new((*tokens, layer.a.shape[0]), dtype)
        branch = f.new((*tokens, outputs), dtype)
        del branch
        return out, narrow

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, h = x.shape
        dtype, at = x.dtype, (b, s)
        wide, narrow = self.heads * self.width, self.kv * self.width
        trainable = self.weights()
        recorded = f.needs(x, *trainable)
        kept: dict[str, Tensor] = {}

        def keep(name: str, tensor: Tensor, wanted: bool = True) -> Tensor:
            if recorded and wanted:
                kept[name] = tensor
            return tensor

        def product(name: str, outputs: int) -> Tensor:
            out, *branch = self.product(f, getattr(self, name), at, outputs, dtype)
            for tensor in branch:
                keep(f"{name} branch", tensor)
            return out

        keep("x", x)
        n1 = keep("n1", f.new((b, s, h), dtype), _needs_input(self.q, self.k, self.v))
        parts = [product("q", wide), product("k", narrow), product("v", narrow)]
        del n1
        q, k, v = [keep(name, f.new((b, s, wide), dtype)) for name in ("turned q", "turned k", "repeated v")]
        del parts
        out, lse = keep("out", f.new((b, s, wide), dtype)), keep("lse", f.new((b, self.heads, s), "fp32"))
        del q, k, v, lse
        projected = product("o", h)
        del out
        residual = keep("residual", f.new((b, s, h), dtype))
        del projected
        n2 = keep("n2", f.new((b, s, h), dtype), _needs_input(self.w1, self.w3))
        gate, up = keep("gate", product("w1", self.ffn)), keep("up", product("w3", self.ffn))
        del n2
        hidden = keep("hidden", f.new((b, s, self.ffn), dtype), _needs_input(self.w2))
        del gate, up
        down = product("w2", h)
        del hidden, residual
        result = f.new((b, s, h), dtype)
        del down
        if not recorded:
            return result
        names = tuple(kept)
        saved = f.save(*kept.values())
        kept.clear()
        return f.record(result, self.backward, (x, *trainable), saved, names)

    def weights(self) -> list[Weight]:
        """Trainable parameters of the layer."""
        found = [w for w in self.scales if w.trainable]
        for layer in (self.q, self.k, self.v, self.o, self.w1, self.w2, self.w3):
            found += _trained(layer)
        return found

    def backward(self, f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Inductor's order: a product's weight gradient, then its input's; what forward kept goes with its last use
        (ctx.maybe_clear_saved_tensors, runtime_wrappers.py), and all gradients are given back together.
        """
        b, s, h = grad.shape
        at, dtype, wide = (b, s), grad.dtype, self.heads * self.width
        held = dict(zip(node.meta, node.saved))
        node.saved = ()
        shapes = {id(weight): shape for weight, shape in zip(self.weights(), node.shapes[1:])}
        found: dict[int, Tensor] = {}

        def product(layer: Any, inputs: int, *used: str) -> Tensor:
            for weight in _trained(layer):
                shape, kind = shapes[id(weight)]
                found[id(weight)] = f.new(shape, kind, GRADIENTS)
            for name in used:
                held.pop(name, None)
            return self.product(f, layer, at, inputs, dtype)[0]

        hidden = product(self.w2, self.ffn, "hidden", "w2 branch")
        # Of the gradients of gate and up one is written over that of their product.
        other = f.new((b, s, self.ffn), dtype)
        del held["gate"], held["up"]
        back = product(self.w3, h, "w3 branch")
        del other
        second = product(self.w1, h, "n2", "w1 branch")
        del hidden, second
        residual = f.new((b, s, h), dtype)
        del back, held["residual"]
        attended = product(self.o, wide, "o branch")
        turned = [f.new((b, s, wide), dtype) for _ in range(3)]
        delta = f.new((b, self.heads, s), "fp32")
        del attended, delta
        for name in ("turned q", "turned k", "repeated v", "out", "lse"):
            del held[name]
        narrow = [f.new((b, s, self.kv * self.width), dtype) for _ in range(2)]
        del turned[1:]
        inputs = [product(layer, h, f"{name} branch") for name, layer in (("v", self.v), ("k", self.k), ("q", self.q))]
        del narrow, turned
        held.pop("n1", None)
        out = f.new((b, s, h), dtype)
        del inputs, residual
        for scale in self.scales:
            if scale.trainable:
                found[id(scale)] = f.new(*shapes[id(scale)], GRADIENTS)
        return (out, *[found[id(weight)] for weight in self.weights()])


def _trained(layer: Any) -> list[Weight]:
    if isinstance(layer, LoraLinear):
        return [layer.a, layer.b]
    if isinstance(layer, Nf4Linear):
        return []
    return [w for w in (layer.weight, layer.bias) if w is not None and w.trainable]


def _needs_input(*layers: Any) -> bool:
    # Whether a weight gradient of one of these products is taken: then its input is laid down in backward.
    for layer in layers:
        if isinstance(layer, LoraLinear) or (not isinstance(layer, Nf4Linear) and layer.weight.trainable):
            return True
    return False
