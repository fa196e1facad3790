"""Networks of convolutions under a classifier: ResNet, ConvNeXt and its second version.

They know no activation checkpointing. Sources: transformers 5.24 models/{resnet,convnext,convnextv2}/modeling_*.py.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, mul, scale, shift
from memlint.estimate.ops.convolutions import batch_norm, max_pool, mean_over, vector_norm
from memlint.estimate.ops.gather import divide
from memlint.estimate.ops.images import convolution
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.ops.views import add_in_place
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

SIDE = 224
"""Side of the square that the published processors crop (facebook/convnext-*, microsoft/resnet-*); ResNet's config
states none."""


class Convolution:
    """nn.Conv2d over squares."""

    def __init__(
        self,
        b: Build,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        *,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        self.outputs, self.kernel, self.stride = outputs, kernel, stride
        self.weight = b.parameter(f"{name}.weight", outputs, inputs // groups, kernel, kernel)
        self.bias = b.parameter(f"{name}.bias", outputs) if bias else None

    def __call__(self, f: Tape, x: Tensor, padding: int = 0) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        side = (x.shape[2] + 2 * padding - self.kernel) // self.stride + 1
        return convolution(f, x, self.weight, self.bias, (x.shape[0], self.outputs, side, side))


class Normed:
    """ResNetConvLayer: a convolution, a batch norm and, with ``act``, an activation."""

    def __init__(
        self, b: Build, name: str, inputs: int, outputs: int, kernel: int, stride: int, act: str | None
    ) -> None:
        self.act, self.padding = act, kernel // 2
        self.convolution = Convolution(b, f"{name}.convolution", inputs, outputs, kernel, stride, bias=False)
        self.weight = b.parameter(f"{name}.normalization.weight", outputs)
        self.bias = b.parameter(f"{name}.normalization.bias", outputs)
        for size in (outputs, outputs):
            b.buffer(size * DTYPE_BYTES[b.training.precision.weights])
        b.buffer(8)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        x = self.convolution(f, x, self.padding)
        x = batch_norm(f, x, self.weight, self.bias)
        return x if self.act is None else activate(f, x, self.act)


class Residual:
    """ResNetBasicLayer, or ResNetBottleNeckLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, inputs: int, outputs: int, stride: int) -> None:
        self.act = str(a.get("hidden_act", "relu"))
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = Normed(b, f"{name}.shortcut", inputs, outputs, 1, stride, None)
        at = f"{name}.layer"
        shapes: tuple[tuple[int, int, int, int, str | None], ...]
        if a.get("layer_type", "bottleneck") != "bottleneck":
            # Both take ResNetConvLayer's own activation, relu.
            shapes = ((inputs, outputs, 3, stride, "relu"), (outputs, outputs, 3, 1, None))
        else:
            inner, early = outputs // 4, bool(a.get("downsample_in_bottleneck", False))
            shapes = (
                (inputs, inner, 1, stride if early else 1, "relu"),
                (inner, inner, 3, 1 if early else stride, "relu"),
                (inner, outputs, 1, 1, None),
            )
        self.layers = [Normed(b, f"{at}.{i}", *shape) for i, shape in enumerate(shapes)]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        residual = x
        for layer in self.layers:
            x = layer(f, x)
        if self.shortcut is not None:
            residual = self.shortcut(f, residual)
        x = add_in_place(f, x, residual)
        x = activate(f, x, self.act)
        del residual
        return x


