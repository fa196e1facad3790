"""LLaVA's kin: images in tiles with a learned vector at each row's end (LLaVA-NeXT, its video form, OneVision), a norm
before the projector (ViP-LLaVA), two towers (Video-LLaVA), other names (DeepSeek-VL).

Sources: transformers 5.24 models/<type>/modeling_<type>.py of llava_next, llava_next_video, llava_onevision, vipllava,
video_llava and deepseek_vl; the numbers of tiles from their image processors.
"""

from __future__ import annotations

from math import ceil, isqrt, sqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.image_projectors import Llava, Tokens
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.vision_tower import Tower
from memlint.estimate.ops.basic import cast, cat, copy, slice_of
from memlint.estimate.ops.images import stacked, unfold
from memlint.models.architecture import Architecture


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
