"""What a trainer reads from data, declared: a fake tensor has none, and CUDA's Triton kernels cannot be compiled.

TRL asks how many labels count (``hidden_states[mask]``), which rows are chosen (``nonzero``) and for numbers to log
(``item()``). Here every label counts, every row is chosen and every number is one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from memlint.measure.trace.mode import RecordingMode

ATEN = torch.ops.aten
PUT = (ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default)


class DeclaringMode(RecordingMode):
    """Record operators; those whose result's size or value hangs on data get the declared one."""

    scored: dict[tuple[int, ...], int]
    """Shape of a mask -> how many of its elements are true; all of them where it is not named."""
    rejected: set[int]
    """Storages of row masks that were inverted: of the rows that are not chosen."""
    number = 1
    """What an integer read from a tensor is: TRL 1.9 counts the labels of its chunked loss so."""
    chosen = False
    """KTO asks for the chosen rows, then for the rejected ones: here all rows are chosen, the most it logs at once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, or what CUDA runs in its place once the number of true elements is known."""
        if func is ATEN._local_scalar_dense.default and args[0].dtype != torch.bool:
            return 1.0 if args[0].is_floating_point() else self.number
        if func is ATEN._local_scalar_dense.default and self.recorder.modules[-1:] in ([""], ["base_model.model"]):
            return False  # "is every label masked?", asked in the whole model's own forward
        if func is ATEN.index.Tensor and _boolean(args[1]) is not None:
            # expandTensors (aten/src/ATen/native/IndexingUtils.h): the places of a mask's true elements.
            return super().__torch_dispatch__(func, types, (args[0], self._expanded(args[1])), kwargs)
        if func in PUT and _boolean(args[1]) is not None:
            return super().__torch_dispatch__(func, types, (args[0], self._expanded(args[1]), *args[2:]), kwargs)
        if func is ATEN.bitwise_not.default and args[0].dim() == 1:
            inverted = super().__torch_dispatch__(func, types, args, kwargs)
            self.rejected.add(inverted.untyped_storage()._cdata)
            return inverted
        if func is ATEN.nonzero.default:
            self.chosen = not self.chosen
            count = args[0].numel() if self.chosen else 0
            return self._made("aten::nonzero", (count, args[0].dim()), torch.long)
        if func is ATEN.masked_select.default:
            return self._made("aten::masked_select", (self._true(args[1]),), args[0].dtype)
        if func is ATEN.masked_scatter_backward.default:
            # FunctionsManual's masked_scatter_backward: grad.masked_select(mask), as long as the source was.
            return self._made("aten::masked_select", tuple(args[2]), args[0].dtype)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _true(self, mask: torch.Tensor) -> int:
        if mask.dim() == 1 and mask.untyped_storage()._cdata in self.rejected:
            return 0
        return int(self.scored.get(tuple(mask.shape), mask.numel()))

    def _made(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype, device="cuda")
        self.recorder.observe(name, made, (), {})
        return made

    def _expanded(self, indices: list[Any]) -> list[Any]:
        mask = _boolean(indices)
        assert mask is not None
        places = self._made("aten::nonzero", (mask.dim(), self._true(mask)), torch.long)
        return [*places.unbind(0), *indices[1:]]


def _boolean(indices: Any) -> torch.Tensor | None:
    first = indices[0]
    return first if first is not None and first.dtype in (torch.bool, torch.uint8) else None


class _Kernel:
    """A Triton kernel that has run: it writes into tensors it was given and allocates nothing."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: None


@contextlib.contextmanager
def _triton() -> Iterator[None]:
    """PyTorch for CUDA on Linux brings Triton along; its kernels take no memory of their own."""
    import transformers.utils
    from torch.utils import _triton

    importlib.import_module("torch._dynamo")  # which reads Triton's own names, where it is installed
    _triton.has_triton_package()  # settled before the stand-in can be seen
    package: Any = types.ModuleType("triton")
    language: Any = types.ModuleType("triton.language")
    package.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    language.constexpr = Any
    package.language = language
    package.jit = lambda function: _Kernel()
    package.cdiv = lambda a, b: -(-a // b)
    stand_ins = {"triton": package, "triton.language": language}
    real = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        with mock.patch.object(transformers.utils, "is_triton_available", return_value=True):
            yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(real)


def trainer_class(module: str, name: str) -> Any:
    """A trainer of TRL, imported as on a machine with CUDA. Raises ImportError where TRL is not installed."""
    with _triton():
        return getattr(importlib.import_module(f"trl.{module}"), name)


def prepare(model: Any, autocast: torch.dtype | None) -> None:
    """What accelerate 1.15's Accelerator.prepare_model does to a model under mixed precision."""
    if autocast is None:
        return
    from accelerate.utils import convert_outputs_to_fp32

    inner = torch.autocast("cuda", autocast)(model.forward.__func__)
    model.forward = types.MethodType(inner, model)
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)
