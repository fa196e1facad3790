"""4-bit base weights: bitsandbytes' own layers where it is installed, tensors of the same sizes elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from memlint.measure.trace.build import DTYPES
from memlint.measure.trace.settings import TraceSettings


def has_bitsandbytes() -> bool:
    """Whether bitsandbytes can be imported."""
    from importlib.util import find_spec

    return find_spec("bitsandbytes") is not None


def compute_dtype(settings: TraceSettings) -> torch.dtype:
    """dtype in which quantised products run: autocast's, else that of half-precision weights, else bf16."""
    return DTYPES[settings.autocast or (settings.weights if settings.weights != "fp32" else "bf16")]


def quantise_in_place(base: Any, settings: TraceSettings, *, kind: str, real: bool, device: str) -> None:
    """Store the linear layers of ``base`` in 4 bits, as from_pretrained and peft's k-bit preparation leave them."""
    compute = compute_dtype(settings)
    if not real:
        from memlint.measure.verify.four_bit import quantise

        quantise(
            base,
            compute=compute,
            double_quant=settings.double_quant,
            skip=settings.skip_quantization,
            prepare=settings.kbit_preparation,
        )
        return
    head = base.get_output_embeddings()
    for parent_name, parent in list(base.named_modules()):
        for name, child in list(parent.named_children()):
            path = f"{parent_name}.{name}" if parent_name else name
            skipped = any(part in path for part in settings.skip_quantization)
            if type(child) is torch.nn.Linear and child is not head and not skipped:
                setattr(parent, name, _four_bit(child, compute, settings.double_quant, kind, device))
    # What transformers' quantiser sets and peft asks for.
    base.is_loaded_in_4bit = True
    base.is_quantized = True
    for parameter in base.parameters():
        parameter.requires_grad_(False)
        half = parameter.dtype in (torch.float16, torch.bfloat16)
        if settings.kbit_preparation and half and type(parameter).__name__ != "Params4bit":
            parameter.data = parameter.data.to(torch.float32)


def _four_bit(plain: Any, compute: torch.dtype, double_quant: bool, kind: str, device: str) -> Any:
    import bitsandbytes as bnb

    with torch.device("meta"):
        layer = bnb.nn.Linear4bit(
            plain.in_features,
            plain.out_features,
            bias=plain.bias is not None,
            compute_dtype=compute,
            compress_statistics=double_quant,
            quant_type=kind,
        )
    weight = torch.empty_like(plain.weight, device="cpu" if device == "cpu" else device).normal_(0.0, 0.02)
    layer.weight = bnb.nn.Params4bit(
        weight, requires_grad=False, compress_statistics=double_quant, quant_type=kind, module=layer
    ).to(device)
    if plain.bias is not None:
        layer.bias = plain.bias
    return layer
