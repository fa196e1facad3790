"""Liger's chunked losses inside TRL's trainers, with torch.compile as it would run them on a GPU.

Liger-Kernel 0.8.5 ``chunked_loss``, which TRL takes until 1.12 (``use_liger_kernel``; ``use_liger_loss`` before 0.28).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from benchmarks.objectives.declared import trainer_class
from benchmarks.objectives.inductor import Compiled
from memlint.measure.trace.recorder import Recorder

LOSSES = {
    "dpo": ("dpo_loss", "LigerFusedLinearDPOLoss"),
    "kto": ("kto_loss", "LigerFusedLinearKTOLoss"),
    "grpo": ("grpo_loss", "LigerFusedLinearGRPOLoss"),
    "orpo": ("orpo_loss", "LigerFusedLinearORPOLoss"),
    "simpo": ("simpo_loss", "LigerFusedLinearSimPOLoss"),
    "cpo": ("cpo_loss", "LigerFusedLinearCPOLoss"),
}


def loss_class(kind: str) -> Any:
    """A loss of liger_kernel.chunked_loss, without the package's Triton kernels. Raises ImportError."""
    if "liger_kernel.chunked_loss" not in sys.modules:
        place = next((p for p in sys.path if os.path.isdir(os.path.join(p, "liger_kernel", "chunked_loss"))), None)
        if place is None:
            raise ImportError("there is no liger_kernel on the path")
        for name in ("liger_kernel", "liger_kernel.chunked_loss"):
            package: Any = types.ModuleType(name)
            package.__path__ = [os.path.join(place, *name.split("."))]
            sys.modules[name] = package
    module, name = LOSSES[kind]
    return getattr(importlib.import_module(f"liger_kernel.chunked_loss.{module}"), name)


class _Lifted:
    """A closure over tensors as a function of them, as dynamo makes one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Any = function
        self.made: dict[Any, Compiled] = {}

    def __call__(self, *chunks: Any) -> Any:
        cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__))
        loss, weight = cells["compute_loss"].cell_contents, cells["weight"].cell_contents
        given = [(place, value) for place, value in enumerate(chunks) if isinstance(value, torch.Tensor)]
        named = {name: value for name, value in loss.keywords.items() if isinstance(value, torch.Tensor)}
        tensors = [*(value for _, value in given), weight, *named.values()]

        def flat(*values: torch.Tensor) -> Any:
            arguments = list(chunks)
            for (place, _), value in zip(given, values):
                arguments[place] = value
            rest = dict(zip(named, values[len(given) + 1 :]))
            cells["weight"].cell_contents = values[len(given)]
            cells["compute_loss"].cell_contents = functools.partial(loss.func, **{**loss.keywords, **rest})
            try:
                return self.function(*arguments)
            finally:
                cells["weight"].cell_contents, cells["compute_loss"].cell_contents = weight, loss

        key = tuple((tuple(t.shape), t.dtype, t.requires_grad) for t in tensors)
        if key not in _MADE:
            _MADE[key] = Compiled(flat, tensors)
        return _MADE[key](tensors)


_MADE: dict[Any, Compiled] = {}


def _compile(function: Any, *args: Any, **options: Any) -> Any:
    # GRPO compiles the sums over numbers of a row alone; there is nothing to see in them.
    return function if isinstance(function, functools.partial) else _Lifted(function)


def _ignored(tensor: Any, dimension: int) -> None:
    """Mark no dimension; a mock would hold the tensor."""


class _Torch:
    """torch for a module that asks whether the loss's gradient is one: without accumulation it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, value: float, *, device: torch.device) -> float:
        return value

    def ne(self, gradient: torch.Tensor, one: float) -> bool:
        return False


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """torch.compile is inductor's wrapper for a GPU, run over fake tensors."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "compile", _compile))
        dynamo = importlib.import_module("torch._dynamo")
        for name in ("mark_dynamic", "maybe_mark_dynamic"):
            stack.enter_context(mock.patch.object(dynamo, name, _ignored))
        for name in ("fused_linear_preference", "fused_linear_unpaired_preference"):
            module = sys.modules.get(f"liger_kernel.chunked_loss.{name}")
            if module is not None:
                stack.enter_context(mock.patch.object(module, "torch", _Torch()))
        yield


def use_liger(trainer: Any, objective: str, recorder: Recorder) -> None:
    """What the trainer's ``__init__`` of TRL 1.9 sets under ``use_liger_kernel``; the loss is a phase of its own."""
    arguments = trainer.args
    trainer.use_liger_kernel, trainer._is_vlm, trainer.is_fsdp_enabled = True, False, False
    trainer.accelerator.state = SimpleNamespace(deepspeed_plugin=None)
    trainer._forward_redirection = trainer_class("models.utils", "_ForwardRedirection")()
    owner = loss_class(objective)
    loss: Any
    if objective == "dpo":
        loss = owner(beta=arguments.beta, loss_type=arguments.loss_type[0])
    elif objective == "kto":
        loss = owner(beta=arguments.beta, use_ref_model=trainer.ref_model is not None)
    else:
        loss = owner(
            beta=arguments.beta, epsilon_low=arguments.epsilon, loss_type=arguments.loss_type,
            use_ref_model=arguments.beta != 0.0, max_completion_length=arguments.max_completion_length,
        )  # fmt: skip

    def entering(*args: Any, **options: Any) -> Any:
        recorder.enter("loss")
        return loss(*args, **options)

    trainer.liger_loss = entering
