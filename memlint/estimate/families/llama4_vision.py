"""The image tower of Llama 4: patches through a matrix, complex rotary positions, a pixel shuffle and two projections.

Source: transformers 5.24 models/llama4/modeling_llama4.py. The tower takes the pixels as they come, so in a model of
half weights they have to come in half precision.
"""

from __future__ import annotations

from math import ceil, isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.llama4 import turned
from memlint.estimate.families.pieces import LayerNorm, attend
from memlint.estimate.families.vision_tower import side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, copy, dropout, slice_of
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.images import requiring_grad
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

MOST_TILES = 16
"""max_patches of Llama4ImageProcessor (models/llama4/image_processing_llama4.py); the whole image stands beside."""


class Layer:
    """Llama4VisionEncoderLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env, self.heads = env, int(a.get("num_attention_heads"))
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.q, self.k, self.v, self.o = (b.linear(f"{name}.self_attn.{n}_proj", h, h, True) for n in "qkvo")
        self.up, self.down = b.linear(f"{name}.mlp.fc1", h, inner, True), b.linear(f"{name}.mlp.fc2", inner, h, True)
        self.norm, self.second = (
            LayerNorm(b, f"{name}.{n}", h) for n in ("input_layernorm", "post_attention_layernorm")
        )

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, H] -> [B, N, H]."""
        attended, weights = self.attend(f, self.norm(f, x))
        x = add(f, x, attended)
        del attended
        inner = self.up(f, self.second(f, x))
        inner = activate(f, inner, "gelu")
        out = add(f, x, self.down(f, inner))
        del weights
        return out

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Attention, and under eager its weights, which the layer's frame holds."""
        b, n, h = x.shape
        shape, wide = (b, n, self.heads, h // self.heads), (b, self.heads, n, h // self.heads)
        q, k, v = (project(f, x).view(*shape) for project in (self.q, self.k, self.v))
        q, k = self.rotated(f, q, k)
        q, k, v = q.view(*wide), k.view(*wide), v.view(*wide)
        out, weights = attend(f, self.env, q, k, v, None, self.dropout, causal=False, style="raw")
        return self.o(f, out), weights

    def rotated(self, f: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """vision_apply_rotary_emb: a complex product of the fp32 values, cast back."""
        angles = self.env.state["vision rope"]
        first, second = cast(f, q, "fp32"), cast(f, k, "fp32")
        q_turned = turned(f, first, angles)
        k_turned = turned(f, second, angles)
        return cast(f, q_turned, q.dtype), cast(f, k_turned, k.dtype)


class Tower:
    """Llama4VisionModel and Llama4MultiModalProjector: pixels [B, C, s, s] -> image tokens [n, H]."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.env, h = env, a.hidden_size
        self.width, self.heads = h, int(a.get("num_attention_heads"))
        self.image, self.patch = side_of(a.get("image_size")), side_of(a.get("patch_size"))
        self.channels = int(a.get("num_channels", 3))
        self.values, self.count = self.channels * self.patch**2, (self.image // self.patch) ** 2
        self.ratio, self.drop = float(a.get("pixel_shuffle_ratio", 0.5)), float(a.get("projector_dropout", 0.0))
        text: Any = whole.config["text_config"]
        self.cut = env.checkpointing.mode != "none" and env.checkpointing.reentrant
        """Its layers get the states by keyword (Llama4VisionEncoder.forward), where CheckpointFunction finds no tensor
        that asks for a gradient: neither they nor what is before them trains."""
        idle, b.idle = b.idle, b.idle or self.cut
        self.patches = b.linear(f"{name}.patch_embedding.linear", self.values, h)
        self.token = b.parameter(f"{name}.class_embedding", h)
        self.positions = b.parameter(f"{name}.positional_embedding_vlm", self.count + 1, h)
        self.angles = (self.count + 1, 1, h // self.heads // 2)
        b.buffer((self.count + 1) * (h // self.heads // 2) * 8)
        self.norm = LayerNorm(b, f"{name}.layernorm_pre", h)
        make = lambda build, _, i: Layer(a, build, f"{name}.model.layers.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        b.idle = idle
        self.last = LayerNorm(b, f"{name}.layernorm_post", h)
        inner, out = int(a.get("projector_input_dim")), int(a.get("projector_output_dim"))
        at = f"{name}.vision_adapter.mlp"
        self.first = b.linear(f"{at}.fc1", int(a.get("intermediate_size")), inner)
        self.second = b.linear(f"{at}.fc2", out, out)
        self.project = b.linear(
            "multi_modal_projector.linear_1", int(a.get("vision_output_dim")), int(text["hidden_size"])
        )
        self.pixel_dtype = b.training.precision.weights

    def tiles(self, pixels: int | None) -> int:
        """Squares that the processor makes of a square image: as many as cover it, and the whole beside them."""
        across = min(isqrt(MOST_TILES), ceil(isqrt(pixels) / self.image)) if pixels else isqrt(MOST_TILES)
        return across**2 + 1 if across > 1 else 1

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        return images * self.tiles(pixels), self.channels, self.image, self.image

    def embedded(self, f: Tape, pixels: Tensor) -> Tensor:
        """Patches, the class token behind them, positions."""
        rows, h = pixels.shape[0], self.width
        x = f.new((rows, self.count, self.values), pixels.dtype)
        if f.autocast is not None:
            x = cast(f, x, f.autocast)
        if rows > 1:
            # matmul folds the batch into the rows, which copies the transposed view that unfold left.
            x = copy(f, x)
        x = self.patches(f, x)
        if self.env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        # cat is on autocast's list of operators that take the widest of their inputs' dtypes.
        x = cast(f, x, self.token.dtype)
        x = cat(f, x, expand(f, self.token, (rows, 1, h)), shape=(rows, self.count + 1, h))
        return add(f, x, self.positions)

    def __call__(
        self, f: Tape, pixels: Tensor, images: int, size: int | None
    ) -> tuple[Tensor, list[Tensor], list[Any]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        env, rows = self.env, pixels.shape[0]
        asked = f.grad_enabled
        f.grad_enabled = asked and not self.cut
        x = self.embedded(f, pixels)
        x = self.norm(f, x)
        env.state["vision rope"] = Tensor(self.angles, "complex64", None)
        x = self.layers(f, env, x)
        env.release()
        f.grad_enabled = asked
        x = self.last(f, x)
        features = self.adapted(f, slice_of(f, x, (rows, self.count, self.width)))
        del x
        flat = features.view(features.shape[0] * features.shape[1], features.shape[2])
        tokens = self.project(f, flat)
        projected = cast(f, tokens, self.token.dtype)
        return projected, [], [features, projected]

    def adapted(self, f: Tape, x: Tensor) -> Tensor:
        """Llama4VisionPixelShuffleMLP: two transpositions, each a copy, then two matrices."""
        rows, count, width = x.shape
        few, wide = int(count * self.ratio**2), int(width / self.ratio**2)
        x = copy(f, x)
        x = copy(f, x, (rows, few, wide))
        x = self.first(f, x)
        x = activate(f, x, "gelu")
        x = dropout(f, x, self.drop)
        x = self.second(f, x)
        return activate(f, x, "gelu")
