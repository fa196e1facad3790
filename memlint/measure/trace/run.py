"""Trace two training steps of a transformers model on fake CUDA tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from memlint.measure.trace.build import DTYPES, make_config, make_inputs, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.optimizers import OPTIMIZERS
from memlint.measure.trace.recorder import Recorder, RecordingMode
from memlint.measure.trace.result import TraceResult, summarise


def trace_model(
    hf_config: Mapping[str, Any],
    *,
    head: str = "causal",
    batch: int,
    seq: int,
    precision: str = "bf16",
    checkpointing: str = "none",
    optimizer: str = "adamw",
    attention: str = "sdpa",
    max_grad_norm: float | None = 1.0,
    target_seq: int | None = None,
    padding: bool = False,
    steps: int = 2,
) -> TraceResult:
    """Build the model of ``hf_config``, run ``steps`` training steps on fake tensors and return the account of the last.

    precision: fp32, bf16, fp16, bf16-autocast or fp16-autocast. checkpointing: none, nonreentrant or reentrant.
    """
    install_idle_cuda()
    recorder = Recorder()
    weights, _, autocast = precision.partition("-")
    dtype = DTYPES["fp32" if autocast else weights]
    config = make_config(hf_config)
    with cuda_choices(recorder, padding=padding), FakeTensorMode(allow_non_fake_inputs=True), RecordingMode(recorder, padding=padding):
        recorder.enter("build", 0)
        model = make_model(config, head=head, dtype=dtype, attention=attention)
        model.train()
        if checkpointing != "none":
            model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
        parameters = [p for p in model.parameters() if p.requires_grad]
        recorder.parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        _label(recorder, [p for p in model.parameters()], "params")
        _label(recorder, list(model.buffers()), "buffers")
        inputs = make_inputs(config, head=head, batch=batch, seq=seq, target_seq=target_seq, padding=padding)
        _label(recorder, list(inputs.values()), "inputs")
        driver = OPTIMIZERS[optimizer](parameters)
        marks: dict[str, int] = {}
        with _module_paths(recorder, model), _loss_phase(recorder, model):
            for number in range(1, steps + 1):
                marks["begin"] = len(recorder.events)
                recorder.enter("forward", number)
                with torch.autocast("cuda", DTYPES[weights]) if autocast else contextlib.nullcontext():
                    outputs = model(**inputs)
                    loss = outputs.loss
                    del outputs
                marks["forward_end"] = len(recorder.events)
                recorder.enter("backward")
                loss.backward()
                marks["backward_end"] = len(recorder.events)
                _label(recorder, [p.grad for p in parameters if p.grad is not None], "grads")
                del loss
                recorder.enter("clip")
                if max_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm, foreach=True)
                recorder.enter("optimizer")
                driver.step()
                _label(recorder, [s for state in driver.state.values() for s in state.values()], "optim")
                _label(recorder, getattr(driver, "maps", []), "optim")
                recorder.enter("zero_grad")
                driver.zero_grad(set_to_none=True)
        recorder.enter("end")
        vocabulary = getattr(config.get_text_config(), "vocab_size", 0)
        return summarise(recorder, model, steps, marks, vocabulary)


def _label(recorder: Recorder, tensors: list[Any], component: str) -> None:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            record = recorder.storages.get(tensor.untyped_storage()._cdata)
            if record is not None and not record.component:
                record.component = component


@contextlib.contextmanager
def _module_paths(recorder: Recorder, model: Any) -> Iterator[None]:
    names = {module: name or type(module).__name__ for name, module in model.named_modules()}
    stack = recorder.modules

    def before(module: Any, args: Any) -> None:
        stack.append(names.get(module, type(module).__name__))

    def after(module: Any, args: Any, output: Any) -> None:
        stack.pop()

    hooks = []
    for module in names:
        hooks.append(module.register_forward_pre_hook(before))
        hooks.append(module.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


LOSSES = ("cross_entropy", "mse_loss", "binary_cross_entropy_with_logits")


@contextlib.contextmanager
def _loss_phase(recorder: Recorder, model: Any) -> Iterator[None]:
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
