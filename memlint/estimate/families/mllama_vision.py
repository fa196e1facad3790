"""The image tower of Llama 3.2 Vision: tiles of an image in one row, two encoders, states of several layers joined.

Source: transformers 5.24 models/mllama/modeling_mllama.py. Its layers are no GradientCheckpointingLayer, so activation
checkpointing leaves them alone.
"""

from __future__ import annotations

from math import ceil, isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, mul, saving_output, scale, shift, slice_of
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.images import convolution, requiring_grad
from memlint.estimate.ops.linear import to_autocast
from memlint.estimate.stack import Stack
from memlint.job import Checkpointing
from memlint.models.architecture import Architecture


class Layer:
    """MllamaVisionEncoderLayer; in the second encoder its branches are gated."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env, *, gated: bool) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env = env
        self.heads = int(a.get("attention_heads"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.q, self.k, self.v, self.o = (b.linear(f"{name}.self_attn.{n}_proj", h, h) for n in "qkvo")
        self.up, self.down = b.linear(f"{name}.mlp.fc1", h, inner, True), b.linear(f"{name}.mlp.fc2", inner, h, True)
        self.norm1 = LayerNorm(b, f"{name}.input_layernorm", h)
        self.norm2 = LayerNorm(b, f"{name}.post_attention_layernorm", h)
        self.gates = [b.parameter(f"{name}.gate_{n}", 1) for n in ("attn", "ffn")] if gated else None

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, N, H] -> [B, N, H] and, under eager, the attention's weights."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(p(f, x), self.heads, width) for p in (self.q, self.k, self.v))
        mask = self.env.state["tower mask"][0]
        if self.env.attention == "sdpa":
            mask = to_autocast(f, mask)
        out, weights = attend(f, self.env, q, k, v, mask, causal=False)
        return self.o(f, out), weights

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, H] -> [B, N, H]."""
        residual = x
        x = self.norm1(f, x)
        x, weights = self.attend(f, x)
        if self.gates is not None:
            x = mul(f, saving_output(f, self.gates[0]), x)
        x = add(f, residual, x)
        residual = x
        normed = self.norm2(f, x)  # the layer's name for it lasts through the whole branch
        x = self.up(f, normed)
        x = activate(f, x, self.act)
        x = self.down(f, x)
        del normed
        if self.gates is not None:
            x = mul(f, saving_output(f, self.gates[1]), x)
        out = add(f, residual, x)
        del weights
        return out


class TileEmbedding:
    """MllamaPrecomputedAspectRatioEmbedding."""

    def __init__(self, b: Build, name: str, ratios: int, tiles: int, width: int) -> None:
        self.tiles, self.width = tiles, width
        self.table = b.embedding(f"{name}.embedding", ratios + 1, tiles * width)
        self.gate = b.parameter(f"{name}.gate", 1)

    def __call__(self, f: Tape, x: Tensor, ids: Tensor) -> Tensor:
        """x [images, tiles, N, H] -> the same shape."""
        places = self.table(f, ids).view(x.shape[0], self.tiles, 1, self.width)
        places = mul(f, places, saving_output(f, self.gate))
        return add(f, x, places)


