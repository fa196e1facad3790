"""Tell the recorder where a step is: the module that runs, the loss, and the labels of what lives long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from memlint.measure.trace.recorder import Recorder

LOSSES = ("cross_entropy", "mse_loss", "binary_cross_entropy_with_logits")


def local(tensor: Any) -> Any:
    """The tensor this rank holds of a DTensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def label(recorder: Recorder, tensors: Iterable[Any], component: str) -> None:
    """Put tensors' storages under a component, unless they are under one already."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            record = recorder.storages.get(local(tensor).untyped_storage()._cdata)
            if record is not None and not record.component:
                record.component = component


@contextlib.contextmanager
def module_paths(recorder: Recorder, model: Any) -> Iterator[None]:
    """Keep the path of the running module at hand; PEFT's and FSDP's wrappers are left out of the names."""
    names = {module: _plain(name) for name, module in model.named_modules()}
    stack = recorder.modules

    def before(module: Any, args: Any) -> None:
        stack.append(names.get(module, ""))

    def after(module: Any, args: Any, output: Any) -> None:
        stack.pop()

    hooks = []
    for module in names:
        # Before FSDP's own hooks, so that its all-gathers belong to the module they serve.
        hooks.append(module.register_forward_pre_hook(before, prepend=True))
        hooks.append(module.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.").replace("._checkpoint_wrapped_module", "")


@contextlib.contextmanager
def loss_phase(recorder: Recorder, model: Any) -> Iterator[None]:
    """Enter the phase ``loss`` when transformers' loss function, or a loss inside the model's forward, is called."""

    def entering(inner: Any) -> Any:
        def loss(*args: Any, **kwargs: Any) -> Any:
            if recorder.phase == "forward":
                recorder.enter("loss")
            return inner(*args, **kwargs)

        return loss

    with contextlib.ExitStack() as stack:
        for name in LOSSES:
            function = getattr(torch.nn.functional, name)
            stack.enter_context(mock.patch.object(torch.nn.functional, name, entering(function)))
        inner = getattr(model, "loss_function", None)
        if inner is not None:
            model.loss_function = entering(inner)
        yield
