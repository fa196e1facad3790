"""bitsandbytes' CUDA operators on fake tensors: their Python code runs as it is, the launches inside it do nothing.

What an operator allocates stands in bitsandbytes/backends/{cuda,default}/ops.py; its registered fake kernels know the
result alone. So the functions of these two files are run in their place. The files are loaded as copies of their own,
whose compiled library does nothing, whose GPU is the A100 of :mod:`.cuda_choices` and which register no kernel.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensor

from memlint.errors import UserError
from memlint.measure.trace.settings import CAPABILITY

MULTIPROCESSORS = 108
"""Of an A100: gemm_4bit chooses its kernel by it (backends/cuda/ops.py _gemm_4bit_use_custom_cuda)."""

OLDEST = "0.46"
"""First release whose operators are functions of backends/cuda/ops.py."""

Kernels = dict[str, Callable[..., Any]]
"""Operator and overload ("gemm_4bit.default") -> the function that runs for CUDA tensors."""


def bitsandbytes() -> Any:
    """The package. Raises UserError where it is not installed or has no such files."""
    try:
        import bitsandbytes
        import bitsandbytes.functional
    except ImportError as error:
        raise UserError(
            "memlint trace runs bitsandbytes' own code for 4-bit and 8-bit weights, and cannot import it"
            f" ({error}): install it with `pip install 'bitsandbytes>={OLDEST}'`, or use `memlint estimate`"
        ) from None
    if not os.path.exists(_file(bitsandbytes, "cuda")):
        raise UserError(
            f"memlint trace cannot run bitsandbytes {bitsandbytes.__version__}'s code on fake tensors: install it with"
            f" `pip install 'bitsandbytes>={OLDEST}'`, or use `memlint estimate`"
        )
    return bitsandbytes


@contextlib.contextmanager
def bnb_kernels() -> Iterator[Kernels]:
    """Load the operators, and let code that asks for a tensor's address have one, for the time of a trace."""
    import logging

    logger = logging.getLogger("bitsandbytes")
    with contextlib.ExitStack() as stack:
        # It warns at every int8 product that bf16 is cast.
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        package = bitsandbytes()
        # The map of 256 values that compresses statistics is made once a process; made on fake tensors it would
        # outlive them. Its values are computed here, where tensors have some.
        stack.enter_context(mock.patch.dict(package.functional.name2qmap, clear=True))
        package.functional.name2qmap["dynamic"] = package.functional.create_dynamic_map()
        stack.enter_context(mock.patch.object(FakeTensor, "data_ptr", return_value=0, create=True))
        yield {**_functions(package, "default"), **_functions(package, "cuda")}


def _file(package: ModuleType, backend: str) -> str:
    return os.path.join(os.path.dirname(str(package.__file__)), "backends", backend, "ops.py")


def _functions(package: Any, backend: str) -> Kernels:
    """The operators of one file."""
    found: Kernels = {}

    def collect(name: str, device: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            short = name.partition("::")[2]
            found[short if "." in short else f"{short}.default"] = function
            return function

        return keep

    def stream(index: int) -> int:
        return 0

    spec = importlib.util.spec_from_file_location(
        f"bitsandbytes.backends.{backend}.memlint_copy", _file(package, backend)
    )
    assert spec is not None and spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    with (
        mock.patch.object(package._ops, "register_kernel", collect),
        mock.patch.object(package.cextension, "lib", _Idle()),
        mock.patch.object(package.functional, "CUBLAS_Context", _Idle()),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", stream, create=True),
    ):
        spec.loader.exec_module(copy)
    copy._gpu_dispatch_props = lambda index: (MULTIPROCESSORS, *CAPABILITY)
    return found


class _Idle:
    """Stands for the compiled library: whatever is called in it does nothing and reports no error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Launch()


class _Launch(_Idle):
    """A function of the library, whose ``argtypes`` may be declared."""

    def __call__(self, *args: Any) -> Any:
        return _Launch()

    def __bool__(self) -> bool:
        return False  # no error
