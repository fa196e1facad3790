"""Trace training steps of a transformers model on fake CUDA tensors."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from memlint.measure.trace import float8
from memlint.measure.trace.adapters import add_lora, checkpoint_layers, freeze, keep_fp32, train_in, trained_parameters
from memlint.measure.trace.bnb_kernels import bnb_kernels
from memlint.measure.trace.build import DTYPES, make_config, make_inputs, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.extend import choose_depths, extend, layer_kinds, shallow
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.mode import RecordingMode
from memlint.measure.trace.optimizers import OPTIMIZERS, keep_in_32_bits
from memlint.measure.trace.phases import label, loss_phase, module_paths
from memlint.measure.trace.quantised import quantise, statistics
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.result import TraceResult, summarise
from memlint.measure.trace.settings import TraceSettings
from memlint.measure.trace.sharding import fake_ranks, shard

Progress = Callable[[str], None]


def trace_model(
    hf_config: Mapping[str, Any], *, precision: str = "bf16", every_layer: bool = True, **settings: Any
) -> TraceResult:
    """Trace the model of ``hf_config``; ``settings`` are fields of :class:`TraceSettings`.

    precision: fp32, bf16, fp16 (weights and compute), bf16-autocast or fp16-autocast (fp32 weights).
    """
    dtype, _, autocast = precision.partition("-")
    chosen = TraceSettings(weights="fp32" if autocast else dtype, autocast=dtype if autocast else None, **settings)
    return trace(hf_config, chosen, every_layer=every_layer)


def trace(
    hf_config: Mapping[str, Any],
    settings: TraceSettings,
    *,
    every_layer: bool = False,
    remote: str | None = None,
    progress: Progress | None = None,
) -> TraceResult:
    """Trace the model of ``hf_config`` and return the account of the last step.

    Unless ``every_layer`` is set, a deep model is traced at two shallow depths and carried on to its own.
    remote: repository or folder whose own code is run (see :func:`make_config`).
    Raises UserError for a model or setting that cannot be traced.
    """
    if remote is not None:
        return _trace_once(hf_config, settings, progress, remote)
    config = make_config(hf_config)
    two_stacks = bool(getattr(config, "is_encoder_decoder", False))
    special_ends = settings.shards > 1 or settings.lora is not None or settings.float8 is not None or two_stacks
    fragments = (*settings.freeze, *settings.train_only)
    by_number = settings.train_last is not None or any(any(c.isdigit() for c in part) for part in fragments)
    depths = None
    if not every_layer and not by_number and getattr(config, "num_hidden_layers", None):
        depths = choose_depths(layer_kinds(config, settings.checkpoint_every), 2 if special_ends else 1)
    if depths is not None:
        low = _trace_once(shallow(hf_config, config, depths.low), settings, progress)
        high = _trace_once(shallow(hf_config, config, depths.high), settings, progress)
        carried = extend(low, high, depths)
        if carried is not None:
            return carried
    return _trace_once(hf_config, settings, progress)


def _trace_once(
    hf_config: Mapping[str, Any], settings: TraceSettings, progress: Progress | None, remote: str | None = None
) -> TraceResult:
    install_idle_cuda()
    recorder = Recorder(progress)
    config = make_config(hf_config, remote)
    # FSDP2 computes in MixedPrecisionPolicy's dtype; accelerate 1.15 _prepare_fsdp2 puts no autocast around the model.
    autocast = DTYPES[settings.autocast] if settings.autocast and settings.shards == 1 else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=settings.padding))
        mesh = stack.enter_context(fake_ranks(recorder, settings.shards)) if settings.shards > 1 else None
        kernels = stack.enter_context(bnb_kernels()) if settings.quantised is not None else {}
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(RecordingMode(recorder, padding=settings.padding, kernels=kernels))
        recorder.enter("build", 0)
        model, base, elements = _prepare(config, settings, stack, recorder, remote is not None)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if mesh is not None:
            shard(model, base, mesh, settings)
        parameters = trained_parameters(model)
        recorder.note_parameters(model.parameters())
        label(recorder, model.parameters(), "params")
        label(recorder, statistics(model), "params")
        label(recorder, model.buffers(), "buffers")
        if settings.fp32_embedding_states:
            keep_in_32_bits(model)
        driver = OPTIMIZERS[settings.optimizer](parameters)
        stack.enter_context(module_paths(recorder, model))
        marks = {}
        stack.enter_context(_no_collection())
        for number in range(1, settings.steps + 1):
            marks = _step(recorder, model, parameters, driver, config, settings, autocast, number)
            # bitsandbytes' layers give their bias another dtype in their first forward.
            label(recorder, model.parameters(), "params")
        recorder.enter("end")
        vocabulary = getattr(config.get_text_config(), "vocab_size", 0)
        return summarise(recorder, (elements, trained), settings.steps, marks, vocabulary)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's cycle collector from ending storages at moments of its own choice."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _prepare(
    config: Any, settings: TraceSettings, stack: contextlib.ExitStack, recorder: Recorder, remote: bool
) -> tuple[Any, Any, int]:
    """The model as it trains, the transformers model inside it, and the elements of that one."""
    weights = DTYPES[settings.weights]
    base = make_model(config, head=settings.head, dtype=weights, attention=settings.attention, remote=remote)
    base.train()
    elements = sum(p.numel() for p in base.parameters())
    if settings.checkpointing != "none":
        checkpoint_layers(base, settings)
    if settings.quantised is not None:
        quantise(base, settings, DTYPES[settings.autocast or settings.weights])
    freeze(base, settings, int(getattr(config, "num_hidden_layers", 0)))
    keep_fp32(base, settings.fp32_modules)
    stack.enter_context(loss_phase(recorder, base))
    model = base if settings.lora is None else add_lora(base, settings.lora)
    if settings.trainable_weights is not None:
        train_in(model, DTYPES[settings.trainable_weights])
    if settings.float8 is not None:
        float8.convert(model, settings.float8)
    return model, base, elements


def _step(
    recorder: Recorder,
    model: Any,
    parameters: list[Any],
    driver: Any,
    config: Any,
    settings: TraceSettings,
    autocast: torch.dtype | None,
    number: int,
) -> dict[str, int]:
    """One optimizer step; of several micro batches the last is followed, gradients alive under it."""
    marks: dict[str, int] = {}
    for micro in range(min(settings.accumulation, 2)):
        last = micro == min(settings.accumulation, 2) - 1
        inputs = make_inputs(config, settings)
        label(recorder, inputs.values(), "inputs")
        marks["begin"] = len(recorder.events)
        recorder.enter("forward", number if last else -number)
        with torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext():
            outputs = model(**inputs)
            loss = outputs.loss
            del outputs
        marks["forward_end"] = len(recorder.events)
        recorder.enter("backward")
        loss.backward()
        marks["backward_end"] = len(recorder.events)
        label(recorder, [p.grad for p in parameters if p.grad is not None], "grads")
        del loss
        if not last:
            del inputs
    recorder.enter("clip")
    if settings.max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm, foreach=True)
    recorder.enter("optimizer")
    driver.step()
    label(recorder, [value for state in driver.state.values() for value in state.values()], "optim")
    label(recorder, getattr(driver, "maps", []), "optim")
    recorder.enter("zero_grad")
    driver.zero_grad(set_to_none=True)
    return marks
