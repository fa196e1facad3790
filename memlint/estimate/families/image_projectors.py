"""What stands between an image tower and the language model: PaliGemma, Gemma 3, Idefics3, InternVL, Aya Vision,
Command A Vision.

Each class is a tower with its projector: pixels -> image tokens.
Sources: transformers 5.24 models/<type>/modeling_*.py of paligemma, gemma3, idefics3, smolvlm,
internvl, aya_vision and cohere2_vision; the numbers of tiles from their image processors.
"""

from __future__ import annotations

from math import ceil, isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.pooling_head import PoolingHead
from memlint.estimate.families.vision_tower import KINDS, Tower, Unreached
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import cast, copy, mul, slice_of
from memlint.estimate.ops.images import pooled, stacked
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.views import split
from memlint.models.architecture import Architecture

Tokens = tuple[Tensor, list[Tensor], list[Any]]


class Projected:
    """A tower under ``name`` whose images are ``tiles`` squares of the tower's own size each."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        if a.model_type not in KINDS:
            raise Unsupported(f"no memory model for an image tower of type `{a.model_type}` yet")
        self.whole, self.env = whole, env
        self.tower = Tower(
            a, b, env, f"model.{name}", self.used(whole, a), bare=self.bare(whole, a), taps=self.tapped(whole, a)
        )
        idle, b.idle = b.idle, True
        heads = a.model_type == "siglip_vision_model" and a.get("vision_use_head", True)
        self.head = PoolingHead(a, b, f"model.{name}.head") if heads else None
        b.idle = idle
        self.width = a.hidden_size
        text: Any = whole.config["text_config"]
        self.out = int(text["hidden_size"])

    def used(self, whole: Architecture, a: Architecture) -> int | None:
        """Layers of the tower that have a part in the result; None: all."""
        return None

    def bare(self, whole: Architecture, a: Architecture) -> bool:
        """Whether the last layer's output is taken before the norm behind it."""
        return False

    def tapped(self, whole: Architecture, a: Architecture) -> list[int]:
        """Layers before the last used one whose outputs have a part in the result too."""
        return []

    def tiles(self, pixels: int | None) -> int:
        """Squares that the processor makes of one image."""
        return 1

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        side = self.tower.image
        return images * self.tiles(pixels), self.tower.channels, side, side

    def states(self, f: Tape, pixels: Tensor) -> tuple[Tensor, list[Any]]:
        """The tower's hidden states, and what the outputs hold."""
        x, held = self.tower(f, pixels)
        self.env.release()
        if self.head is not None:
            # pooler_output, which the image's tokens replace.
            mark = len(f.nodes)
            vector = self.head(f, x)
            Unreached(f.nodes[mark:])
            del f.nodes[mark:], vector
        return x, [x, *held]


class PaliGemma(Projected):
    """One matrix with a bias."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        width = int(a.get("projection_dim", self.out))
        self.linear = b.linear("model.multi_modal_projector.linear", self.width, width, True)

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Llava."""
        x, held = self.states(f, pixels)
        tokens = self.linear(f, x)
        return tokens, [], [tokens, *held]


class Gemma3(Projected):
    """Averages over squares of patches, a norm and a matrix."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        at = "model.multi_modal_projector"
        self.weight = b.parameter(f"{at}.mm_input_projection_weight", self.width, self.out)
        self.norm = Norm(b, f"{at}.mm_soft_emb_norm", self.width, "gemma")
        self.tokens = isqrt(int(whole.get("mm_tokens_per_image", 256))) ** 2

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Llava."""
        x, held = self.states(f, pixels)
        tokens = self._projected(f, x)
        return tokens, [], [tokens, *held]

    def _projected(self, f: Tape, x: Tensor) -> Tensor:
        rows = x.shape[0]
        flat = copy(f, x)
        small = pooled(f, flat, (rows, self.tokens, self.width))
        normed = self.norm(f, self.env, small)
        out = matmul(f, normed.view(rows * self.tokens, self.width), self.weight, self.out, copy_a=rows > 1)
        return cast(f, out, x.dtype).view(rows, self.tokens, self.out)


EDGES = {"idefics3": 1456, "smolvlm": 2048}
"""size.longest_edge: idefics3/image_processing_idefics3.py; 4 x 512 in SmolVLM's published processors."""


