"""FlashAttention-2 as transformers calls it, by way of PyTorch's copy of the same kernel.

The ``flash_attn`` package needs a GPU; PyTorch's ``_scaled_dot_product_flash_attention`` saves the same tensors (query,
key, value, output, fp32 log-sum-exp, random state).
"""

from __future__ import annotations

from typing import Any

import torch

NAME = "memlint_fa2"
"""Without the word "flash": transformers would look for the package."""


def register() -> None:
    """Make the attention implementation ``memlint_fa2`` known to transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, flash_attention_mask)


def _forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    if query.dtype == torch.float32:
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.bfloat16
        query, key, value = query.to(half), key.to(half), value.to(half)
    causal = bool(module.is_causal if is_causal is None else is_causal)
    size, width = query.shape[-1], value.shape[-1]
    scale = size**-0.5 if scaling is None else scaling
    if width != size:
        value = torch.nn.functional.pad(value, [0, size - width])
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width].transpose(1, 2), None
