"""Make Python code that asks for the device take the path it takes on an A100.

Tracing runs on a machine without a GPU, where PyTorch and transformers would pick other attention kernels, refuse
autocast, and treat fake tensors as a graph capture. Every patch here restores what CUDA does, and is undone on exit.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.settings import CAPABILITY


@contextlib.contextmanager
def cuda_choices(recorder: Recorder, *, padding: bool = False) -> Iterator[None]:
    """Patch PyTorch and transformers for the time of a trace.

    padding: whether the batch holds padded rows, which is what a data-dependent mask check would find.
    """
    import transformers  # noqa: F401
    from transformers import masking_utils
    from transformers.utils import import_utils

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _attention(recorder, *args, **kwargs)

    def capability(device: Any = None) -> tuple[int, int]:
        return CAPABILITY

    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        put(torch.nn.functional, "scaled_dot_product_attention", attention)
        put(torch.nn.functional, "rms_norm", _rms_norm)
        put(torch.nn.functional, "linear", _linear)
        put(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        put(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
        put(torch.cuda, "get_device_capability", capability)
        put(torch.cuda, "current_device", lambda: 0)
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, "_get_value"):
                put(module, "_get_value", _number)
        put(torch.nn.Module, "_apply", _apply)
        # A copied fake tensor would belong to a copy of its mode, and each view of it would have a storage of its own.
        stack.enter_context(mock.patch.object(FakeTensorMode, "__deepcopy__", _itself, create=True))
        put(import_utils, "is_fake_tensor", lambda value: False)
        put(masking_utils, "fast_all", lambda tensor: not padding)
        yield


_LINEAR = torch.nn.functional.linear


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``at::linear`` of aten/src/ATen/native/Linear.cpp (2.13): a bias is added in place where x is not contiguous.

    Under a dispatch mode it is added out of place, "for composite compliance". A bias that autocast would cache is left
    to it.
    """
    if bias is None or x.dim() != 3 or x.is_contiguous() or (torch.is_autocast_enabled("cuda") and bias.is_leaf):
        return _LINEAR(x, weight, bias)
    out = _LINEAR(x, weight)
    return out.add_(bias.to(out.dtype))


class _FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """What ``_fused_rms_norm`` of a CUDA build allocates; a build without CUDA has its composite form only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        deviation = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, deviation)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


def _rms_norm(x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None) -> Any:
    """``rms_norm`` of aten/src/ATen/native/layer_norm.cpp (2.13): fused unless the weight has another dtype.

    Under autocast it is on the fp32 list (autocast_mode.h).
    """
    if torch.is_autocast_enabled("cuda"):
        x, weight = x.float(), None if weight is None else weight.float()
    if len(shape) != 1 or (weight is not None and weight.dtype != x.dtype):
        return torch.rms_norm(x, shape, weight, eps)
    return _FusedRmsNorm.apply(x, weight)


def _itself(mode: Any, memo: Any) -> Any:
    return mode


def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
    """``Module._apply`` without swapping tensor contents, which fake tensors refuse; PEFT moves its adapters so."""
    if recurse:
        for child in self.children():
            child._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                applied = fn(parameter)
            if applied is not parameter:
                self._parameters[name] = torch.nn.Parameter(applied, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _number(value: Any) -> Any:
    # The step counter of an optimizer is a fake CPU tensor; its value changes no size.
    return 1.0 if isinstance(value, torch.Tensor) else value


def attention_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, grouped: bool
) -> str:
    """Name the kernel (flash, efficient, math) that PyTorch 2.13 takes on an A100.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_tensor_shapes, check_head_dim_size_*,
    check_batch_size_and_num_heads_dense, minimum_gemm_alignment).
    """
    size = query.shape[-1]
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    contiguous = all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = same_heads or (grouped and key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0)
    if query.dim() != 4 or not contiguous:
        return "math"
    if half and mask is None and fits and size == key.shape[-1] == value.shape[-1] <= 256:
        return "flash"
    alignment = 8 if half else 4
    aligned = size % alignment == 0 and value.shape[-1] % alignment == 0
    if same_heads and aligned and (mask is None or mask.stride(-1) == 1):
        return "efficient"
    return "math"


def _attention(
    recorder: Recorder,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Do what ``at::scaled_dot_product_attention`` does on CUDA (aten/src/ATen/native/transformers/attention.cpp)."""
    if torch.is_autocast_enabled("cuda"):
        # autocast_mode.h lists scaled_dot_product_attention among the lower precision operators.
        half = torch.get_autocast_dtype("cuda")
        query, key, value = (t.to(half) if t.dtype == torch.float32 else t for t in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.float32:
            attn_mask = attn_mask.to(half)
    kernel = attention_kernel(query, key, value, attn_mask, enable_gqa)
    recorder.kernels[kernel] = recorder.kernels.get(kernel, 0) + 1
    size = query.shape[-1]
    with torch.autocast("cuda", enabled=False):
        if attn_mask is not None and attn_mask.dtype == torch.bool and kernel != "math":
            closed = torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=query.device)
            attn_mask = torch.where(attn_mask, 0.0, closed)
        if kernel == "flash":
            if size % 8:
                scale = size**-0.5 if scale is None else scale
                pad = 8 - size % 8
                query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
            result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return result[..., :size] if size % 8 else result
        if kernel == "efficient":
            if attn_mask is not None:
                attn_mask = _expanded_mask(attn_mask, query, key)
            keep = query.requires_grad or key.requires_grad or value.requires_grad
            return torch.ops.aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, keep, dropout_p, is_causal, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]


def _expanded_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    columns = mask.shape[-1]
    if columns % 16:
        # pad_bias: the kernel reads rows of the bias in multiples of 16.
        mask = torch.nn.functional.pad(mask, (0, 16 - columns % 16))[..., :columns]
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
