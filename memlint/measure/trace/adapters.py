"""PEFT adapters and the data types of what trains."""

from __future__ import annotations

import re
from typing import Any

import torch

from memlint.errors import SettingError
from memlint.estimate.build import any_named
from memlint.measure.trace.settings import LoraSettings, TraceSettings


def add_lora(model: Any, lora: LoraSettings) -> Any:
    """Wrap a model with a PEFT LoRA adapter. Raises SettingError when PEFT finds nothing to adapt."""
    import peft

    targets: Any = list(lora.targets) if isinstance(lora.targets, tuple) else lora.targets
    # With a task type, PEFT leaves the heads of classes out (tuners_utils.py _maybe_include_all_linear_layers).
    heads = ("score", "classifier") if targets == "all-linear" else ()
    spared = [
        name
        for name, _ in model.named_modules()
        if name.rpartition(".")[2] in heads or (lora.spared and any_named(lora.spared, name))
    ]
    try:
        config = peft.LoraConfig(
            r=lora.rank,
            target_modules=targets,
            exclude_modules=spared or None,
            lora_dropout=lora.dropout,
            use_dora=lora.dora,
            modules_to_save=list(lora.modules_to_save) or None,
        )
        return peft.get_peft_model(model, config, autocast_adapter_dtype=lora.dtype == "fp32")
    except (ValueError, re.error) as error:
        said = str(error).splitlines()[0]
        raise SettingError(f"PEFT cannot add this adapter: {said}", "training.lora.targets") from None


def checkpoint_layers(model: Any, settings: TraceSettings) -> None:
    """Checkpoint every n-th layer. Raises SettingError for a model whose class does not offer it."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    options = {"use_reentrant": settings.checkpointing == "reentrant"}
    # The older name warns where the newer one exists.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        enable(options)
    except ValueError as error:
        raise SettingError(str(error), "training.activation_checkpointing") from None
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for index, layer in enumerate(layers):
        if index % settings.checkpoint_every:
            layer.gradient_checkpointing = False


def freeze(model: Any, settings: TraceSettings, layers: int) -> None:
    """Switch off the gradient of what the job does not train."""
    if settings.quantised is not None:
        return  # quantising froze everything
    last = settings.train_last
    chosen = last is not None or bool(settings.train_only)
    trained = set(range(layers)) if last is None else set(range(layers)[-last:] if last >= 0 else range(layers)[:-last])
    for name, parameter in model.named_parameters():
        trains = True
        if chosen:
            number = next((int(part) for part in name.split(".") if part.isdigit()), None)
            trains = (last is not None and number in trained) or any_named(settings.train_only, name)
        if any_named(settings.freeze, name):
            trains = False
        parameter.requires_grad_(trains)


def keep_fp32(model: Any, fragments: tuple[str, ...]) -> None:
    """Cast parameters whose name holds a fragment to fp32."""
    for name, parameter in model.named_parameters():
        if any_named(fragments, name):
            parameter.data = parameter.data.to(torch.float32)


def train_in(model: Any, dtype: torch.dtype) -> None:
    """Cast every trainable parameter, as frameworks do before full or frozen-part training."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)


def trained_parameters(model: Any) -> list[Any]:
    """The parameters that an optimizer is made over. Raises SettingError where nothing trains."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise SettingError("nothing of the model trains: every parameter is frozen", "training.freeze")
    return parameters
