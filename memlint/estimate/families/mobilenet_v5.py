"""MobileNet V5, Gemma 3n's image tower: its blocks, its stages, and how the last two are brought to one size.

Source: timm 1.0.31 models/mobilenetv5.py, models/_efficientnet_blocks.py.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.mobilenet_parts import Attention, Conv, Norm, Normed, pad_backward, scaled
from memlint.estimate.ops.basic import add, cat
from memlint.estimate.ops.images import pooled
from memlint.estimate.stack import Stack
from memlint.job import Checkpointing

Spec = tuple[str, int, int, int, int]

STEM = 64
MIDDLE = [("uir", 5, 0, 1, 4)] * 7 + [("uir", 0, 0, 1, 1)]
STAGES: tuple[tuple[int, tuple[int, int] | None, list[Spec]], ...] = (
    (128, None, [("er", 3, 0, 2, 4), ("er", 3, 0, 1, 4), ("er", 3, 0, 1, 4)]),
    (
        256,
        None,
        [
            ("uir", 3, 5, 2, 6),
            ("uir", 5, 0, 1, 4),
            ("uir", 3, 0, 1, 4),
            ("uir", 5, 0, 1, 4),
            ("uir", 3, 0, 1, 4),
        ],
    ),
    (640, (12, 64), [("uir", 5, 5, 2, 6), *MIDDLE, *[("mqa", 3, 0, 2, 0), ("uir", 0, 0, 1, 2)] * 14]),
    (1280, (16, 96), [("uir", 5, 5, 2, 6), *[("mqa", 3, 0, 1, 0), ("uir", 0, 0, 1, 2)] * 19]),
)
"""Stages of mobilenetv5_300m_enc: channels, heads and their width, and blocks: kind, first and middle kernel, stride
(of keys and values in attention), expansion.
"""
OUT, SIDE, INPUT = 2048, 16, 768
"""Channels and side of the result, side of the image (msfa_output_resolution, input_size)."""


class EdgeResidual:
    """EdgeResidual: a whole convolution that expands, and one that projects."""

    def __init__(self, b: Build, name: str, inputs: int, outputs: int, spec: Spec) -> None:
        _, kernel, _, stride, expansion = spec
        inner = inputs * expansion
        self.skips = inputs == outputs and stride == 1
        self.expand = Conv(b, f"{name}.conv_exp", inputs, inner, kernel, stride)
        self.first = Norm(b, f"{name}.bn1", inner, act=True)
        self.project = Conv(b, f"{name}.conv_pwl", inner, outputs, 1, 1)
        self.second = Norm(b, f"{name}.bn2", outputs)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        shortcut = x
        x = self.expand(f, x)
        x = self.first(f, x)
        x = self.project(f, x)
        x = self.second(f, x)
        return add(f, x, shortcut) if self.skips else x


class Inverted:
    """UniversalInvertedResidual: an expansion between convolutions of each channel."""

    def __init__(
        self,
        b: Build,
        name: str,
        inputs: int,
        outputs: int,
        spec: Spec,
        *,
        plain: bool = False,
    ) -> None:
        _, start, middle, stride, expansion = spec
        inner = inputs * expansion
        self.skips = inputs == outputs and stride == 1 and not plain
        own = 1 if middle else stride
        self.start = Normed(b, f"{name}.dw_start", inputs, inputs, start, own, apart=True) if start else None
        self.expand = Normed(b, f"{name}.pw_exp", inputs, inner, act=True)
        self.middle = None
        if middle:
            self.middle = Normed(b, f"{name}.dw_mid", inner, inner, middle, stride, apart=True, act=True)
        self.project = Normed(b, f"{name}.pw_proj", inner, outputs)
        self.scale = None if plain else b.parameter(f"{name}.layer_scale.gamma", outputs)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, h, w] -> [B, C', h', w']."""
        shortcut = x
        if self.start is not None:
            x = self.start(f, x)
        x = self.expand(f, x)
        if self.middle is not None:
            x = self.middle(f, x)
        x = self.project(f, x)
        x = scaled(f, x, self.scale)
        x = add(f, x, shortcut) if self.skips else x
        del shortcut
        return x


class Fusion:
    """MobileNetV5MultiScaleFusionAdapter: the last two stages, brought to one size."""

    def __init__(self, b: Build, name: str) -> None:
        self.inputs = STAGES[-2][0] + STAGES[-1][0]
        self.ffn = Inverted(b, f"{name}.ffn", self.inputs, OUT, ("uir", 0, 0, 1, 2), plain=True)
        self.norm = Norm(b, f"{name}.norm", OUT)

    def __call__(self, f: Tape, fine: Tensor, coarse: Tensor) -> Tensor:
        """See the class."""
        rows, _, side, _ = fine.shape
        recorded = f.needs(coarse)
        larger = f.new((rows, coarse.shape[1], side, side), coarse.dtype)
        if recorded:
            f.record(larger, pad_backward, (coarse,), (), coarse.shape)
        x = cat(f, fine, larger, shape=(rows, self.inputs, side, side))
        out = self.ffn(f, x)
        out = pooled(f, out, (rows, OUT, SIDE, SIDE))
        return self.norm(f, out)


class MobileNetV5:
    """MobileNetV5Encoder: pixels [B, 3, 768, 768] -> [B, 2048, 16, 16]."""

    def __init__(self, b: Build, env: Env, name: str) -> None:
        self.env = env
        self.stem = Normed(b, f"{name}.conv_stem", 3, STEM, 3, 2, act=True)
        self.stem.conv.bias = b.parameter(f"{name}.conv_stem.conv.bias", STEM)
        self.stages: list[Stack] = []
        inputs = STEM
        for stage, (width, heads, specs) in enumerate(STAGES):
            kinds = [(spec, width if index else inputs) for index, spec in enumerate(specs)]
            at = f"{name}.blocks.{stage}"
            self.stages.append(Stack(b, kinds, _maker(at, width, heads)))
            inputs = width
        self.fusion = Fusion(b, f"{name}.msfa")

    def __call__(self, f: Tape, pixels: Tensor) -> Tensor:
        """See the class."""
        options = self.env.checkpointing
        # timm's blocks are no layers of transformers: activation checkpointing passes them by.
        self.env.checkpointing = Checkpointing()
        x = self.stem(f, pixels)
        ends = []
        for stack in self.stages:
            x = stack(f, self.env, x)
            ends.append(x)
        del x
        self.env.checkpointing = options
        return self.fusion(f, *ends[-2:])


def _maker(name: str, width: int, heads: tuple[int, int] | None) -> Callable[[Build, Any, int], Any]:
    def make(b: Build, kind: tuple[Spec, int], index: int) -> Any:
        (spec, inputs), at = kind, f"{name}.{index}"
        if spec[0] == "mqa":
            assert heads is not None
            return Attention(b, at, width, heads, spec[3])
        return (EdgeResidual if spec[0] == "er" else Inverted)(b, at, inputs, width, spec)

    return make
