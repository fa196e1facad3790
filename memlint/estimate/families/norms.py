"""Normalisation layers as the model types of the Llama shape write them.

Sources: transformers 5.24 models/<type>/modeling_<type>.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.ops.basic import cast, cat, shift
from memlint.estimate.ops.norm import fused_rms_norm, layer_norm, rms_norm
from memlint.estimate.ops.views import split


class Norm:
    """A normalisation layer of one of the styles of ``Shape.norm`` (families/shapes.py)."""

    __slots__ = ("bias", "style", "weight")

    def __init__(self, b: Build, name: str, width: int | tuple[int, ...], style: str) -> None:
        self.style = style
        shape = (width,) if isinstance(width, int) else width
        self.weight = None if style in ("plain", "unit") else b.parameter(f"{name}.weight", *shape)
        self.bias = b.parameter(f"{name}.bias", *shape) if style in ("layer", "layer1p") else None

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        if self.style == "plain":
            # OlmoLayerNorm: F.layer_norm in fp32, cast back
            return cast(f, layer_norm(f, cast(f, x, "fp32"), None, None), x.dtype)
        if self.style == "layer":
            return layer_norm(f, x, self.weight, self.bias)
        if self.style == "layer1p":
            return self._one_plus(f, x)
        if self.style == "unit":
            return rms_norm(f, x, None, style="gemma")
        if "rms_norm" in env.liger:
            return fused_rms_norm(f, x, self.weight)
        return rms_norm(f, x, self.weight, style=self.style)

    def _one_plus(self, f: Tape, x: Tensor) -> Tensor:
        """NemotronLayerNorm1P: ``weight + 1``, everything in autocast's dtype and the norm outside autocast."""
        assert self.weight is not None and self.bias is not None
        weight, bias = shift(f, self.weight), self.bias.view(*self.bias.shape)
        outer = f.autocast
        if outer is not None:
            x, weight, bias = cast(f, x, outer), cast(f, weight, outer), cast(f, bias, outer)
            f.autocast = None
        out = layer_norm(f, x, weight, bias)
        f.autocast = outer
        return out


class HeadNorms:
    """StableLmLayerNormPerHead: a layer norm without bias for each head, their outputs concatenated."""

    def __init__(self, b: Build, name: str, heads: int, width: int) -> None:
        self.weights = [b.parameter(f"{name}.norms.{head}.weight", width) for head in range(heads)]

    def __call__(self, f: Tape, env: Env, x: Tensor) -> Tensor:
        """x [B, h, S, D] -> the same shape."""
        rows, heads, length, width = x.shape
        parts = split(f, x, *[(rows, 1, length, width)] * heads)
        return cat(f, *[layer_norm(f, part, weight, None) for part, weight in zip(parts, self.weights)], shape=x.shape)
