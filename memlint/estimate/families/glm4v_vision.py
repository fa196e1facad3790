"""The image tower of GLM-4.1V, 4.5V and 4.6V: Qwen's attention, positions sampled from a learned square, a convolution
that joins four patches, a gated merger. GLM-OCR's has no learned positions, but biases, and norms of queries and keys.

Sources: transformers 5.24 models/{glm4v,glm46v,glm4v_moe,glm_ocr}/modeling_*.py.
"""

from __future__ import annotations

from functools import partial
from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import qwen_vision
from memlint.estimate.families.expert_adapters import plain_linear
from memlint.estimate.families.pieces import LayerNorm, RmsNorm, cut_off
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, mul
from memlint.estimate.ops.images import convolution, stacked
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

OCR = "glm_ocr_vision"
MOST_PIXELS = 14 * 14 * 4 * 6144
"""Most pixels of one image: max_pixels of Glm4vImageProcessor over its two frames
(models/glm4v/image_processing_glm4v.py, transformers 5.24)."""


class Attention(qwen_vision.Attention):
    """Glm4vVisionAttention and GlmOcrVisionAttention."""

    def __init__(self, b: Build, name: str, width: int, heads: int, *, bias: bool, ocr: bool) -> None:
        self.heads, self.dim = heads, width // heads
        self.qkv = b.linear(f"{name}.qkv", width, 3 * width, bias)
        self.proj = b.linear(f"{name}.proj", width, width, ocr and bias)
        if ocr:
            self.norms = RmsNorm(b, f"{name}.q_norm", self.dim), RmsNorm(b, f"{name}.k_norm", self.dim)


