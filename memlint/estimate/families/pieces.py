"""What several families of the earlier transformer shapes share: layer norms, and attention that also returns its weights."""

from __future__ import annotations

from math import prod

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.ops.attention import repeat_kv, sdpa, softmax
from memlint.estimate.ops.basic import add, cast, copy, dropout, scale
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.norm import layer_norm


class LayerNorm:
    """nn.LayerNorm, with or without weight and bias."""

    __slots__ = ("bias", "weight")

    def __init__(self, b: Build, name: str, width: int, *, affine: bool = True, bias: bool = True) -> None:
        self.weight = b.parameter(f"{name}.weight", width) if affine else None
        self.bias = b.parameter(f"{name}.bias", width) if affine and bias else None

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        return layer_norm(f, x, self.weight, self.bias)


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
    softmax_fp32: bool = True,
    upcast: bool = False,
    folded: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention as the job asks for it: q [B, h, S, D], k and v [B, kv, T, D] -> [B, S, h*D], and its weights under eager.

    The weights are returned as transformers returns them: the caller's ``_`` keeps them alive until the block is done.
    ``softmax_fp32``: ``softmax(dtype=float32).to(dtype)``, else softmax in the dtype of the scores. ``upcast``: gptj's scores
    in fp32. ``folded``: q and k are contiguous [B, h, S, D] (made by cat), so matmul need not copy them.
    """
    if env.attention == "eager":
        return eager(f, q, k, v, mask, p, softmax_fp32=softmax_fp32, upcast=upcast, folded=folded)
    if env.attention == "sdpa":
        return sdpa(f, q, k, v, mask, causal=causal, capability=env.capability), None
    return sdpa(f, q, k, v, None, causal=causal, force="flash"), None


def eager(
    f: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    p: float,
    *,
    softmax_fp32: bool,
    upcast: bool,
    folded: bool,
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward as gpt2, gpt_neox, opt, bart, bert and their like write it."""
    b, heads, s, d = q.shape
    dtype = v.dtype
    repeated = k.shape[1] not in (1, heads)
    k, v = repeat_kv(f, k, heads), repeat_kv(f, v, heads)
    loose = b > 1
    length = k.shape[2]
    if upcast:
        weights = matmul(f, cast(f, q, "fp32"), cast(f, k, "fp32"), length, copy_a=loose and not folded, copy_b=loose and not folded)
    else:
        weights = matmul(f, q, k, length, copy_a=loose and not folded, copy_b=loose and not folded and not repeated)
    weights = scale(f, weights)
    if mask is not None:
        weights = add(f, weights, mask)
    if softmax_fp32:
        weights = cast(f, softmax(f, weights, "fp32"), dtype)
    else:
        weights = softmax(f, weights)
        weights = cast(f, weights, dtype)
    weights = dropout(f, weights, p)
    out = matmul(f, weights, v, v.shape[-1], copy_b=loose and not repeated)
    out = copy(f, out)
    return out.view(b, s, heads * v.shape[-1]), weights
