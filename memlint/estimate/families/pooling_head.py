"""SigLIP's pooling head: one learned query attends to all patches (SiglipMultiheadAttentionPoolingHead).

Sources: transformers 5.24 models/siglip/modeling_siglip.py; torch 2.13 nn/functional.py multi_head_attention_forward.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, copy, scale, slice_of
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.linear import linear, matmul, to_autocast
from memlint.estimate.ops.views import split
from memlint.models.architecture import Architecture


class PoolingHead:
    """hidden states [B, N, H] -> [B, H]."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = self.width = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.probe = b.parameter(f"{name}.probe", 1, 1, h)
        self.weight = b.parameter(f"{name}.attention.in_proj_weight", 3 * h, h)
        self.bias = b.parameter(f"{name}.attention.in_proj_bias", 3 * h)
        self.out = b.linear(f"{name}.attention.out_proj", h, h, True)
        self.norm = LayerNorm(b, f"{name}.layernorm", h)
        inner = int(a.get("intermediate_size"))
        self.up, self.down = b.linear(f"{name}.mlp.fc1", h, inner, True), b.linear(f"{name}.mlp.fc2", inner, h, True)

    def attend(self, f: Tape, x: Tensor) -> Tensor:
        """nn.MultiheadAttention of the probe over x [B, N, H], with weights asked for: the composed form."""
        rows, count, h = x.shape
        width = h // self.heads
        probe = copy(f, expand(f, self.probe, (rows, 1, h)))
        query_weight, pair_weight = split(f, self.weight, (h, h), (2 * h, h))
        query_bias, pair_bias = split(f, self.bias, (h,), (2 * h,))
        q = linear(f, probe, query_weight, query_bias)
        # The patches come transposed to [N, B, H], which F.linear copies; keys and values are laid out anew after it.
        given = to_autocast(f, x)  # held until linear has returned, as autocast's argument
        pair = linear(f, copy(f, given), pair_weight, pair_bias)
        del given
        pair = copy(f, pair)
        k = slice_of(f, pair, (rows, self.heads, count, width))
        v = slice_of(f, pair, (rows, self.heads, count, width))
        q = scale(f, q.view(rows, self.heads, 1, width))
        weights = softmax(f, matmul(f, q, k, count))
        mixed = copy(f, matmul(f, weights, v, width))
        result: Tensor = self.out(f, mixed.view(rows, 1, h))
        return result

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """See the class."""
        rows, _, h = x.shape
        x = self.attend(f, x)
        residual = x
        x = self.norm(f, x)
        x = self.up(f, x)
        x = activate(f, x, self.act)
        x = add(f, residual, self.down(f, x))
        return slice_of(f, x, (rows, h))
