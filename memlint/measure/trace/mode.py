"""The dispatch mode above FakeTensorMode that hands every operator to a recorder, and restores what a mode changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from typing import Any

import torch
import torch.distributed.tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from memlint.measure.trace.recorder import Recorder

_UNEQUAL = torch.ops.aten.ne.Scalar


class RecordingMode(TorchDispatchMode):  # type: ignore[misc]
    """Run each operator and hand its outputs to a :class:`Recorder`."""

    def __init__(
        self, recorder: Recorder, *, padding: bool = False, kernels: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        super().__init__()
        self.kernels = kernels or {}
        """bitsandbytes' operators, run as the Python they are written in (see :mod:`.bnb_kernels`)."""
        self.recorder = recorder
        self.padding = padding
        self.asked_finite = False
        _last_references()  # counted before this mode is active
        self.threads: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and record what it made."""
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # PyTorch asks for it more often than it runs an operator
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # taken apart into this rank's tensors first
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            # Checks such as "is nothing masked?", "are rows not packed?": their answer is declared, not computed.
            finite, self.asked_finite = self.asked_finite, False
            return finite or not self.padding
        if func is _UNEQUAL and args[1] == inf:
            # torch.isfinite compares with infinity (TensorCompare.cpp): what a run computes is finite, padded or not.
            self.asked_finite = True
        if threading.get_ident() not in self.threads:
            # FakeTensorMode sets this for the thread that enters it; autograd's device thread needs it too, or an index
            # given as a Python list is moved to a device that does not exist.
            self.threads.add(threading.get_ident())
            torch._C._set_only_lift_cpu_tensors(True)
        if self.kernels and func.namespace == "bitsandbytes" and _short(func) in self.kernels:
            # Below autograd, as a kernel runs; its own operators come back here.
            with torch._C._AutoDispatchBelowAutograd(), self:
                return self.kernels[_short(func)](*args, **kwargs)
        if self.kernels and func is torch.ops.aten.is_nonzero.default:
            # LLM.int8() asks whether a column holds a value above its threshold. Data decide: few of a layer's columns
            # do, whose copies are small; the trace has none.
            return False
        recorder = self.recorder
        if recorder.modules and torch.is_grad_enabled():
            paths = recorder.recomputed_paths if recorder.phase == "backward" else recorder.paths
            paths[torch.autograd._get_sequence_nr() - 1] = recorder.modules[-1]
        if func is torch.ops.aten.add.Tensor and recorder.phase == "backward" and _accumulates_in_place(args, kwargs):
            func = torch.ops.aten.add_.Tensor
        if func is torch.ops.aten._grouped_mm.default:
            outputs = _grouped_mm(func, args, kwargs)
        else:
            outputs = func(*args, **kwargs)
        recorder.observe(func._schema.name, outputs, args, kwargs)
        return outputs


def _short(func: Any) -> str:
    return str(func).partition(".")[2]


def _accumulates_in_place(args: Any, kwargs: Any) -> bool:
    """Whether the engine, summing two gradients of one tensor, would write into the first.

    torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace: it does when it holds the last reference to the tensor
    and its storage and no dispatch mode is active. A mode is active here, so its choice is restored from how many
    references there are. A view holds its base, so a storage that a view arrives with is never the last reference;
    a reentrant checkpoint's incoming gradient is held by the call of its backward.
    """
    if torch.is_grad_enabled() or kwargs or len(args) != 2:
        return False
    old, new = args
    return (
        isinstance(new, torch.Tensor)
        and old.shape == new.shape
        and old.dtype == new.dtype
        and not old._is_view()
        and _dense(old)
        and all(count <= last for count, last in zip(_references(old), _last_references()))
    )


def _references(tensor: torch.Tensor) -> tuple[int, int]:
    """References to a tensor and to its storage, those of this call included; none are counted before torch 2.13."""
    if not hasattr(tensor, "_use_count"):
        return (0, 0)
    storage: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return (tensor._use_count(), storage)


@cache
def _last_references() -> tuple[int, int]:
    """:func:`_references` of a gradient that nobody but the engine holds, as a dispatch mode sees it."""
    seen: list[tuple[int, int]] = []

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
                seen.append(_references(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Counting():
        start = torch.ones(2, requires_grad=True).exp()
        (start + start.sin()).sum().backward()
    return seen[0]


def _dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _grouped_mm(func: Any, args: Any, kwargs: Any) -> Any:
    """Shapes of a grouped matrix product in fp32: CUDA computes it, PyTorch's fake kernel knows bf16 alone."""
    dtype = args[0].dtype
    if dtype == torch.bfloat16:
        return func(*args, **kwargs)
    halves = [a.to(torch.bfloat16) if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args]
    return func(*halves, **kwargs).to(dtype)
