"""What several families of the earlier transformer shapes share: layer norms, and attention that also returns its
weights.
"""

from __future__ import annotations

from math import prod

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.ops.attention import repeat_kv, sdpa, softmax
from memlint.estimate.ops.basic import add, cast, cat, copy, dropout, mul, scale, slice_of
from memlint.estimate.ops.images import requiring_grad
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.norm import layer_norm, rms_norm


class LayerNorm:
    """nn.LayerNorm, with or without weight and bias."""

    __slots__ = ("bias", "weight")

    def __init__(self, b: Build, name: str, width: int, *, affine: bool = True, bias: bool = True) -> None:
        self.weight = b.parameter(f"{name}.weight", width) if affine else None
        self.bias = b.parameter(f"{name}.bias", width) if affine and bias else None

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        return layer_norm(f, x, self.weight, self.bias)


class RmsNorm:
    """Qwen2RMSNorm, InternVLVisionRMSNorm."""

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight = b.parameter(f"{name}.weight", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        return rms_norm(f, x, self.weight)


def hooked(f: Tape, env: Env, x: Tensor) -> Tensor:
    """The output of the module that ``get_input_embeddings`` names: under checkpointing it requires gradients."""
    return requiring_grad(f, x) if env.checkpointing.mode != "none" else x


def cut_off(env: Env, *weights: Tensor | None) -> bool:
    """Whether layers behind these ``weights`` alone get no gradient: CheckpointFunction makes none for what trains in a
    layer no input of which asks for one (torch 2.13 utils/checkpoint.py).
    """
    options = env.checkpointing
    return options.mode != "none" and options.reentrant and all(w is None or w.node is None for w in weights)


def heads_of(x: Tensor, heads: int, width: int) -> Tensor:
    """``view(B, S, heads, width).transpose(1, 2)``: [B, heads, S, width] over the same storage."""
    b, s = x.shape[0], prod(x.shape[1:]) // (heads * width)
    return x.view(b, heads, s, width)


def attend(
    f: Tape,
    env: Env,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    p: float = 0.0,
    *,
    causal: bool = True,
    style: str = "fp32",
    dense: bool = False,
    dense_values: bool = False,
    joined: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention as the job asks for it: q [B, h, S, D], k and v [B, kv, T, D] -> [B, S, h*D], and its weights under
    eager.

    The weights are returned as transformers returns them: the caller's ``_`` keeps them alive until the block is done.
    ``style`` of eager: ``fp32`` for ``softmax(dtype=float32).to(query.dtype)``, ``plain`` for softmax in the dtype of
    the scores and a cast to the values', ``raw`` without that cast, ``upcast`` for gptj's scores in fp32. ``dense``: q
    and k are contiguous [B, h, S, D] (made by cat), so matmul copies neither; ``dense_values``: v too; ``joined``: k
    and v.
    """
    k, v = env.cached(f, k, v)
    if env.prefix is not None and env.prefix.active and causal:
        k, v = env.prefix.join(f, k, v)
        joined = True
    if env.attention == "eager":
        both, values = (dense, dense or joined), dense_values or joined
        return eager(f, q, k, v, mask, p, style=style, dense=both, dense_values=values)
    if env.attention == "sdpa":
        return sdpa(f, q, k, v, mask, causal=causal, capability=env.capability, dense=dense, p=p), None
    return sdpa(f, q, k, v, None, causal=causal, force="flash", dense=dense), None


def eager(
    f: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    p: float,
    *,
    style: str,
    dense: tuple[bool, bool],
    dense_values: bool,
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward as gpt2, gpt_neox, opt, gptj, bart, bert and their like write it."""
    b, heads, s, _ = q.shape
    loose = b > 1
    repeated = k.shape[1] not in (1, heads)
    k, v = repeat_kv(f, k, heads), repeat_kv(f, v, heads)
    weights = _scores(f, q, k, style, loose and not dense[0], loose and not dense[1] and not repeated)
    if mask is not None:
        weights = add(f, weights, mask)
    if style == "fp32":
        weights = cast(f, softmax(f, weights, "fp32"), q.dtype)
    elif style == "upcast":
        weights = cast(f, softmax(f, weights), v.dtype)
    elif style == "raw":
        weights = softmax(f, weights)
    else:
        weights = softmax(f, weights)
        weights = cast(f, weights, v.dtype)
    weights = dropout(f, weights, p)
    out = matmul(f, weights, v, v.shape[-1], copy_b=loose and not repeated and not dense_values)
    out = copy(f, out)
    return out.view(b, s, heads * v.shape[-1]), weights


def _scores(f: Tape, q: Tensor, k: Tensor, style: str, copy_q: bool, copy_k: bool) -> Tensor:
    if style == "upcast":
        # torch.matmul(query.to(float32), key.to(float32)) * scale: the call holds both until the product is there.
        q, k = cast(f, q, "fp32"), cast(f, k, "fp32")
    product = matmul(f, q, k, k.shape[2], copy_a=copy_q, copy_b=copy_k)
    del q, k
    return scale(f, product)


def rotate_pairs(f: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of gpt_neox: the first ``cos.shape[-1]`` of each head turn, the rest is concatenated as it
    is.
    """
    width, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    # Indexing that takes everything is no operation (python_variable_indexing.cpp); an empty rest is still a slice.
    q_rot = slice_of(f, q, (*q.shape[:-1], width)) if rest else q
    q_pass = slice_of(f, q, (*q.shape[:-1], rest))
    k_rot = slice_of(f, k, (*k.shape[:-1], width)) if rest else k
    k_pass = slice_of(f, k, (*k.shape[:-1], rest))
    q_turned, k_turned = turn(f, q_rot, cos, sin), turn(f, k_rot, cos, sin)
    q_turned = joined(f, q_turned, q_pass)
    k_turned = joined(f, k_turned, k_pass)
    return q_turned, k_turned


def rotate_apart(f: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The same where the attention itself cuts and joins (phi, persimmon, stablelm): q, k, and what its names hold."""
    width, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    q_rot, q_pass = slice_of(f, q, (*q.shape[:-1], width)), slice_of(f, q, (*q.shape[:-1], rest))
    k_rot, k_pass = slice_of(f, k, (*k.shape[:-1], width)), slice_of(f, k, (*k.shape[:-1], rest))
    q_turned, k_turned = turn(f, q_rot, cos, sin), turn(f, k_rot, cos, sin)
    held = q_turned, q_pass, k_turned, k_pass
    return joined(f, q_turned, q_pass), joined(f, k_turned, k_pass), held


def turn(f: Tape, x: Tensor, cos: Tensor, sin: Tensor, straight: Tensor | None = None) -> Tensor:
    """``x * cos + rotate_half(x) * sin``; ``straight`` is the first product where it is already there."""
    if straight is None:
        straight = mul(f, x, cos)
    return add(f, straight, mul(f, half_turned(f, x), sin))


def half_turned(f: Tape, x: Tensor) -> Tensor:
    """``rotate_half(x)``: the second half's negative before the first."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return cat(f, scale(f, second), first)


def joined(f: Tape, turned: Tensor, rest: Tensor) -> Tensor:
    """``cat((turned, rest), -1)``; autocast casts to the widest dtype first (promote list of autocast_mode.h)."""
    return cat(f, turned, rest if f.autocast is None else cast(f, rest, turned.dtype))


def turn_every_two(f: Tape, x: Tensor, width: int, tables: Tensor) -> Tensor:
    """apply_rotary_pos_emb of gptj and codegen: sin and cos repeated for each use, neighbours paired."""
    shape = (1, x.shape[1], 1, width)
    sin = f.new(shape, tables.dtype)
    cos = f.new(shape, tables.dtype)
    return add(f, mul(f, x, cos), mul(f, _every_two(f, x), sin))


def _every_two(f: Tape, x: Tensor) -> Tensor:
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = slice_of(f, x, half), slice_of(f, x, half)
    return cat(f, scale(f, second), first)
