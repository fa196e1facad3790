"""Idefics 2: SigLIP's tower over images of any size, a gated projection, and a perceiver that makes few tokens of it.

Source: transformers 5.24 models/idefics2/modeling_idefics2.py; image_processing_idefics2.py for the sizes of images.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.image_projectors import Projected, Tokens
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.pieces import attend, heads_of
from memlint.estimate.ops.basic import add, cast, cat
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.images import stacked
from memlint.models.architecture import Architecture
from memlint.models.config import part

SHORTEST, LONGEST = 378, 980
"""size of Idefics2ImageProcessor."""


class Gated(GatedMlp):
    """Idefics2MLP, whose result may be of another width."""

    def __init__(self, b: Build, name: str, hidden: int, width: int, out: int, act: str) -> None:
        self.width, self.act, self.fused = width, act, False
        self.gate, self.up = (b.linear(f"{name}.{n}_proj", hidden, width) for n in ("gate", "up"))
        self.down = b.linear(f"{name}.down_proj", width, out)


class Resampling:
    """Idefics2PerceiverLayer: latents attend to an image's states and themselves."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h, heads, width = a.hidden_size, int(a.get("resampler_n_heads")), int(a.get("resampler_head_dim"))
        pairs = int(a.get("num_key_value_heads"))
        self.env, self.heads, self.pairs, self.width = env, heads, pairs, width
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.norms = [Norm(b, f"{name}.input_{n}_norm", h, "llama") for n in ("latents", "context")]
        at = f"{name}.self_attn"
        self.q = b.linear(f"{at}.q_proj", h, heads * width)
        self.k, self.v = (b.linear(f"{at}.{n}_proj", h, pairs * width) for n in "kv")
        self.o = b.linear(f"{at}.o_proj", heads * width, h)
        self.norm = Norm(b, f"{name}.post_attention_layernorm", h, "llama")
        self.mlp = Gated(b, f"{name}.mlp", h, 4 * h, h, str(a.get("hidden_act", "silu")))

    def attend(self, f: Tape, latents: Tensor, context: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Idefics2PerceiverAttention."""
        rows, count, h = latents.shape
        states = cat(f, context, latents, shape=(rows, count + context.shape[1], h))
        q = heads_of(self.q(f, latents), self.heads, self.width)
        k = heads_of(self.k(f, states), self.pairs, self.width)
        v = heads_of(self.v(f, states), self.pairs, self.width)
        out, weights = attend(f, self.env, q, k, v, mask, self.dropout, causal=False)
        del states
        return self.o(f, out), weights

    def __call__(self, f: Tape, latents: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """latents [B, n, H] over context [B, N, H] -> [B, n, H]."""
        residual = latents
        latents = self.norms[0](f, self.env, latents)
        context = self.norms[1](f, self.env, context)
        latents, weights = self.attend(f, latents, context, mask)
        latents = add(f, residual, latents)
        residual = latents
        latents = self.norm(f, self.env, latents)
        latents = self.mlp(f, latents)
        latents = add(f, residual, latents)
        del weights, residual
        return latents


class Idefics2(Projected):
    """The tower and Idefics2Connector."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        text: Any = whole.config["text_config"]
        perceiver = part(whole, "perceiver_config")
        if perceiver is None:
            raise Unsupported("`idefics2` without perceiver_config")
        at, act = "model.connector", str(text.get("hidden_act", "silu"))
        self.project = Gated(b, f"{at}.modality_projection", self.width, int(text["intermediate_size"]), self.out, act)
        at = f"{at}.perceiver_resampler"
        self.count = int(perceiver.get("resampler_n_latents", 64))
        self.latents = b.parameter(f"{at}.latents", self.count, perceiver.hidden_size)
        depth = int(perceiver.get("resampler_depth", 3))
        self.layers = [Resampling(perceiver, b, f"{at}.layers.{i}", env) for i in range(depth)]
        self.norm = Norm(b, f"{at}.norm", perceiver.hidden_size, "llama")

    def side(self, pixels: int | None) -> int:
        """Pixels along one side of a square image, whole patches."""
        edge = min(max(isqrt(pixels), SHORTEST), LONGEST) if pixels else LONGEST
        return edge // self.tower.patch * self.tower.patch

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        side = self.side(pixels)
        return images, self.tower.channels, side, side

    def resampled(self, f: Tape, context: Tensor) -> Tensor:
        """Idefics2PerceiverResampler."""
        rows, _, h = context.shape
        latents = expand(f, self.latents, (rows, self.count, h))
        for layer in self.layers:
            latents = layer(f, latents, context, None)
        return self.norm(f, self.env, latents)

    def __call__(self, f: Tape, pixels: Tensor, images: int, size: int | None) -> Tokens:
        """See Projected."""
        given = cast(f, pixels, self.tower.weight.dtype)
        zero = f.new(given.shape, "bool")
        del zero
        given = f.like(given)
        x, held = self.states(f, given)
        context = self.project(f, x)
        tokens = self.resampled(f, context)
        del context
        return stacked(f, tokens), [], [tokens, *held]
