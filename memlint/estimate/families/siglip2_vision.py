"""SigLIP 2's tower over patches that are cut beforehand and padded to one number an image, and LFM2-VL's way from it to
its language model.

Sources: transformers 5.24 models/{siglip2,lfm2_vl}/modeling_*.py; the numbers of tiles from lfm2_vl's image processor.
"""

from __future__ import annotations

from math import ceil, floor, isqrt, sqrt
from typing import Any

from memlint.estimate.adapters import LoraLinear
from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.pieces import LayerNorm, hooked
from memlint.estimate.families.pooling_head import PoolingHead
from memlint.estimate.families.vision_tower import Kind, Layer, Unreached, side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, copy, mul
from memlint.estimate.ops.gather import divide, index_rows
from memlint.estimate.ops.images import stacked, sum_middle
from memlint.estimate.ops.linear import matmul
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Hooked:
    """A linear layer under an adapter, hooked (enable_input_require_grads) before PEFT put the adapter around it."""

    __slots__ = ("base", "bias", "env", "weight")

    def __init__(self, base: Any, env: Env) -> None:
        self.base, self.env, self.weight, self.bias = base, env, base.weight, base.bias

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], which asks for gradients under checkpointing."""
        return hooked(f, self.env, self.base(f, x))


class Tower:
    """Siglip2VisionModel: patches [B, P, C * T * T], ``filled`` of them an image's own -> hidden states [B, P, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str, *, worded: bool = True) -> None:
        """``worded``: its model's main input is ids, so that checkpointing hooks the embedding before PEFT is there
        (transformers 5.24 modeling_utils.py gradient_checkpointing_enable); any other's is hooked around the adapter.
        """
        self.a, self.env = a, env
        h, self.patch = a.hidden_size, side_of(a.get("patch_size", 16))
        self.values = int(a.get("num_channels", 3)) * self.patch**2
        self.grid = int(a.get("num_patches", 256))
        """Rows of the table of positions, those of a square."""
        at = f"{name}.embeddings"
        self.project: Any = b.linear(f"{at}.patch_embedding", self.values, h, True)
        if worded and isinstance(self.project, LoraLinear):
            self.project.base = Hooked(self.project.base, env)
        self.positions = b.parameter(f"{at}.position_embedding.weight", self.grid, h)
        kind = Kind()
        make = lambda build, _, i: Layer(a, build, f"{name}.encoder.layers.{i}", kind, env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, f"{name}.post_layernorm", h)

    def placed(self, f: Tape, rows: int, count: int) -> Tensor:
        """resize_positional_embeddings: each place is a weighted sum of the whole table, in fp32."""
        side = isqrt(self.grid)
        along = f.new((rows, count, 2, side), "fp32")
        weights = f.new((rows, count, self.grid), "fp32")
        del along
        table = cast(f, self.positions, "fp32")
        places = matmul(f, weights, table, table.shape[1])
        return cast(f, places, self.positions.dtype)

    def masked(self, f: Tape, x: Tensor, filled: int) -> Tensor | None:
        """create_bidirectional_mask: none where every patch is an image's own."""
        rows, count, _ = x.shape
        if filled == count or self.env.attention in ("flash", "flex"):
            return None
        mask = f.new((rows, 1, count, count), "bool")
        return mask if self.env.attention == "sdpa" else f.new(mask.shape, x.dtype)

    def __call__(self, f: Tape, pixels: Tensor, filled: int) -> Tensor:
        """See the class."""
        env = self.env
        x = self.project(f, cast(f, pixels, self.positions.dtype))
        x = hooked(f, env, x)
        x = add(f, x, self.placed(f, pixels.shape[0], pixels.shape[1]))
        env.state["tower mask"] = (self.masked(f, x, filled), False)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x


PATCHES = 256
"""Patches that every image is cut into (max_num_patches of Siglip2ImageProcessor); a square one fills them."""


class Alone(Tower):
    """The tower over square images, with an interface like the others' on their own."""

    def input_shape(self, images: int) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        return images, PATCHES, self.values

    def beside(self, f: Tape, images: int) -> tuple[Tensor, ...]:
        """spatial_shapes and pixel_attention_mask."""
        return f.new((images, 2), "int64", INPUTS), f.new((images, PATCHES), "int32", INPUTS)

    def mean(self, f: Tape, x: Tensor, mask: Tensor) -> Tensor:
        """The mean of the patches that the mask leaves."""
        rows, count, _ = x.shape
        kept = mul(f, x, Tensor((rows, count, 1), "int64", mask.storage))
        return divide(f, sum_middle(f, kept), f.new((rows, 1), "int64"))

    def __call__(self, f: Tape, pixels: Tensor, filled: int = PATCHES) -> Any:
        """See Tower; nothing else is held."""
        return super().__call__(f, pixels, filled), []