class ResNet:
    """ResNetModel: pixels -> features of the last stage, and their mean [B, C]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        widths, depths = a.get("hidden_sizes"), a.get("depths")
        first, act = int(a.get("embedding_size", 64)), str(a.get("hidden_act", "relu"))
        self.channels, self.width = int(a.get("num_channels", 3)), int(widths[-1])
        self.stem = Normed(b, "resnet.embedder.embedder", self.channels, first, 7, 2, act)
        self.blocks: list[Any] = []
        inputs = first
        for stage, (width, depth) in enumerate(zip(widths, depths)):
            stride = 2 if stage or a.get("downsample_in_first_stage", False) else 1
            for index in range(int(depth)):
                name = f"resnet.encoder.stages.{stage}.layers.{index}"
                self.blocks.append(Residual(a, b, name, inputs, int(width), 1 if index else stride))
                inputs = int(width)

    def __call__(self, f: Tape, pixels: Tensor) -> tuple[Tensor, Any]:
        """See the class."""
        x = self.stem(f, pixels)
        x = max_pool(f, x, 3, 2, 1)
        for block in self.blocks:
            x = block(f, x)
        return mean_over(f, x, x.shape[:2]), x


class Response:
    """ConvNextV2GRN: global response normalisation of x [B, h, w, C]."""

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight, self.bias = (b.parameter(f"{name}.{n}", 1, 1, 1, width) for n in ("weight", "bias"))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """See the class."""
        rows, _, _, width = x.shape
        whole = vector_norm(f, x, (rows, 1, 1, width))
        # global / (mean + 1e-6)
        normed = divide(f, whole, shift(f, mean_over(f, whole, (rows, 1, 1, 1))))
        return add(f, add(f, mul(f, self.weight, mul(f, x, normed)), self.bias), x)


class Block:
    """ConvNextLayer: a convolution of each channel, then a feed-forward of each place."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int, rate: float) -> None:
        self.act, self.drops, self.width = str(a.get("hidden_act", "gelu")), rate > 0, width
        self.depthwise = Convolution(b, f"{name}.dwconv", width, width, 7, 1, groups=width)
        self.norm = LayerNorm(b, f"{name}.layernorm", width)
        self.up = b.linear(f"{name}.pwconv1", width, 4 * width, True)
        second = a.model_type == "convnextv2"
        self.response = Response(b, f"{name}.grn", 4 * width) if second else None
        self.down = b.linear(f"{name}.pwconv2", 4 * width, width, True)
        scaled = not second and float(a.get("layer_scale_init_value", 1e-6)) > 0
        self.scale = b.parameter(f"{name}.layer_scale_parameter", width) if scaled else None

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> the same shape."""
        residual, (rows, width, side, _) = x, x.shape
        x = self.depthwise(f, x, 3)
        x = x.view(rows, side, side, width)
        x = self.norm(f, x)
        x = self.up(f, x)
        x = activate(f, x, self.act)
        if self.response is not None:
            x = self.response(f, x)
        x = self.down(f, x)
        if self.scale is not None:
            x = mul(f, self.scale, x)
        x = x.view(rows, width, side, side)
        dropped = mul(f, scale(f, x), f.new((rows, 1, 1, 1), x.dtype)) if self.drops else x
        return add(f, residual, dropped)


class ConvNext:
    """ConvNextModel: pixels -> features of the last stage, and the norm of their mean [B, C]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        name, widths = a.model_type, [int(width) for width in a.get("hidden_sizes")]
        depths = [int(depth) for depth in a.get("depths")]
        self.channels, self.width = int(a.get("num_channels", 3)), widths[-1]
        patch, total = int(a.get("patch_size", 4)), sum(depths)
        self.patches = Convolution(b, f"{name}.embeddings.patch_embeddings", self.channels, widths[0], patch, patch)
        self.first_norm = LayerNorm(b, f"{name}.embeddings.layernorm", widths[0])
        rate = float(a.get("drop_path_rate", 0.0))
        self.stages: list[tuple[Any, list[Block]]] = []
        done = 0
        for stage, depth in enumerate(depths):
            at, down = f"{name}.encoder.stages.{stage}", None
            if stage:
                norm = LayerNorm(b, f"{at}.downsampling_layer.0", widths[stage - 1])
                down = norm, Convolution(b, f"{at}.downsampling_layer.1", widths[stage - 1], widths[stage], 2, 2)
            rates = [rate * (done + index) / max(1, total - 1) for index in range(depth)]
            blocks = [Block(a, b, f"{at}.layers.{i}", widths[stage], rates[i]) for i in range(depth)]
            self.stages.append((down, blocks))
            done += depth
        self.norm = LayerNorm(b, f"{name}.layernorm", widths[-1])

    def __call__(self, f: Tape, pixels: Tensor) -> tuple[Tensor, Any]:
        """See the class."""
        x = self.patches(f, pixels)
        x = _normed(f, self.first_norm, x)
        embedded = x
        for down, blocks in self.stages:
            given = x
            if down is not None:
                x = _normed(f, down[0], x)
                x = down[1](f, x)
            for block in blocks:
                x = block(f, x)
            del given
        del embedded
        mean = mean_over(f, x, x.shape[:2])
        pooled = self.norm(f, mean)
        return pooled, x


def _normed(f: Tape, norm: LayerNorm, x: Tensor) -> Tensor:
    """ConvNextLayerNorm over the channels of x [B, C, h, w]."""
    rows, width, side, _ = x.shape
    return norm(f, x.view(rows, side, side, width)).view(*x.shape)


BODIES: dict[str, Any] = {"resnet": ResNet, "convnext": ConvNext, "convnextv2": ConvNext}
"""model_type -> its body."""


class Classifier:
    """The body and a linear layer over its vector."""

    uncast = True
    """Pixels come in the dtype of the weights: nothing casts them before the first convolution."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.tower: Any = BODIES[a.model_type](a, b, env)
        size = a.get("image_size") or SIDE
        self.side = isqrt(b.training.image_pixels) if b.training.image_pixels else int(size)
        name = "classifier.1" if a.model_type == "resnet" else "classifier"
        self.classifier = b.linear(name, self.tower.width, labels_of(a), True)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the outputs hold."""
        assert batch.pixels is not None
        pooled, x = self.tower(f, batch.pixels)
        return self.classifier(f, pooled), pooled, x

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)