def _pad_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def padded(f: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.pad`` with zeros: a copy; its backward cuts the gradient in another copy."""
    recorded = f.needs(x)
    out = f.new(shape, x.dtype)
    return f.record(out, _pad_backward, (x,), (), x.shape) if recorded else out


class Tower:
    """pixels [images, tiles, C, h, w] -> projected states [images * tiles, N, H]."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.a, self.env = a, env
        h = self.width = a.hidden_size
        at = f"model.{name}"
        self.image, self.patch = int(a.get("image_size")), int(a.get("patch_size"))
        self.channels, self.most = int(a.get("num_channels", 3)), int(a.get("max_num_tiles", 4))
        count = self.count = (self.image // self.patch) ** 2 + 1
        ratios = len(a.get("supported_aspect_ratios") or range(8))
        self.weight = b.parameter(f"{at}.patch_embedding.weight", h, self.channels, self.patch, self.patch)
        self.token = b.parameter(f"{at}.class_embedding", h)
        gated = f"{at}.gated_positional_embedding"
        self.gate = b.parameter(f"{gated}.gate", 1)
        self.positions = b.parameter(f"{gated}.embedding", count, h)
        self.tiled = b.embedding(f"{gated}.tile_embedding", ratios + 1, self.most * count * h)
        self.in_front = TileEmbedding(b, f"{at}.pre_tile_positional_embedding", ratios, self.most, h)
        self.behind = TileEmbedding(b, f"{at}.post_tile_positional_embedding", ratios, self.most, h)
        self.norm_pre, self.norm_post = LayerNorm(b, f"{at}.layernorm_pre", h), LayerNorm(b, f"{at}.layernorm_post", h)
        self.taps = [int(i) for i in a.get("intermediate_layers_indices", ())]
        make = lambda build, _, i: Layer(a, build, f"{at}.transformer.layers.{i}", env, gated=False)  # noqa: E731
        self.layers = Stack(b, [""] * a.num_hidden_layers, make, taps=self.taps)
        self.layers.keeps = True
        second = f"{at}.global_transformer.layers"
        self.second = Stack(
            b,
            [""] * int(a.get("num_global_layers", 8)),
            lambda build, _, i: Layer(a, build, f"{second}.{i}", env, gated=True),
        )
        text: Any = whole.config["text_config"]
        self.out = int(text["hidden_size"])
        self.project = b.linear("model.multi_modal_projector", int(a.get("vision_output_dim")), self.out, True)

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values: every image is padded to the most tiles (image_processing_mllama.py)."""
        return images * self.most, self.channels, self.image, self.image

    def tiles(self, pixels: int | None) -> int:
        """Tiles that hold a part of a square image; the others are computed all the same."""
        return min(self.most, ceil(isqrt(pixels) / self.image) ** 2) if pixels else self.most

    def _mask(self, f: Tape, images: int, length: int) -> Tensor:
        # _prepare_aspect_ratio_attention_mask: a row times a column, a product of autocast's, times the least number.
        product = f.new((images, length, length), f.autocast or self.weight.dtype)
        mask = f.like(product)
        del product
        return mask.view(images, 1, length, length)

    def embedded(self, f: Tape, pixels: Tensor, images: int) -> tuple[Tensor, Tensor]:
        """Normed patches of all tiles with their positions [images, tiles, N, H], and the bare patches."""
        rows, h, count = images * self.most, self.width, self.count
        ids = f.new((images, 1), "int64")
        patches = x = convolution(f, cast(f, pixels, self.weight.dtype), self.weight, None, (rows, count - 1, h))
        if self.env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        x = self.in_front(f, x.view(images, self.most, count - 1, h), ids)
        x = cat(f, expand(f, self.token, (rows, 1, h)), x.view(rows, count - 1, h), shape=(rows, count, h))
        x = x.view(images, self.most, count, h)
        placed = mul(f, shift(f, scale(f, saving_output(f, self.gate))), self.positions)
        x = add(f, x, placed.view(1, 1, count, h))
        tiles = self.tiled(f, ids).view(images, self.most, count, h)
        tiled = mul(f, saving_output(f, self.gate), tiles)
        x = add(f, x, tiled)
        return self.norm_pre(f, x), patches

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any]]:
        """The projected states, and what the outputs hold."""
        env, h = self.env, self.width
        # MllamaVisionModel.forward holds its patches and the states of all layers of both encoders until it returns.
        x, patches = self.embedded(f, pixels, images)
        count = -(-self.count // 8) * 8
        x = padded(f, x, (images, self.most, count, h)).view(images, self.most * count, h)
        outer, env.checkpointing = env.checkpointing, Checkpointing()
        env.state["tower mask"] = (self._mask(f, images, self.most * count), False)
        states: dict[int, Tensor] = {}

        def keep(f: Tape, env: Env, index: int, x: Tensor) -> Tensor:
            states[index] = x
            return x

        self.layers.after = keep
        x = self.layers(f, env, x)
        self.layers.after = None
        x = self.norm_post(f, x).view(images, self.most, count, h)
        x = self.behind(f, x, f.new((images, 1), "int64"))
        x = x.view(images, self.most * count, h)
        self.second.keeps = not f.needs(x)  # a graph's own norms hold them
        x = self.second(f, env, x)
        env.checkpointing = outer
        env.release()
        x = slice_of(f, x.view(images, self.most, count, h), (images, self.most, self.count, h))
        joined = cat(f, *[states[i] for i in self.taps], shape=(images, self.most, count, h * len(self.taps)))
        joined = slice_of(f, joined, (images, self.most, self.count, h * len(self.taps)))
        x = cat(f, x, joined)
        del joined
        projected = self.project(f, x).view(images * self.most, self.count, self.out)
        states.clear()
        del patches
        self.layers.forget(f)
        self.second.forget(f)
        return projected, [x]
