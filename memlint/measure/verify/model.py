"""The job's model with random weights on a real device: built without weights, quantised, adapted, sharded, filled.

Parameters are made on the meta device and given memory only where they stay: building takes no more than the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memlint.measure.trace.adapters import add_lora, checkpoint_layers, freeze, keep_fp32, train_in
from memlint.measure.trace.build import DTYPES, make_config, make_model
from memlint.measure.trace.phases import local
from memlint.measure.trace.recorder import rounded
from memlint.measure.verify.quantised import has_bitsandbytes, quantise_in_place
from memlint.measure.verify.request import Plan

DEVIATION = 0.02
"""Of random weights; transformers' usual ``initializer_range``."""


@dataclass(slots=True, kw_only=True)
class Built:
    """A model ready to train."""

    model: Any
    """What is called: the adapter's or DDP's wrapper, or the model itself."""
    base: Any
    """The transformers model inside."""
    config: Any
    elements: int
    """Parameters of the base model, tied weights once, before quantisation and sharding."""
    trained: int
    notes: tuple[str, ...]


def build(plan: Plan, mesh: Any) -> Built:
    """Build the model of ``plan`` on this process's device; ``mesh`` are the ranks of a distributed run, or None."""
    from accelerate import init_empty_weights

    settings, device = plan.settings, plan.device
    notes: list[str] = []
    config = make_config(plan.config)
    attention = _attention(settings.attention, device, notes)
    with init_empty_weights(include_buffers=False):
        base = make_model(
            config, head=settings.head, dtype=DTYPES[settings.weights], attention=attention, device=device
        )
    base.tie_weights()  # every parameter registered under accelerate's patch became one of its own
    base.train()
    elements = sum(p.numel() for p in base.parameters())
    if settings.checkpointing != "none":
        checkpoint_layers(base, settings)
    if settings.quantised is not None:
        quantization = plan.job.training.quantization
        kind = quantization.type if quantization is not None else "nf4"
        real = has_bitsandbytes()
        if not real:
            notes.append("bitsandbytes is not installed: 4-bit weights are stood in for by tensors of the same sizes")
        give_memory(base, device)
        quantise_in_place(base, settings, kind=kind, real=real, device=device)
    freeze(base, settings, int(getattr(config, "num_hidden_layers", 0)))
    keep_fp32(base, settings.fp32_modules)
    model = base if settings.lora is None else add_lora(base, settings.lora)
    if settings.trainable_weights is not None:
        train_in(model, DTYPES[settings.trainable_weights])
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if plan.strategy == "fsdp":
        from memlint.measure.trace.sharding import shard

        shard(model, base, mesh, settings)
        model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
    give_memory(model, device)
    fill(model)
    if plan.strategy == "ddp":
        # DDP adds its own broadcast of the weights and the gradient buckets.
        model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[torch.cuda.current_device()] if device == "cuda" else None
        )
    if plan.compile:
        model = torch.compile(model)
    return Built(model=model, base=base, config=config, elements=elements, trained=trained, notes=tuple(notes))


def _attention(wanted: str, device: str, notes: list[str]) -> str:
    if wanted != "flash":
        return wanted
    if device != "cuda":
        notes.append("flash attention needs a GPU: run with sdpa")
        return "sdpa"
    from importlib.util import find_spec

    if find_spec("flash_attn") is not None:
        return "flash_attention_2"
    notes.append("flash_attn is not installed: PyTorch's copy of the same kernel was used")
    return "flash"


def give_memory(model: Any, device: str) -> None:
    """Put every parameter that is still on the meta device on ``device``; ties between parameters are kept."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            new = made.get(id(parameter))
            if new is None:
                data = torch.empty_like(parameter, device=device)
                new = made[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
            module._parameters[name] = new


def fill(model: Any) -> None:
    """Give every floating-point parameter random values: matrices normal, vectors one (norms) or zero (biases)."""
    for name, parameter in model.named_parameters():
        tensor = local(parameter).detach()
        if not tensor.is_floating_point():
            continue
        if parameter.dim() > 1:
            tensor.normal_(0.0, DEVIATION)
        else:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def tensors_bytes(tensors: list[Any], device: str) -> int:
    """Bytes that tensors take on the device, each storage once, rounded to 512 as CUDA's allocator does."""
    seen: set[int] = set()
    total = 0
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        held = local(tensor)
        storage = held.untyped_storage()
        if held.device.type != device or storage._cdata in seen:
            continue
        seen.add(storage._cdata)
        total += rounded(storage.nbytes())
    return total


def weights_of(model: Any) -> list[Any]:
    """Parameters and buffers, with the statistics of quantised weights."""
    found: list[Any] = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        found += getattr(module, "statistics", None) or []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            found += [state.absmax, state.code, getattr(state, "offset", None)]
            state = state.state2
    return found


def by_name(model: Any) -> Callable[[Any], str]:
    """Return a function from a module to its path in ``model``."""
    names = {id(module): name for name, module in model.named_modules()}
    return lambda module: names.get(id(module), type(module).__name__)
