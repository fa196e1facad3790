"""Parts of MobileNet V5: convolutions, norms over channels, and attention whose heads share one key.

Source: timm 1.0.31 models/_efficientnet_blocks.py, layers/attention2d.py, layers/fast_norm.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import activation, add, cast, copy, mul, rsqrt, scale, shift, square
from memlint.estimate.ops.convolutions import mean_over
from memlint.estimate.ops.images import convolution
from memlint.estimate.ops.linear import matmul, to_autocast


def pad_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    """constant_pad_nd_backward: the gradient cut to size, a new tensor."""
    return (f.new(node.meta, grad.dtype),)


def padded(f: Tape, x: Tensor, more: int) -> Tensor:
    """``F.pad`` with zeros at two edges: a new tensor."""
    recorded = f.needs(x)
    rows, channels, side, _ = x.shape
    out = f.new((rows, channels, side + more, side + more), x.dtype)
    return f.record(out, pad_backward, (x,), (), x.shape) if recorded else out


class Conv:
    """Conv2d, or Conv2dSame where it strides: its input is padded first."""

    def __init__(
        self, b: Build, name: str, inputs: int, outputs: int, kernel: int, stride: int, *, apart: bool = False
    ) -> None:
        self.outputs, self.kernel, self.stride = outputs, kernel, stride
        self.weight = b.parameter(f"{name}.weight", outputs, 1 if apart else inputs, kernel, kernel)
        self.bias: Any = None

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        side = -(-x.shape[2] // self.stride)
        if self.stride > 1:
            x = padded(f, x, max(0, (side - 1) * self.stride + self.kernel - x.shape[2]))
        return convolution(f, x, self.weight, self.bias, (x.shape[0], self.outputs, side, side))


class Norm:
    """RmsNorm2d over the channels, and RmsNormAct2d with ``act``."""

    def __init__(self, b: Build, name: str, width: int, *, act: bool = False) -> None:
        self.weight, self.act, self.width = b.parameter(f"{name}.weight", width), act, width

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> the same shape."""
        rows, _, high, wide = x.shape
        variance = square(f, x if f.autocast is None else cast(f, x, "fp32"))
        variance = mean_over(f, variance, (rows, 1, high, wide))
        x = mul(f, x, rsqrt(f, shift(f, variance)))
        weight = Tensor((1, self.width, 1, 1), self.weight.dtype, self.weight.storage, self.weight.node)
        x = mul(f, x, weight)
        del variance
        return activation(f, x) if self.act else x


class Normed:
    """ConvNormAct."""

    def __init__(
        self,
        b: Build,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        apart: bool = False,
        act: bool = False,
    ) -> None:
        self.conv = Conv(b, f"{name}.conv", inputs, outputs, kernel, stride, apart=apart)
        self.norm = Norm(b, f"{name}.bn", outputs, act=act)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        x = self.conv(f, x)
        return self.norm(f, x)


def scaled(f: Tape, x: Tensor, gamma: Tensor | None) -> Tensor:
    """LayerScale2d."""
    if gamma is None:
        return x
    return mul(f, x, Tensor((1, x.shape[1], 1, 1), gamma.dtype, gamma.storage, gamma.node))


def _shared_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # expand: the gradient summed over the heads.
    return (f.new(node.meta, grad.dtype),)


def for_heads(f: Tape, x: Tensor, heads: int) -> Tensor:
    """``expand().reshape()`` inside matmul: x [B, 1, M, d] for every head, a copy where there are several rows."""
    rows, _, places, width = x.shape
    recorded = f.needs(x)
    shape = (rows, heads, places, width)
    out = f.new(shape, x.dtype) if rows > 1 else Tensor(shape, x.dtype, x.storage)
    return f.record(out, _shared_backward, (x,), (), x.shape) if recorded else out


class Attention:
    """MobileAttention with MultiQueryAttention2d: one key and one value for all heads."""

    def __init__(self, b: Build, name: str, width: int, heads: tuple[int, int], stride: int) -> None:
        self.heads, self.dim = heads
        self.norm = Norm(b, f"{name}.norm", width)
        at = f"{name}.attn"
        self.query = Conv(b, f"{at}.query.proj", width, self.heads * self.dim, 1, 1)
        self.pair: list[tuple[Any, Any, Conv]] = []
        for leaf in ("key", "value"):
            down = norm = None
            if stride > 1:
                down = Conv(b, f"{at}.{leaf}.down_conv", width, width, 3, stride, apart=True)
                norm = Norm(b, f"{at}.{leaf}.norm", width)
            self.pair.append((down, norm, Conv(b, f"{at}.{leaf}.proj", width, self.dim, 1, 1)))
        self.out = Conv(b, f"{at}.output.proj", self.heads * self.dim, width, 1, 1)
        self.scale = b.parameter(f"{name}.layer_scale.gamma", width)

    def shared(self, f: Tape, x: Tensor, layers: tuple[Any, Any, Conv]) -> Tensor:
        """Keys or values [B, 1, M, d]."""
        down, norm, project = layers
        if down is not None:
            x = norm(f, down(f, x))
        x = project(f, x)
        rows, width, side, _ = x.shape
        return copy(f, x, (rows, 1, side * side, width))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> the same shape."""
        shortcut = x
        x = self.norm(f, x)
        x = self.attend(f, x)
        x = scaled(f, x, self.scale)
        x = add(f, x, shortcut)
        del shortcut
        return x

    def attend(self, f: Tape, x: Tensor) -> Tensor:
        """MultiQueryAttention2d; of PyTorch's kernels only the composed one takes one key for many heads."""
        rows, _, side, _ = x.shape
        q = copy(f, self.query(f, x), (rows, self.heads, side * side, self.dim))
        k, v = self.shared(f, x, self.pair[0]), self.shared(f, x, self.pair[1])
        o = self.composed(f, q, k, v)
        o = copy(f, o, (rows, side, side, self.heads * self.dim))
        o = copy(f, o, (rows, self.heads * self.dim, side, side))
        return self.out(f, o)

    def composed(self, f: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """_scaled_dot_product_attention_math (attention.cpp, torch 2.13): half precision is computed in fp32."""
        q, k, v = to_autocast(f, q), to_autocast(f, k), to_autocast(f, v)
        dtype, autocast, f.autocast = q.dtype, f.autocast, None
        q, k, v = cast(f, q, "fp32"), cast(f, k, "fp32"), cast(f, v, "fp32")
        left, right = scale(f, q), scale(f, k)
        weights = matmul(f, left, for_heads(f, right, self.heads), k.shape[2])
        weights = softmax(f, weights)
        out = cast(f, matmul(f, weights, for_heads(f, v, self.heads), self.dim), dtype)
        f.autocast = autocast
        return out
