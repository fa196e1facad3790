"""Gemma 4 without towers: merged patches of raw pixels are projected, placed and normed; so are frames of raw sound.

Source: transformers 5.24 models/gemma4_unified/modeling_gemma4_unified.py.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.gemma4_parts import Norm
from memlint.estimate.families.gemma4_vision import SOFT_TOKENS
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.ops.basic import add, cast, mul
from memlint.estimate.ops.gather import index_rows
from memlint.estimate.ops.images import stacked, sum_middle
from memlint.models.architecture import Architecture
from memlint.models.config import part
from memlint.units import DTYPE_BYTES


class Tower:
    """Gemma4UnifiedVisionEmbedder; the embedder of sound is held and never run."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        text = part(whole, "text_config")
        assert text is not None
        self.env, self.out = env, text.hidden_size
        at, width, out = "model.embed_vision", int(a.get("mm_embed_dim")), int(a.get("output_proj_dims"))
        self.values = 3 * (int(a.get("patch_size")) * int(a.get("pooling_kernel_size"))) ** 2
        self.first = LayerNorm(b, f"{at}.patch_ln1", self.values)
        self.dense = b.linear(f"{at}.patch_dense", self.values, width, True)
        self.second = LayerNorm(b, f"{at}.patch_ln2", width)
        self.table = b.parameter(f"{at}.pos_embedding", int(a.get("mm_posemb_size")), 2, width)
        self.third = LayerNorm(b, f"{at}.pos_norm", width)
        self.norm = Norm(b, None, out)
        self.project = b.linear(f"{at}.multimodal_embedder.embedding_projection", out, self.out)
        sound = part(whole, "audio_config")
        if sound is not None:
            idle, b.idle = b.idle, True
            b.linear("model.embed_audio.embedding_projection", sound.hidden_size, self.out)
            b.idle = idle

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch: every image is padded to the same number of merged patches."""
        return images, SOFT_TOKENS, self.values

    def beside(self, f: Tape, images: int, pixels: int | None) -> tuple[Tensor, ...]:
        """image_position_ids."""
        return (f.new((images, SOFT_TOKENS, 2), "int64", INPUTS),)

    def placed(self, f: Tape, rows: int) -> Tensor:
        """Factorised positions, nothing where there is only padding."""
        width = self.table.shape[2]
        clamped = f.new((rows, SOFT_TOKENS, 2), "int64")
        valid = f.new((rows, SOFT_TOKENS, 2, 1), self.table.dtype)
        table = Tensor((self.table.shape[0] * 2, width), self.table.dtype, self.table.storage, self.table.node)
        places = mul(f, index_rows(f, table, clamped), valid)
        places = sum_middle(f, places.view(rows * SOFT_TOKENS, 2, width))
        return places.view(rows, SOFT_TOKENS, width)

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> tuple[Tensor, list[Any], list[Any]]:
        """Image tokens of square images, none for later layers, and what the outputs hold."""
        x = cast(f, pixels, self.table.dtype)
        x = self.first(f, x)
        x = self.dense(f, x)
        x = self.second(f, x)
        x = add(f, x, self.placed(f, images))
        x = self.third(f, x)
        tokens = self.project(f, self.norm(f, cast(f, x, self.table.dtype)))
        count = images * isqrt(SOFT_TOKENS) ** 2
        places = f.new((count, 2), "int64")
        flat = tokens.view(images * SOFT_TOKENS, self.out)
        tokens = index_rows(f, flat, Tensor((count,), "int64", places.storage))
        del flat
        # The forward chooses the embeddings of all image tokens, element by element, only to count them.
        f.pool.touch(count * self.out * (3 * 8 + DTYPE_BYTES[tokens.dtype]), TEMPORARIES)
        return stacked(f, tokens), [], [tokens, x]
