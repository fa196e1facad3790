"""Scratch that CUDA kernels take inside one operator, where no dispatch mode can see it.

A model of the kernels of PyTorch 2.13, each with its source; none was confirmed on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CHUNK = 65536
"""Elements a block of a multi-tensor kernel handles (aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize)."""


def workspace_bytes(name: str, args: Any, kwargs: Any, outputs: Any) -> int:
    """Return the bytes that operator ``name`` holds while it runs, beside its inputs and outputs."""
    model = _MODELS.get(name)
    return 0 if model is None else model(args, outputs)


def _foreach_norm(args: Any, outputs: Any) -> int:
    # aten/src/ATen/native/cuda/ForeachReduceOp.cu: output_per_tensor is {ntensors * max_chunks_per_tensor} of fp32.
    tensors = args[0]
    chunks = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    return int(len(tensors) * chunks * 4)


def _flash_backward(args: Any, outputs: Any) -> int:
    # aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp mha_bwd: dq_accum (batch, heads, seqlen rounded to
    # 128, head size rounded to 32) fp32, softmax_d (batch, heads, seqlen rounded) fp32; with grouped heads dk and dv
    # are made per query head and summed.
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    rows = -(-length // 128) * 128
    columns = -(-size // 32) * 32
    total = batch * heads * rows * (columns + 1) * 4
    if key.shape[1] != heads:
        total += 2 * batch * heads * key.shape[2] * size * query.element_size()
    return int(total)


def _efficient_backward(args: Any, outputs: Any) -> int:
    # aten/src/ATen/native/transformers/cuda/attention_backward.cu: delta (batch, heads, rows) fp32 and, for 16-bit
    # inputs, fp32 accumulators of grad_q, grad_k and grad_v in the kernel's workspace.
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    total = batch * heads * length * 4
    if query.element_size() == 2:
        total += batch * heads * (length + 2 * key.shape[2]) * size * 4
    return int(total)


def _embedding_backward(args: Any, outputs: Any) -> int:
    # aten/src/ATen/native/cuda/Embedding.cu: up to 3072 indices one kernel without scratch, above it a radix sort of
    # int64 keys and values (two pairs and the counts).
    indices = args[1].numel()
    return 0 if indices <= 3072 else indices * 8 * 5


def _softmax(args: Any, outputs: Any) -> int:
    # aten/src/ATen/native/cuda/SoftMax.cu host_softmax: `auto input = input_.contiguous()`.
    given = args[0]
    return 0 if given.is_contiguous() else int(given.numel() * given.element_size())


def _logsumexp(args: Any, outputs: Any) -> int:
    # aten/src/ATen/native/ReduceOps.cpp logsumexp_out_impl: `(self - maxes).exp_()`.
    return int(args[0].numel() * args[0].element_size())


_MODELS: dict[str, Callable[[Any, Any], int]] = {
    "aten::_foreach_norm": _foreach_norm,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::logsumexp": _logsumexp,
}
