"""Swin: attention within windows that are shifted in every other layer, over four stages of patches merged four to one.

Source: transformers 5.24 models/swin/modeling_swin.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.vision_tower import side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cat, copy, dropout, mul, scale, slice_of
from memlint.estimate.ops.convolutions import mean_over
from memlint.estimate.ops.gather import index_rows
from memlint.estimate.ops.images import convolution, requiring_grad
from memlint.estimate.ops.loss import cross_entropy
from memlint.models.architecture import Architecture
from memlint.records import dataclass


def _anew(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def moved(f: Tape, x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """``torch.roll`` or ``F.pad``: a new tensor, and so is its gradient."""
    recorded = f.needs(x)
    out = f.new(shape or x.shape, x.dtype)
    return f.record(out, _anew, (x,), (), x.shape) if recorded else out


class Attention:
    """SwinAttention."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int, heads: int, window: int, env: Env) -> None:
        self.env, self.heads, self.window = env, heads, window
        self.dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        bias = bool(a.get("qkv_bias", True))
        self.q, self.k, self.v = (b.linear(f"{name}.{n}_proj", width, width, bias) for n in "qkv")
        self.out = b.linear(f"{name}.o_proj", width, width, True)
        at = f"{name}.relative_position_bias.relative_position_bias_table"
        self.table = b.parameter(at, (2 * window - 1) ** 2, heads)
        b.buffer(window**4 * 8)

    def biases(self, f: Tape) -> Tensor:
        """SwinRelativePositionBias: [1, heads, w^2, w^2]."""
        area = self.window**2
        chosen = index_rows(f, self.table, Tensor((area * area,), "int64", None))
        return copy(f, chosen, (1, self.heads, area, area))

    def masked(self, f: Tape, rows: int, mask: Tensor | None) -> Tensor:
        """Biases, and where windows are shifted what they must not see."""
        bias = self.biases(f)
        if mask is None:
            return bias
        windows, area, _ = mask.shape
        wide = copy(f, mask, (rows, 1, area, area)) if rows > windows else mask.view(rows, 1, area, area)
        return add(f, bias, wide)

    def __call__(self, f: Tape, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [B * windows, w^2, C] -> the same shape, and its weights under eager."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(project(f, x), self.heads, width) for project in (self.q, self.k, self.v))
        combined = self.masked(f, x.shape[0], mask)
        out, weights = attend(f, self.env, q, k, v, combined, self.dropout, causal=False)
        return self.out(f, out), weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a stage works on."""

    width: int
    heads: int
    grid: tuple[int, int]
    """Patches of an image, high and wide."""


class Layer:
    """SwinLayer."""

    attention: Any = Attention
    names = ("mlp.fc1", "mlp.fc2")

    def __init__(self, a: Architecture, b: Build, name: str, part: Part, shifted: bool, rate: float, env: Env) -> None:
        width, self.grid = part.width, part.grid
        self.env, self.act, self.drops = env, str(a.get("hidden_act", "gelu")), rate > 0
        window = int(a.get("window_size", 7))
        self.shift = window // 2 if shifted and min(self.grid) > window else 0
        self.window = min(window, *self.grid)
        self.padded = tuple(-(-n // self.window) * self.window for n in self.grid)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        self.attend = self.attention(a, b, f"{name}.attention", width, part.heads, window, env)
        self.norm1 = LayerNorm(b, f"{name}.layernorm_before", width)
        self.norm2 = LayerNorm(b, f"{name}.layernorm_after", width)
        inner = int(float(a.get("mlp_ratio", 4.0)) * width)
        self.up = b.linear(f"{name}.{self.names[0]}", width, inner, True)
        self.down = b.linear(f"{name}.{self.names[1]}", inner, width, True)

    def mask(self, f: Tape, dtype: str) -> Tensor | None:
        """get_attn_mask: [windows, w^2, w^2]."""
        if not self.shift:
            return None
        area, count = self.window**2, self.windows
        plain = f.new((count, area, area), dtype)
        different, same = f.new(plain.shape, "bool"), f.like(plain)
        out = f.like(plain)
        del plain, different, same
        return out

    @property
    def windows(self) -> int:
        """Windows of one image."""
        return self.padded[0] * self.padded[1] // self.window**2

    def parted(self, f: Tape, x: Tensor) -> Tensor:
        """window_partition: windows one after another."""
        x = copy(f, x) if self.windows > 1 else x
        return x.view(x.shape[0] * self.windows, self.window**2, x.shape[-1])

    def joined(self, f: Tape, x: Tensor, rows: int) -> Tensor:
        """window_reverse."""
        x = copy(f, x) if self.windows > 1 else x
        return x.view(rows, *self.padded, x.shape[-1])

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, C] -> the same shape."""
        rows, count, width = x.shape
        shortcut = x
        x = self.norm1(f, x)
        x = moved(f, x.view(rows, *self.grid, width), (rows, *self.padded, width))
        windows = self.parted(f, moved(f, x) if self.shift else x)
        mask = self.mask(f, x.dtype)
        output, weights = self.attend(f, windows, mask)
        output = dropout(f, output, self.dropout)
        attended = self.joined(f, output, rows)
        if self.shift:
            attended = moved(f, attended)
        if self.padded != self.grid:
            attended = copy(f, slice_of(f, attended, (rows, *self.grid, width)))
        attended = attended.view(rows, count, width)
        x = add(f, shortcut, self.dropped(f, attended))
        residual = x
        x = self.norm2(f, x)
        x = self.fed(f, x)
        x = add(f, dropout(f, x, self.dropout), residual)
        self.env.left = weights
        del windows, mask, output, attended, shortcut, residual, weights
        return x

    def dropped(self, f: Tape, x: Tensor) -> Tensor:
        """SwinDropPath."""
        return mul(f, scale(f, x), f.new((x.shape[0], 1, 1), x.dtype)) if self.drops else x

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """SwinMLP."""
        x = self.up(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.down(f, x)
        return result


class Merging:
    """SwinPatchMerging."""

    def __init__(self, b: Build, name: str, width: int, grid: tuple[int, int]) -> None:
        self.grid = grid
        self.reduce = b.linear(f"{name}.reduction", 4 * width, 2 * width)
        self.norm = LayerNorm(b, f"{name}.norm", 4 * width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, C] -> [B, N / 4, 2 C]."""
        rows, width = x.shape[0], x.shape[-1]
        high, wide = halved(self.grid)
        x = x.view(rows, *self.grid, width)
        if (2 * high, 2 * wide) != self.grid:
            x = moved(f, x, (rows, 2 * high, 2 * wide, width))
        part = (rows, high, wide, width)
        parts = [slice_of(f, slice_of(f, x, (rows, high, 2 * wide, width)), part) for _ in range(4)]
        x = cat(f, *parts, shape=(rows, high * wide, 4 * width))
        del parts
        x = self.norm(f, x)
        result: Tensor = self.reduce(f, x)
        return result


def halved(grid: tuple[int, int]) -> tuple[int, int]:
    """Patches after merging."""
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2


class Stage:
    """SwinStage: its layers, and what merges their patches."""

    layer: Any = Layer

    def __init__(
        self, a: Architecture, b: Build, name: str, part: Part, rates: list[float], last: bool, env: Env
    ) -> None:
        self.env = env
        self.layers = [
            self.layer(a, b, f"{name}.blocks.{i}", part, i % 2 == 1, rate, env) for i, rate in enumerate(rates)
        ]
        self.merging = None if last else Merging(b, f"{name}.downsample", part.width, part.grid)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, C] -> [B, N / 4, 2 C]; a copy of it laid out as a map is made in any case."""
        env, left = self.env, None
        for index, layer in enumerate(self.layers):
            x = env.call(f, layer, index, x)
            left, env.left = env.left, None
        before = x
        if self.merging is not None:
            x = self.merging(f, x)
        env.left = copy(f, x)
        del before, left
        return x


class Tower:
    """SwinModel: pixels [B, C, h, w] -> normed states [B, N, C]."""

    stage: Any = Stage
    normed = True

    def __init__(self, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.env = env
        size, self.patch = a.get("image_size", 224), side_of(a.get("patch_size", 4))
        self.size = (int(size[0]), int(size[1])) if isinstance(size, (list, tuple)) else (int(size), int(size))
        """Pixels of an image, high and wide."""
        self.image = self.size[0]
        self.grid = -(-self.size[0] // self.patch), -(-self.size[1] // self.patch)
        self.channels, width = int(a.get("num_channels", 3)), int(a.get("embed_dim", 96))
        at, count = f"{name}.embeddings", (self.size[0] // self.patch) * (self.size[1] // self.patch)
        self.width = width
        self.weight = b.parameter(f"{at}.patch_embeddings.projection.weight", width, self.channels, *2 * [self.patch])
        self.bias = b.parameter(f"{at}.patch_embeddings.projection.bias", width)
        placed = bool(a.get("use_absolute_embeddings", False))
        self.places = b.parameter(f"{at}.position_embeddings", 1, count, width) if placed else None
        self.first_norm = LayerNorm(b, f"{at}.norm", width)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        depths = [int(n) for n in a.get("depths", (2, 2, 6, 2))]
        heads = [int(n) for n in a.get("num_heads", (3, 6, 12, 24))]
        rate, total, grid = float(a.get("drop_path_rate", 0.1)), sum(depths), self.grid
        self.stages = []
        for stage, depth in enumerate(depths):
            first = sum(depths[:stage])
            rates = [rate * (first + i) / max(1, total - 1) for i in range(depth)]
            at, last = f"{name}.encoder.layers.{stage}", stage == len(depths) - 1
            part = Part(width=width << stage, heads=heads[stage], grid=grid)
            self.stages.append(self.stage(a, b, at, part, rates, last, env))
            grid = halved(grid)
        self.out = width << (len(depths) - 1)
        self.norm = LayerNorm(b, f"{name}.layernorm", self.out) if self.normed else None

    def __call__(self, f: Tape, pixels: Tensor) -> Tensor:
        """See the class."""
        env, rows = self.env, pixels.shape[0]
        x = convolution(f, pixels, self.weight, self.bias, (rows, self.grid[0] * self.grid[1], self.width))
        if env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        x = self.first_norm(f, x)
        if self.places is not None:
            x = add(f, x, self.places)
        x = dropout(f, x, self.dropout)
        embedded, left = x, None
        for index, stage in enumerate(self.stages):
            x = env.call(f, stage, index, x)
            left, env.left = env.left, None
        del left, embedded
        return x if self.norm is None else self.norm(f, x)


class Classifier:
    """SwinForImageClassification."""

    uncast = True
    """Pixels have the dtype of the weights: nothing casts them."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.tower = Tower(a, b, env, "swin")
        self.classifier = b.linear("classifier", self.tower.out, labels_of(a), True)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the outputs hold."""
        assert batch.pixels is not None
        x = self.tower(f, batch.pixels)
        pooled = mean_over(f, x, (x.shape[0], x.shape[2]))
        return self.classifier(f, pooled), pooled, x

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)
