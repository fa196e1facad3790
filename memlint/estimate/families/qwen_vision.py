"""The image towers of Qwen2-VL, 2.5-VL, 3-VL, 3.5 and the Omni models: patches of all images in one row, merged four to
one.

Sources: transformers 5.24 models/{qwen2_vl,qwen2_5_vl,qwen3_vl,qwen3_5,qwen2_5_omni,qwen3_omni_moe}/modeling_*.py.
"""

from __future__ import annotations

from collections import Counter
from math import isqrt
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import omni_audio
from memlint.estimate.families.pieces import LayerNorm, RmsNorm, cut_off
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.attention import sdpa
from memlint.estimate.ops.basic import add, cast, cat, mul, scale, slice_of
from memlint.estimate.ops.gather import index_rows
from memlint.estimate.ops.images import convolution, requiring_grad, stacked, sum_middle, unbind
from memlint.estimate.ops.linear import embedding
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.models.config import part

DEFAULT_PIXELS = 28 * 28 * 1280
"""Most pixels of one image: max_pixels of Qwen2VLImageProcessor, which all three use (transformers 5.24
models/qwen2_vl/image_processing_qwen2_vl.py). Published preprocessor files often allow more."""


WINDOWED = ("qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder")
"""Towers that attend within windows, with RMSNorm and gated feed-forwards."""


