"""LLaVA and its kin: images in tiles with a learned vector at each row's end (LLaVA-NeXT, its video form, OneVision), a
norm before the projector (ViP-LLaVA), two towers (Video-LLaVA), other names (DeepSeek-VL).

Sources: transformers 5.24 models/<type>/modeling_<type>.py of llava, llava_next, llava_next_video, llava_onevision,
vipllava, video_llava and deepseek_vl; the numbers of tiles from their image processors.
"""

from __future__ import annotations

from math import ceil, isqrt, sqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.image_projectors import Projected, Tokens
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.vision_tower import Tower
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import cast, cat, copy, slice_of
from memlint.estimate.ops.images import stacked, unfold
from memlint.estimate.ops.linear import to_autocast
from memlint.models.architecture import Architecture


class Llava(Projected):
    """LlavaModel.get_image_features: the last layer but one, or several, without the class token; two matrices."""

    at = "model.multi_modal_projector"
    names = ("linear_1", "linear_2")

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        bias = bool(whole.get("multimodal_projector_bias", True))
        self.chosen = numbered(whole, a)
        wide = self.width * len(self.chosen)
        self.norm = self.normed(b, wide)
        self.first = b.linear(f"{self.at}.{self.names[0]}", wide, self.out, bias)
        self.second = b.linear(f"{self.at}.{self.names[1]}", self.out, self.out, bias)
        self.act = str(whole.get("projector_hidden_act", "gelu"))
        clip = a.model_type == "clip_vision_model"
        self.cut = clip and whole.get("vision_feature_select_strategy", "default") == "default"
        self.strided = not clip and self.used(whole, a) is not None
        """States that no norm has laid out anew: they are strided as the patches' convolution left them."""
        b.idle, idle = True, b.idle
        if clip:
            LayerNorm(b, f"model.{name}.post_layernorm", self.width)
        b.idle = idle

    def normed(self, b: Build, width: int) -> Any:
        """The projector's norm, where it has one."""
        return None

    def used(self, whole: Architecture, a: Architecture) -> int | None:
        """See Projected."""
        return max(numbered(whole, a))

    def bare(self, whole: Architecture, a: Architecture) -> bool:
        """hidden_states[-1] is what the last layer gives."""
        return self.used(whole, a) == a.num_hidden_layers

    def tapped(self, whole: Architecture, a: Architecture) -> list[int]:
        """See Projected."""
        chosen = numbered(whole, a)
        return sorted({number - 1 for number in chosen if number != max(chosen)})

    def selected(self, f: Tape, x: Tensor) -> Tensor:
        """Features of one layer, or of several side by side, without the class token."""
        if len(self.chosen) > 1:
            tapped, last = self.tower.tapped, max(self.chosen)
            parts = [x if number == last else tapped[number - 1] for number in self.chosen]
            self.tower.tapped = {}
            rows, count, width = x.shape
            if self.cut:
                parts = [slice_of(f, part, (rows, count - 1, width)) for part in parts]
            return cat(f, *parts)
        rows, count, width = x.shape
        if self.cut:
            x = slice_of(f, x, (rows, count - 1, width))
        if rows > 1 and self.norm is None and (self.cut or self.strided):
            # F.linear copies a view that is not contiguous (reshape in aten/src/ATen/native/LinearAlgebra.cpp).
            x = copy(f, to_autocast(f, x))
        return x

    def projected(self, f: Tape, x: Tensor) -> Tensor:
        """LlavaMultiModalProjector."""
        x = self.selected(f, x)
        if self.norm is not None:
            x = self.norm(f, x)
        x = self.first(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.second(f, x)
        return result

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """Image tokens, none for later layers, and what the outputs hold."""
        x, held = self.states(f, pixels)
        tokens = self.projected(f, x)
        return stacked(f, tokens), [], [tokens, *held]


def numbered(whole: Architecture, a: Architecture) -> list[int]:
    """Numbers of the hidden states that vision_feature_layer names: 0 is what goes into the first layer."""
    named = whole.get("vision_feature_layer", -2)
    found = [int(n) for n in (named if isinstance(named, (list, tuple)) else [named])]
    found = [a.num_hidden_layers + 1 + n if n < 0 else n for n in found]
    if found and max(found) > a.num_hidden_layers:
        raise Unsupported(f"the image tower has no hidden state {max(found)} (`vision_feature_layer`)")
    if not found or min(found) < 1:
        raise Unsupported("no memory model for the embedded patches as features of the image tower yet")
    return found


class LlavaNext(Llava):
    """LLaVA-NeXT: the image as a whole and in tiles, a learned vector at the end of each row of patches."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        self.newline = b.parameter("model.image_newline", self.out)

    def tiles(self, pixels: int | None) -> int:
        """The best of image_grid_pinpoints for a square image (llava_next/image_processing_llava_next.py)."""
        side = self.tower.image
        return 2 if pixels is not None and isqrt(pixels) <= side else 5

    def joined(self, f: Tape, grid: Tensor) -> Tensor:
        """What becomes of the tiles of one image put together, [H, h, w]."""
        return grid

    def packed(self, f: Tape, whole: Tensor, tiles: int) -> Tensor:
        """pack_image_features of one image: [n, H]."""
        side, out = isqrt(whole.shape[1]), self.out
        first = slice_of(f, whole, (side * side, out))
        if tiles == 1:
            return cat(f, first, self.newline, shape=(side * side + 1, out))
        edge = isqrt(tiles - 1) * side
        grid = copy(f, slice_of(f, whole, (tiles - 1, side * side, out)))
        grid = self.joined(f, grid.view(out, edge, edge))
        edge = grid.shape[1]
        rows = cat(f, grid, self.newline, shape=(out, edge, edge + 1))
        count = edge * (edge + 1)
        first = cast(f, first, rows.dtype)
        return cat(f, first, rows.view(count, out), shape=(side * side + count, out))

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Llava."""
        # The images' tiles are joined, those that pad the batch left out.
        given = copy(f, pixels)
        x, held = self.states(f, given)
        tokens = self.projected(f, x)
        tiles = self.tiles(size)
        whole = stacked(f, tokens)
        parts = [self.packed(f, whole, tiles) for _ in range(images)]
        del given
        return cat(f, *parts, shape=(sum(p.shape[0] for p in parts), self.out)), [], [*parts, *held]


class LlavaOnevision(LlavaNext):
    """LLaVA-OneVision: up to six tiles a side, made smaller where they are more than the aspect ratio's own number; the
    images of a row with several are not cut.
    """

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        self.several = b.training.images > 1
        self.most = int(str(whole.get("vision_aspect_ratio", "anyres_max_9")).removeprefix("anyres_max_"))
        """Tiles whose patches are all kept (``vision_aspect_ratio``)."""

    def tiles(self, pixels: int | None) -> int:
        """The best of image_grid_pinpoints for a square image (llava_onevision/image_processing_llava_onevision.py),
        and the whole; one of unknown size fills the tiles that are kept.
        """
        if self.several:
            return 1
        across = min(6, ceil(isqrt(pixels) / self.tower.image)) if pixels is not None else isqrt(self.most)
        return max(1, across) ** 2 + 1

    def joined(self, f: Tape, grid: Tensor) -> Tensor:
        """See LlavaNext; bilinear where there are too many patches."""
        edge, side = grid.shape[1], self.tower.image // self.tower.patch
        ratio = sqrt(edge**2 / (self.most * side**2))
        if ratio <= 1.1:
            return grid
        edge = int(edge // ratio)
        if f.autocast is not None:
            # autocast_mode.h: upsample_bilinear2d is on the fp32 list, and cat takes the widest.
            grid = cast(f, grid, "fp32")
        return unfold(f, grid, (self.out, edge, edge))


class VipLlava(Llava):
    """ViP-LLaVA: five layers of the tower side by side, normed."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        self.cut = a.model_type == "clip_vision_model"

    def normed(self, b: Build, width: int) -> Any:
        """See Llava."""
        return LayerNorm(b, f"{self.at}.projector_layernorm", width)


class VideoLlava(Llava):
    """Video-LLaVA with images: its tower for videos does not run."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        idle, b.idle = b.idle, True
        Tower(a, b, env, "model.video_tower")
        LayerNorm(b, "model.video_tower.post_layernorm", a.hidden_size)
        b.idle = idle
        super().__init__(whole, a, b, env, name)


class DeepseekVl(Llava):
    """DeepSeek-VL: SigLIP's normed states and two matrices."""

    at, names = "model.aligner", ("linear1", "linear2")

    def used(self, whole: Architecture, a: Architecture) -> int | None:
        """See Projected: all."""
        return None

    def bare(self, whole: Architecture, a: Architecture) -> bool:
        """See Projected."""
        return False
