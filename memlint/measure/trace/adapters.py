"""PEFT adapters and the data types of what trains."""

from __future__ import annotations

from typing import Any

import torch

from memlint.errors import UserError
from memlint.measure.trace.settings import LoraSettings


def add_lora(model: Any, lora: LoraSettings) -> Any:
    """Wrap a model with a PEFT LoRA adapter. Raises UserError when PEFT finds nothing to adapt."""
    import peft

    targets: Any = list(lora.targets) if isinstance(lora.targets, tuple) else lora.targets
    try:
        config = peft.LoraConfig(
            r=lora.rank,
            target_modules=targets,
            lora_dropout=lora.dropout,
            use_dora=lora.dora,
            modules_to_save=list(lora.modules_to_save) or None,
        )
        return peft.get_peft_model(model, config, autocast_adapter_dtype=lora.dtype == "fp32")
    except ValueError as error:
        raise UserError(f"PEFT cannot add this adapter: {str(error).splitlines()[0]}") from None


def train_in(model: Any, dtype: torch.dtype) -> None:
    """Cast every trainable parameter, as frameworks do before full or frozen-part training."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
