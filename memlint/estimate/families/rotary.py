"""Rotary positions: the tables of a forward, and how queries and keys are turned by them.

Sources: transformers 5.24 models/<type>/modeling_<type>.py (rotate_half, apply_rotary_pos_emb).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.basic import add, cast, cat, mul, scale, slice_of
from memlint.estimate.versions import before
from memlint.models.architecture import Architecture
from memlint.models.traits import LOSS_IN_OWN_DTYPE
from memlint.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memlint.estimate.build import Build


def rotate_both(f: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor], s: Shape) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of queries and keys."""
    cos, sin = tables
    if s.rope_pairs:
        # cos[..., : half].repeat_interleave(2, dim=-1)
        cos, sin = f.like(cos), f.like(sin)
    return rotate(f, q, cos, sin, s), rotate(f, k, cos, sin, s)


def rotate(f: Tape, x: Tensor, cos: Tensor, sin: Tensor, s: Shape) -> Tensor:
    """apply_rotary_pos_emb of one tensor: x * cos + rotate_half(x) * sin; a partial rotary width passes the rest on."""
    width, dtype = cos.shape[-1], x.dtype
    if s.rope_float:
        straight = mul(f, cast(f, x, "fp32"), cos)
        return cast(f, add(f, straight, mul(f, cast(f, _turned(f, x), "fp32"), sin)), dtype)
    if s.rope_upcast:
        x = cast(f, x, "fp32")
    if width < x.shape[-1] or s.rope_cat:
        turned = slice_of(f, x, (*x.shape[:-1], width))
        rest = slice_of(f, x, (*x.shape[:-1], x.shape[-1] - width))
        del x
        return cat(f, _rotate(f, turned, cos, sin), rest)
    x = _rotate(f, x, cos, sin)
    return cast(f, x, dtype) if s.rope_fp32 or s.rope_upcast else x


def _rotate(f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    straight = mul(f, x, cos)
    turned = _turned(f, x)
    return add(f, straight, mul(f, turned, sin))


def _turned(f: Tape, x: Tensor) -> Tensor:
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return cat(f, scale(f, second), first)


def rotary_tables(f: Tape, length: int, width: int, dtype: str, rows: int = 1) -> tuple[Tensor, Tensor]:
    """cos and sin [rows, 1, S, D] in the model's dtype (LlamaRotaryEmbedding.forward computes them in fp32)."""
    shape = (rows, 1, length, width)
    frequencies = f.new(shape, "fp32")
    cos32, sin32 = f.new(shape, "fp32"), f.new(shape, "fp32")
    del frequencies
    if dtype == "fp32":
        return cos32, sin32
    cos, sin = f.new(shape, dtype), f.new(shape, dtype)
    return cos, sin


TABLES_BEFORE: dict[str, tuple[int, int]] = {
    "llama": (4, 41), "olmo": (4, 41), "mistral": (4, 42), "mixtral": (4, 48), "qwen2": (4, 45), "qwen2_moe": (4, 45),
    "stablelm": (4, 45), "starcoder2": (4, 45), "phi": (4, 45),
}  # fmt: skip
"""Version of transformers from which a type's attention layers no longer keep cos and sin of every position."""


def keep_tables(a: Architecture, b: Build, width: int) -> None:
    """The buffers of each layer's rotary embedding, in the dtype that the model was made in.

    <Type>RotaryEmbedding.__init__ of the versions before: ``_set_cos_sin_cache(seq_len=max_position_embeddings, ...,
    dtype=torch.get_default_dtype())``, and Llama's ``_cos_cached`` from 4.38 on.
    """
    until = TABLES_BEFORE.get(a.model_type)
    if until is None or b.job.framework == "torchtune" or not before(b.job, "transformers", *until):
        return
    if LOSS_IN_OWN_DTYPE in a.traits:
        return  # code that came with the checkpoint (Qwen's first, Baichuan's)
    size = int(a.get("max_position_embeddings", 0)) * width * DTYPE_BYTES[b.training.precision.weights]
    for _ in range(2 * a.num_hidden_layers):
        b.buffer(size)


def partial_rotary(a: Architecture) -> float:
    """Share of the head that is rotated (partial_rotary_factor, also inside rope_parameters in transformers 5)."""
    if a.model_type == "minimax_m2" and a.get("rotary_dim") and a.get("head_dim"):
        return float(a.get("rotary_dim")) / float(a.get("head_dim"))  # configuration_minimax_m2.py
    rope = a.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return float(inner or a.get("partial_rotary_factor", 1.0))