TOKENS = (64, 256)
"""Least and most tokens of an image that is not split (min_image_tokens, max_image_tokens)."""
TOLERANCE = 2.0
"""An image of more than so many times the most is split (max_pixels_tolerance)."""
TILE, TILES = 512, 10
"""Side of a tile, and the most of them (tile_size, max_tiles); the whole stands beside them (use_thumbnail)."""


class Lfm2Vl:
    """The tower, squares of its patches joined, a norm and two matrices."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        if a.model_type != "siglip2_vision_model":
            raise Unsupported(f"no memory model for an image tower of type `{a.model_type}` yet")
        self.env, self.width = env, a.hidden_size
        self.tower = Tower(a, b, env, f"model.{name}")
        self.factor = int(whole.get("downsample_factor", 2))
        idle, b.idle = b.idle, True
        self.head = PoolingHead(a, b, f"model.{name}.head") if a.get("vision_use_head", True) else None
        b.idle = idle
        text: Any = whole.config["text_config"]
        wide, at = self.width * self.factor**2, "model.multi_modal_projector"
        normed = bool(whole.get("projector_use_layernorm", True))
        bias, inner = bool(whole.get("projector_bias", True)), int(whole.get("projector_hidden_size", 2560))
        self.norm = LayerNorm(b, f"{at}.layer_norm", wide) if normed else None
        self.first = b.linear(f"{at}.linear_1", wide, inner, bias)
        self.second = b.linear(f"{at}.linear_2", inner, int(text["hidden_size"]), bias)
        self.act = str(whole.get("projector_hidden_act", "gelu"))
        self.unit = self.tower.patch * self.factor
        """Pixels along one side of a token."""
        self.most = TOKENS[1] * self.factor**2
        """Patches that every image and tile is padded to."""

    def tiles(self, pixels: int | None) -> int:
        """Tiles of a square image, the most where its size is unknown; 1: it is not split."""
        if pixels is None:
            return 1
        side = max(self.tower.patch, round(isqrt(pixels) / self.unit) * self.unit)
        if side**2 <= TOKENS[1] * self.unit**2 * TOLERANCE:
            return 1
        # find_closest_aspect_ratio among the squares: the largest of them that is at most twice the image.
        across = 2
        while (across + 1) ** 2 <= TILES and pixels > 0.5 * TILE**2 * (across + 1) ** 2:
            across += 1
        return across**2

    def grid(self, pixels: int | None) -> int:
        """Patches of the whole image (smart_resize), of which one token is made of ``factor`` squared."""
        edge, unit = isqrt(pixels) if pixels else TILE, self.unit
        side = max(unit, round(edge / unit) * unit)
        most, least = TOKENS[1] * unit**2, TOKENS[0] * unit**2
        if side**2 > most:
            side = max(unit, floor(sqrt(most) / unit) * unit)
        elif side**2 < least:
            side = ceil(sqrt(least) / unit) * unit
        patches: int = (side // self.tower.patch) ** 2
        return patches

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        tiles = self.tiles(pixels)
        return images * (tiles + 1 if tiles > 1 else 1), self.most, self.tower.values

    def beside(self, f: Tape, images: int, pixels: int | None) -> tuple[Tensor, ...]:
        """spatial_shapes and pixel_attention_mask."""
        rows, count, _ = self.input_shape(images, pixels)
        return f.new((rows, 2), "int64", INPUTS), f.new((rows, count), "int32", INPUTS)

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any], list[Any]]:
        """Image tokens, none for later layers, and what the outputs hold."""
        rows, tiles, whole = pixels.shape[0], self.tiles(size), self.grid(size)
        x = self.tower(f, pixels, whole)
        if self.head is not None:
            # pooler_output, which the image's tokens replace.
            mark = len(f.nodes)
            vector = self.head(f, x)
            Unreached(f.nodes[mark:])
            del f.nodes[mark:], vector
        kept = images * whole + (rows - images) * (TILE // self.tower.patch) ** 2 if tiles > 1 else images * whole
        tokens = self.tokens(f, x, kept // self.factor**2)
        return stacked(f, tokens), [], [tokens, x]

    def tokens(self, f: Tape, x: Tensor, kept: int) -> Tensor:
        """The rest of get_image_features: ``kept`` of the places are an image's own."""
        rows, count, width = x.shape
        places, factor = count // self.factor**2, self.factor
        across = f.new((rows, places, factor, 1), "int64"), f.new((rows, places, 1, factor), "int64")
        own = f.new((rows, places), "bool")
        index = f.new((factor, rows * places * factor), "int64")
        grid = index_rows(f, x.view(rows * count, width), index)
        tokens = self._projected(f, grid, rows * places)
        out = index_rows(f, tokens, f.new((kept,), "int64"))
        del across, own, index, grid
        return out

    def _projected(self, f: Tape, x: Tensor, count: int) -> Tensor:
        x = copy(f, x, (count, self.width * self.factor**2))
        if self.norm is not None:
            x = self.norm(f, x)
        x = self.first(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.second(f, x)
        return result