class Idefics3(Projected):
    """Pixel shuffle and one matrix; an image is split into tiles, and stands once more as a whole beside them."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        self.factor = int(whole.get("scale_factor", 2))
        self.proj = b.linear("model.connector.modality_projection.proj", self.width * self.factor**2, self.out)

    def tiles(self, pixels: int | None) -> int:
        """See Projected."""
        edge = isqrt(pixels) if pixels else EDGES.get(self.whole.model_type, 1456)
        across = ceil(edge / self.tower.image)
        return across**2 + 1 if across > 1 else 1

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Llava."""
        given = cast(f, pixels, self.tower.weight.dtype)
        zero = f.new(given.shape, "bool")
        del zero
        given = f.like(given)
        x, held = self.states(f, given)
        rows, count, _ = x.shape
        x = copy(f, x)
        shuffled = copy(f, x, (rows, count // self.factor**2, self.width * self.factor**2))
        del x
        tokens = self.proj(f, shuffled)
        return stacked(f, tokens), [], [tokens, *held]


class InternVl(Projected):
    """Pixel shuffle, a norm and two matrices; the class token is left out."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        self.factor = round(1 / float(whole.get("downsample_ratio", 0.5)))
        wide = self.width * self.factor**2
        at = "model.multi_modal_projector"
        self.norm = LayerNorm(b, f"{at}.layer_norm", wide)
        self.first = b.linear(f"{at}.linear_1", wide, self.out, True)
        self.second = b.linear(f"{at}.linear_2", self.out, self.out, True)
        self.act = str(whole.get("projector_hidden_act", "gelu"))

    def tiles(self, pixels: int | None) -> int:
        """crop_to_patches, at most 12: nine of a large square image, and the whole (processing_internvl.py)."""
        across = min(3, ceil(isqrt(pixels) / self.tower.image)) if pixels else 3
        return across**2 + 1 if across > 1 else 1

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Llava."""
        x, held = self.states(f, cast(f, pixels, self.tower.weight.dtype))
        rows, count, width = x.shape
        x = slice_of(f, x, (rows, count - 1, width))
        x = copy(f, x)
        x = copy(f, x, (rows, (count - 1) // self.factor**2, width * self.factor**2))
        tokens = self.norm(f, x)
        tokens = self.first(f, tokens)
        tokens = activate(f, tokens, self.act)
        tokens = self.second(f, tokens)
        return tokens, [], [tokens, *held]


class Gated(InternVl):
    """Aya Vision and Command A Vision: pixel shuffle, a norm in the former, and a gated pair of matrices."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        Projected.__init__(self, whole, a, b, env, name)
        self.factor = int(whole.get("downsample_factor", 2))
        wide, at = self.width * self.factor**2, "model.multi_modal_projector"
        aya = whole.model_type == "aya_vision"
        self.shuffled_norm = LayerNorm(b, f"{at}.layernorm", wide) if aya else None
        inner = int(whole.get("alignment_intermediate_size", self.out))
        self.first = b.linear(f"{at}.linear_1", wide, inner, True)
        self.second = b.linear(f"{at}.linear_2", inner // 2, self.out, True)

    def used(self, whole: Architecture, a: Architecture) -> int | None:
        """See Projected; Aya Vision's is a layer that its config names."""
        layer = whole.get("vision_feature_layer", -1) if whole.model_type == "aya_vision" else -1
        if not isinstance(layer, int):
            raise Unsupported("no memory model for features of several layers of the image tower yet")
        return a.num_hidden_layers + 1 + layer if layer < 0 else layer

    def bare(self, whole: Architecture, a: Architecture) -> bool:
        """hidden_states[-1] of a SigLIP is not normed."""
        return whole.model_type == "aya_vision" and self.used(whole, a) == a.num_hidden_layers

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Llava."""
        x, held = self.states(f, pixels)
        rows, count, _ = x.shape
        x = copy(f, x, (rows, count // self.factor**2, self.width * self.factor**2))
        x = self.shuffled_norm(f, x) if self.shuffled_norm is not None else copy(f, x)
        tokens = self.first(f, x)
        half = (*tokens.shape[:-1], tokens.shape[-1] // 2)
        value, gate = split(f, tokens, half, half)
        tokens = mul(f, activate(f, gate, "silu"), value)
        tokens = self.second(f, tokens)
        del value, gate
        return tokens, [], [tokens, *held]