def turned(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One of the two halves of apply_rotary_pos_emb_vision, before the cast back."""
    straight = mul(f, x, cos)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return add(f, straight, mul(f, cat(f, scale(f, second), first), sin))


def rotate(f: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb_vision: in fp32, cast back."""
    dtype = q.dtype
    q, k = cast(f, q, "fp32"), cast(f, k, "fp32")
    q_turned = turned(f, q, cos, sin)
    k_turned = turned(f, k, cos, sin)
    q_turned = cast(f, q_turned, dtype)
    k_turned = cast(f, k_turned, dtype)
    return q_turned, k_turned


class Attention:
    """VisionAttention: one call a chunk (image or window), or one call over all of them with flash."""

    norms: Any = None
    """Norms of queries and keys (GLM-OCR)."""
    casts: str | None = None
    """Where FSDP2 casts what a layer is given: to this dtype."""

    def __init__(self, b: Build, name: str, width: int, heads: int, *, apart: bool = False) -> None:
        self.heads, self.dim = heads, width // heads
        self.casts = b.sharding.fully.compute if b.sharding.fully is not None else None
        self.qkv: Any = None
        if apart:
            self.apart = [b.linear(f"{name}.{n}", width, width, True) for n in "qkv"]
        else:
            self.qkv = b.linear(f"{name}.qkv", width, 3 * width, True)
        self.proj = b.linear(f"{name}.proj", width, width, True)

    def __call__(self, f: Tape, env: Env, x: Tensor, kind: str) -> Tensor:
        """x [N, d] -> [N, d]."""
        n, width = x.shape
        shape = (1, self.heads, n, self.dim)
        if self.qkv is None:
            q, k, v = (project(f, x).view(*shape) for project in self.apart)
        else:
            q, k, v = unbind(f, self.qkv(f, x), shape, 3)
        if self.norms is not None:
            q, k = self.norms[0](f, q), self.norms[1](f, k)
        cos, sin = env.state["vision rope"]
        if self.casts is not None:
            # fully_shard casts what a unit is given (FSDPState._pre_forward); the rotation takes it in fp32 again.
            halves = cast(f, cos, self.casts), cast(f, sin, self.casts)
            cos, sin = cast(f, halves[0], "fp32"), cast(f, halves[1], "fp32")
        q, k = rotate(f, q, k, cos, sin)
        result: Tensor
        if env.attention == "flash":
            out = sdpa(f, q, k, v, None, causal=False, force="flash")
        else:
            chunks = [(1, length) for length in env.state["lengths"][kind]]
            if env.attention == "sdpa":
                chunks = [(count, length) for length, count in Counter(env.state["lengths"][kind]).items()]
            parts = [split(f, t, *[(c, self.heads, length, self.dim) for c, length in chunks]) for t in (q, k, v)]
            outs = [self._attend(f, env, *chunk) for chunk in zip(*parts)]
            out = cat(f, *outs, shape=(1, n, width))
        result = self.proj(f, out.view(n, width))
        return result

    def _attend(self, f: Tape, env: Env, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One chunk, or several equal ones at once, of which only one at a time has scratch in backward."""
        out = env.attend(f, q, k, v, None, causal=False)
        env.weights = None  # attention_interface(...)[0]
        if q.shape[0] > 1 and isinstance(out.node, Node) and isinstance(out.node.meta, int):
            out.node.meta //= q.shape[0]
        return out


class Mlp:
    """Two matrices with an activation, or Qwen2.5's gated three with biases."""

    def __init__(self, a: Architecture, b: Build, name: str, width: int) -> None:
        self.act = str(a.get("hidden_act", "quick_gelu"))
        self.gate = None
        if a.model_type in WINDOWED:
            inner = int(a.get("intermediate_size"))
            self.gate = b.linear(f"{name}.gate_proj", width, inner, True)
            self.up = b.linear(f"{name}.up_proj", width, inner, True)
            self.down = b.linear(f"{name}.down_proj", inner, width, True)
            return
        old = a.model_type == "qwen2_vl_vision"
        inner = int(width * a.get("mlp_ratio", 4)) if old else int(a.get("intermediate_size"))
        names = ("fc1", "fc2") if old else ("linear_fc1", "linear_fc2")
        self.up = b.linear(f"{name}.{names[0]}", width, inner, True)
        self.down = b.linear(f"{name}.{names[1]}", inner, width, True)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [N, d] -> [N, d]."""
        result: Tensor
        if self.gate is None:
            result = self.down(f, activate(f, self.up(f, x), self.act))
        else:
            result = self.down(f, mul(f, activate(f, self.gate(f, x), self.act), self.up(f, x)))
        return result


class Block:
    """VisionBlock: ``x + attn(norm1(x))``, ``x + mlp(norm2(x))``."""

    def __init__(self, a: Architecture, b: Build, name: str, kind: str, env: Env) -> None:
        width = width_of(a)
        norm: Any = RmsNorm if a.model_type in WINDOWED else LayerNorm
        self.env, self.kind = env, kind
        self.norm1, self.norm2 = norm(b, f"{name}.norm1", width), norm(b, f"{name}.norm2", width)
        apart = a.model_type == "qwen2_5_omni_vision_encoder"
        self.attn = Attention(b, f"{name}.attn", width, int(a.get("num_heads")), apart=apart)
        self.mlp = Mlp(a, b, f"{name}.mlp", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [N, d] -> [N, d]."""
        x = add(f, x, self.attn(f, self.env, self.norm1(f, x), self.kind))
        return add(f, x, self.mlp(f, self.norm2(f, x)))


def width_of(a: Architecture) -> int:
    """Width of the tower (qwen2_vl calls it embed_dim; its hidden_size is that of the language model)."""
    return int(a.get("embed_dim") if a.model_type == "qwen2_vl_vision" else a.get("hidden_size"))


class Merger:
    """PatchMerger: a norm (over one patch, or over four), two projections with GELU between them."""

    def __init__(self, a: Architecture, b: Build, name: str, *, wide: bool = False) -> None:
        width, unit = width_of(a), int(a.get("spatial_merge_size", 2)) ** 2
        self.wide, self.whole = wide, width * unit
        new = a.model_type not in ("qwen2_vl_vision", "qwen3_omni_moe_vision_encoder", *WINDOWED)
        norm: Any = RmsNorm if a.model_type in WINDOWED else LayerNorm
        self.norm = norm(b, f"{name}.norm" if new else f"{name}.ln_q", self.whole if wide else width)
        names = ("linear_fc1", "linear_fc2") if new else ("mlp.0", "mlp.2")
        out = int(a.get("hidden_size") if a.model_type == "qwen2_vl_vision" else a.get("out_hidden_size"))
        self.fc1 = b.linear(f"{name}.{names[0]}", self.whole, self.whole, True)
        self.fc2 = b.linear(f"{name}.{names[1]}", self.whole, out, True)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [N, d] -> [N / 4, H]."""
        rows = x.shape[0] * x.shape[1] // self.whole
        x = self.norm(f, x.view(rows, self.whole) if self.wide else x).view(rows, self.whole)
        x = self.fc1(f, x)
        x = activate(f, x, "gelu")
        result: Tensor = self.fc2(f, x)
        return result


class Tower:
    """The tower: pixels [N, C*T*P*P] -> image tokens [N / 4, H]."""

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.a, self.env = a, env
        width = self.width = width_of(a)
        self.patch = int(a.get("patch_size", 14))
        self.merge = int(a.get("spatial_merge_size", 2))
        channels, times = int(a.get("in_channels", 3)), int(a.get("temporal_patch_size", 2))
        self.values = channels * times * self.patch**2
        self.weight = b.parameter(f"{name}.patch_embed.proj.weight", width, channels, times, self.patch, self.patch)
        new = a.model_type not in ("qwen2_vl_vision", *WINDOWED)
        self.bias = b.parameter(f"{name}.patch_embed.proj.bias", width) if new else None
        self.positions = b.embedding(f"{name}.pos_embed", int(a.get("num_position_embeddings")), width) if new else None
        self.windowed = a.model_type in WINDOWED
        heads = int(a.get("num_heads"))
        for _ in range(2):
            b.buffer(width // heads // 4 * 4)
        depth = int(a.get("depth"))
        full = a.get("fullatt_block_indexes", ()) if self.windowed else range(depth)
        kinds = ["full" if i in full else "window" for i in range(depth)]
        self.taps = [i for i in (a.get("deepstack_visual_indexes", ()) if new else ()) if i < depth]
        make = lambda build, kind, i: Block(a, build, f"{name}.blocks.{i}", kind, env)  # noqa: E731
        idle = b.idle
        if self.positions is not None and cut_off(env, self.weight, self.bias, self.positions.weight):
            b.idle = True
        # What a merger takes as well, the next layer holds with it.
        sound = part(whole, "audio_config")
        b.first_layer = 0 if sound is None else int(sound.get("encoder_layers"))
        self.layers = Stack(b, kinds, make, taps=self.taps, loose=[i + 1 for i in self.taps])
        b.idle = idle
        self.merger = Merger(a, b, f"{name}.merger")
        deep = "merger_list" if a.model_type == "qwen3_omni_moe_vision_encoder" else "deepstack_merger_list"
        self.deep = [Merger(a, b, f"{name}.{deep}.{i}", wide=True) for i in range(len(self.taps))]
        if sound is not None:
            omni_audio.held(sound, b, "model.audio_tower")

    def grid(self, pixels: int | None) -> tuple[int, int]:
        """Patches along the two sides of a square image after the processor's resize."""
        unit = self.patch * self.merge
        side = max(1, round(isqrt(pixels or DEFAULT_PIXELS) / unit)) * self.merge
        return side, side

    def input_shape(self, images: int, pixels: int | None) -> tuple[int, ...]:
        """pixel_values of the micro batch."""
        high, wide = self.grid(pixels)
        return images * high * wide, self.values

    def lengths(self, images: int, pixels: int | None) -> dict[str, list[int]]:
        """Patches in each chunk of attention: whole images, and windows (get_vision_window_index)."""
        high, wide = self.grid(pixels)
        unit = self.merge**2
        side = int(self.a.get("window_size", 112)) // self.merge // self.patch
        rows, columns = high // self.merge, wide // self.merge
        across = [min(side, columns - x) for x in range(0, columns, side)]
        pieces = [min(side, rows - y) * x * unit for y in range(0, rows, side) for x in across]
        return {"full": [high * wide] * images, "window": pieces * images}

    def __call__(
        self, f: Tape, pixels: Tensor, images: int, size: int | None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Image tokens [n, H], features for the first layers of the language model, and what the outputs hold."""
        env, n, width = self.env, pixels.shape[0], self.width
        dtype = self.weight.dtype
        given = cast(f, pixels, dtype)
        x = convolution(f, given, self.weight, self.bias, (n, width))
        if env.checkpointing.mode != "none" and self.positions is None:
            # Only VisionModels that name their ``_input_embed_layer`` get the hook: none since Qwen3-VL (5.24
            # modeling_utils.py get_input_embeddings, which enable_input_require_grads asks).
            x = requiring_grad(f, x)
        state = env.state
        state["lengths"] = self.lengths(images, size)
        order = None
        if self.windowed:
            order = f.new((n // self.merge**2,), "int64")
            x = index_rows(f, x.view(n // self.merge**2, width * self.merge**2), order).view(n, width)
        places = [f.new((n, 2), "int64")]  # VisionModel.forward's own names last until it returns
        if self.positions is not None:
            x = self._placed(f, x, places)
        dim = width // int(self.a.get("num_heads"))
        state["vision rope"] = (f.new((1, 1, n, dim), "fp32"), f.new((1, 1, n, dim), "fp32"))
        deep: list[Tensor] = []

        def merge(f: Tape, env: Env, index: int, x: Tensor) -> Tensor:
            if index in self.taps:
                deep.append(self.deep[self.taps.index(index)](f, x))
            return x

        self.layers.after = merge
        # transformers 5.24 modeling_qwen2_vl.py and its kin: only the loop's variable holds the patches.
        patches = [x]
        del x
        x = self.layers(f, env, patches)
        self.layers.after = None
        tokens = self.merger(f, x)
        if order is not None:
            tokens = index_rows(f, tokens, f.new(order.shape, "int64"))
        env.release()
        del places
        return stacked(f, tokens), [stacked(f, t) for t in deep], [tokens, x, *deep]

    def _placed(self, f: Tape, x: Tensor, held: list[Tensor]) -> Tensor:
        """Qwen3-VL adds positions interpolated from four neighbours of a learned square grid; what forward holds."""
        assert self.positions is not None
        n = x.shape[0]
        ids, weights = f.new((n, 4), "int64"), f.new((n, 4, 1), "fp32")
        places = sum_middle(f, mul(f, embedding(f, self.positions.weight, ids), weights))
        held += [ids, weights, places]
        return add(f, x, cast(f, places, x.dtype))