class Gated:
    """Glm4VisionMlp, and the end of Glm4vVisionPatchMerger. ``whole``: the model whose adapter targets may have been
    turned into parameters of its experts, which takes them from layers of the same names here.
    """

    def __init__(
        self, whole: Architecture, b: Build, name: str, width: int, inner: int, act: str, *, bias: bool = False
    ) -> None:
        self.act = act
        make: Any = b.linear if bias else partial(plain_linear, whole, b)
        more = (True,) if bias else ()
        self.gate, self.up = (make(f"{name}.{n}_proj", width, inner, *more) for n in ("gate", "up"))
        self.down = make(f"{name}.down_proj", inner, width, *more)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [N, d] -> [N, d]."""
        result: Tensor = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
        return result


class Block:
    """Glm4vVisionBlock."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, name: str, env: Env) -> None:
        width = a.hidden_size
        self.env = env
        self.norm1, self.norm2 = RmsNorm(b, f"{name}.norm1", width), RmsNorm(b, f"{name}.norm2", width)
        ocr = a.model_type == OCR
        bias = bool(a.get("attention_bias", ocr))
        self.attn = Attention(b, f"{name}.attn", width, int(a.get("num_heads")), bias=bias, ocr=ocr)
        inner, act = int(a.get("intermediate_size" if ocr else "out_hidden_size")), str(a.get("hidden_act", "silu"))
        self.mlp = Gated(whole, b, f"{name}.mlp", width, inner, act, bias=ocr and bias)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [N, d] -> [N, d]."""
        x = add(f, x, self.attn(f, self.env, self.norm1(f, x), "full"))
        return add(f, x, self.mlp(f, self.norm2(f, x)))


def _sampled_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # grid_sampler_2d_backward: a gradient of the table; none of the grid, but a tensor of its size.
    out = f.new(*node.shapes[0])
    grid = f.new((grad.shape[0], 2), "fp32")
    del grid
    return (out,)


def sampled(f: Tape, table: Tensor, count: int) -> Tensor:
    """``F.grid_sample`` of a table [P, d] at ``count`` places, in fp32: saves the table and the places."""
    recorded = f.needs(table)
    places = f.new((count, 2), "fp32")
    saved = f.save(table, places) if recorded else ()
    out = f.new((count, table.shape[1]), "fp32")
    return f.record(out, _sampled_backward, (table,), saved) if recorded else out


class Tower:
    """Glm4vVisionModel: pixels [N, C*T*P*P] -> image tokens [N / 4, H]."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.env, self.name = env, f"model.{name}"
        name, width = self.name, a.hidden_size
        self.width, self.out = width, int(a.get("out_hidden_size"))
        self.heads, self.merge = int(a.get("num_heads")), int(a.get("spatial_merge_size", 2))
        self.patch, times = int(a.get("patch_size", 14)), int(a.get("temporal_patch_size", 2))
        channels = int(a.get("in_channels", 3))
        self.values = channels * times * self.patch**2
        self.limit = min(MOST_PIXELS, b.training.sequence_length * (self.patch * self.merge) ** 2)
        ocr, self.positions = a.model_type == OCR, None
        if not ocr:
            rows = (int(a.get("image_size")) // self.patch) ** 2
            self.positions = b.embedding(f"{name}.embeddings.position_embedding", rows, width)
        self.weight = b.parameter(f"{name}.patch_embed.proj.weight", width, channels, times, self.patch, self.patch)
        self.bias = b.parameter(f"{name}.patch_embed.proj.bias", width)
        for _ in range(2):
            b.buffer(width // self.heads // 4 * 4)
        make = lambda build, kind, i: Block(whole, a, build, f"{name}.blocks.{i}", env)  # noqa: E731
        table = None if self.positions is None else self.positions.weight
        idle, b.idle = b.idle, b.idle or cut_off(env, self.weight, self.bias, table)
        self.blocks = Stack(b, ["block"] * int(a.get("depth")), make)
        b.idle = idle
        self.project = b.linear(f"{name}.merger.proj", self.out, self.out)
        self.project_norm = LayerNorm(b, f"{name}.merger.post_projection_norm", self.out)
        act = str(a.get("hidden_act", "silu"))
        inner = self.out * channels if ocr else int(a.get("intermediate_size"))
        self.merger = Gated(whole, b, f"{name}.merger", self.out, inner, act)
        self.first_norm = None if ocr else RmsNorm(b, f"{name}.post_conv_layernorm", width)
        self.down = b.parameter(f"{name}.downsample.weight", self.out, width, self.merge, self.merge)
        self.down_bias = b.parameter(f"{name}.downsample.bias", self.out)
        self.last_norm = RmsNorm(b, f"{name}.post_layernorm", width)

    def grid(self, pixels: int | None) -> tuple[int, int]:
        """Patches along the two sides of a square image; one of unknown size fills the sequence, up to the limit."""
        side = max(1, round(isqrt(pixels or self.limit) / (self.patch * self.merge))) * self.merge
        return side, side

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        high, wide = self.grid(pixels)
        return images * high * wide, self.values

    def placed(self, f: Tape, x: Tensor) -> Tensor:
        """Glm4vVisionEmbeddings."""
        if self.positions is None:
            return x
        table = cast(f, self.positions.weight, "fp32")
        wide = sampled(f, table, x.shape[0])
        places = cast(f, wide, self.positions.weight.dtype)
        return add(f, x, places)

    def merged(self, f: Tape, x: Tensor) -> Tensor:
        """Glm4vVisionPatchMerger."""
        x = self.project(f, x)
        x = activate(f, self.project_norm(f, x), "gelu")
        return self.merger(f, x)

    def __call__(
        self, f: Tape, pixels: Tensor, images: int, size: int | None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Image tokens [n, H], none for later layers, and what the outputs hold."""
        env, n, width = self.env, pixels.shape[0], self.width
        given = cast(f, pixels, self.weight.dtype)
        x = convolution(f, given, self.weight, self.bias, (n, width))
        # No hook on the patches under checkpointing: the tower names no ``_input_embed_layer`` (modeling_utils.py).
        if self.first_norm is not None:
            x = self.first_norm(f, x)
        state = env.state
        high, wide = self.grid(size)
        state["lengths"] = {"full": [high * wide] * images}
        dim = width // self.heads
        state["vision rope"] = (f.new((1, 1, n, dim), "fp32"), f.new((1, 1, n, dim), "fp32"))
        patches = [self.placed(f, x)]
        del x
        x = self.blocks(f, env, patches)
        x = self.last_norm(f, x)
        count = n // self.merge**2
        x = convolution(f, x.view(count, width, self.merge, self.merge), self.down, self.down_bias, (count, self.out))
        tokens = self.merged(f, x)
        env.release()
        return stacked(f, tokens), [], [tokens, x]
