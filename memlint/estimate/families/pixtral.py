"""Pixtral's tower over all patches in one sequence, and two projections behind it: Mistral 3's, which first merges
squares of patches, and LLaVA's, which Pixtral 12B has.

Sources: transformers 5.24 models/{pixtral,mistral3,llava}/modeling_*.py; the sizes of images from
models/pixtral/image_processing_pixtral.py.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.pieces import attend, heads_of
from memlint.estimate.families.rotary import rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.families.vision_tower import side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat
from memlint.estimate.ops.images import convolution, requiring_grad, stacked, unfold
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

ROTARY = Shape()


class Layer:
    """PixtralAttentionLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h = a.hidden_size
        self.env, self.heads = env, int(a.get("num_attention_heads"))
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.norm = Norm(b, f"{name}.attention_norm", h, "llama")
        act = str(a.get("hidden_act", "gelu"))
        self.mlp = GatedMlp(b, f"{name}.feed_forward", h, int(a.get("intermediate_size")), act)
        self.k, self.v, self.q, self.o = (b.linear(f"{name}.attention.{n}_proj", h, h) for n in "kvqo")
        self.second = Norm(b, f"{name}.ffn_norm", h, "llama")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [1, N, H] -> [1, N, H]."""
        env = self.env
        attended, weights = self.attend(f, self.norm(f, env, x))
        x = add(f, x, attended)
        del attended
        out = add(f, x, self.mlp(f, self.second(f, env, x)))
        del weights
        return out

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Attention, and under eager its weights, which the layer's frame holds."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(project(f, x), self.heads, width) for project in (self.q, self.k, self.v))
        mask, *tables = self.env.state["tower"]
        q, k = rotate_both(f, q, k, (tables[0], tables[1]), ROTARY)
        out, weights = attend(f, self.env, q, k, v, mask, self.dropout, causal=False)
        return self.o(f, out), weights


class Pixtral:
    """PixtralVisionModel and the two projections behind it: pixels [B, C, h, w] -> image tokens [n, H]."""

    merge = 1
    """Patches along one side of the squares that become one token."""
    projector = "multi_modal_projector"

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        if a.model_type != "pixtral":
            raise Unsupported(f"no memory model for an image tower of type `{a.model_type}` yet")
        if whole.get("vision_feature_layer", -1) not in (-1, a.num_hidden_layers):
            raise Unsupported("no memory model for features of an inner layer of the image tower yet")
        self.env, self.width = env, a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.image, self.patch = side_of(a.get("image_size")), side_of(a.get("patch_size"))
        self.channels = int(a.get("num_channels", 3))
        h, at = self.width, f"model.{name}"
        self.weight = b.parameter(f"{at}.patch_conv.weight", h, self.channels, self.patch, self.patch)
        self.norm = Norm(b, f"{at}.ln_pre", h, "llama")
        make = lambda build, _, i: Layer(a, build, f"{at}.transformer.layers.{i}", env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        for _ in range(2):
            b.buffer(h // self.heads // 2 * 4)
        text: Any = whole.config["text_config"]
        out, at = int(text["hidden_size"]), f"model.{self.projector}"
        bias = bool(whole.get("multimodal_projector_bias", False))
        self.merging(whole, b, at)
        self.first, self.second = b.linear(f"{at}.linear_1", h, out, bias), b.linear(f"{at}.linear_2", out, out, bias)
        self.act = str(whole.get("projector_hidden_act", "gelu"))

    def merging(self, whole: Architecture, b: Build, name: str) -> None:
        """Make what merges patches, under the projector's name; LLaVA's merges none."""

    def side(self, pixels: int | None) -> int:
        """Patches along one side of a square image, no longer than the tower's image_size."""
        edge = min(isqrt(pixels), self.image) if pixels else self.image
        unit = self.patch * self.merge
        return -(-edge // unit) * self.merge

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        edge = self.side(pixels) * self.patch
        return images, self.channels, edge, edge

    def __call__(
        self, f: Tape, pixels: Tensor, images: int, size: int | None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        env, h, side = self.env, self.width, self.side(size)
        count = side * side
        x = convolution(f, cast(f, pixels, self.weight.dtype), self.weight, None, (images, h, side, side))
        if env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        patches = split(f, x, *([(count, h)] * images))
        # PixtralVisionModel.forward's list of patches lasts until it returns, and so do their places.
        places = f.new((images * count, 2), "int64")
        x = cat(f, *patches, shape=(1, images * count, h))
        x = self.norm(f, env, x)
        mask = None
        shape = (images * count, h // self.heads)
        tables = f.new(shape, x.dtype), f.new(shape, x.dtype)
        if env.attention not in ("flash", "flex"):
            # generate_block_attention_mask: each image's patches see one another.
            mask = f.new((1, 1, images * count, images * count), x.dtype)
        env.state["tower"] = (mask, *tables)
        del mask, tables
        x = self.layers(f, env, x)
        env.release()
        del patches, places
        tokens = self.projected(f, x.view(images * count, h), images)
        return stacked(f, tokens), [], [tokens, x]

    def projected(self, f: Tape, x: Tensor, images: int) -> Tensor:
        """LlavaMultiModalProjector."""
        x = self.first(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.second(f, x)
        return result


class Tower(Pixtral):
    """Mistral 3's tower: squares of patches are merged."""

    def merging(self, whole: Architecture, b: Build, name: str) -> None:
        """See Pixtral."""
        h, self.merge = self.width, int(whole.get("spatial_merge_size", 2))
        self.out_norm = Norm(b, f"{name}.norm", h, "llama")
        self.merger = b.linear(f"{name}.patch_merger.merging_layer", h * self.merge**2, h)

    def projected(self, f: Tape, x: Tensor, images: int) -> Tensor:
        """Mistral3MultiModalProjector; the merged squares of each image stand beside their concatenation."""
        x = self.out_norm(f, self.env, x)
        count, h = x.shape[0] // images, self.width
        merged = (count // self.merge**2, h * self.merge**2)
        grids = [unfold(f, part, merged) for part in split(f, x, *([(count, h)] * images))]
        x = cat(f, *grids, shape=(images * merged[0], merged[1]))
        x = self.merger(f, x)
        del grids
        return super().projected(f, x, images)


class LightOnOcr(Tower):
    """LightOnOCR: the same under another name."""

    projector = "vision_projection"
