"""A model's linear layers in bitsandbytes' 4 or 8 bits, made by the code that from_pretrained runs."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memlint.measure.trace.bnb_kernels import bitsandbytes
from memlint.measure.trace.settings import DEFAULT_SKIP, TraceSettings


def quantise(model: Any, settings: TraceSettings, compute: torch.dtype) -> None:
    """Replace the linear layers as transformers' quantiser does, store their weights, prepare the model as peft does.

    compute: bnb_4bit_compute_dtype.
    """
    from transformers.quantizers.base import _assign_is_quantized

    quantiser = _quantiser(settings, compute)
    plain = dict(model.named_modules())
    with unset_fake_temporarily():
        # The layers are made without weights, and their parameters are a subclass of Tensor that no fake one can be.
        quantiser._process_model_before_weight_loading(model, device_map=None)
    for name, module in model.named_modules():
        if module is not plain[name]:
            _fill(module, plain[name], settings)
    _assign_is_quantized(model)
    quantiser._process_model_after_weight_loading(model)
    model.is_quantized = True
    if settings.kbit_preparation:
        import peft

        # The caller switches checkpointing on.
        peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False, auto_clear_cache=False)
        if settings.checkpointing == "reentrant":
            # What it does for models that do not take input_ids; the others have it from their checkpointing.
            model.enable_input_require_grads()
    model.requires_grad_(False)


def _quantiser(settings: TraceSettings, compute: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
    from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer

    skip = None if settings.skip_quantization == DEFAULT_SKIP else list(settings.skip_quantization)
    if settings.quantised == "int8":
        return Bnb8BitHfQuantizer(
            BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skip), pre_quantized=False
        )
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        llm_int8_skip_modules=skip,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_type=settings.quantised,
        bnb_4bit_use_double_quant=settings.double_quant,
    )
    return Bnb4BitHfQuantizer(config, pre_quantized=False)


def _fill(module: Any, plain: Any, settings: TraceSettings) -> None:
    """Quantise ``plain``'s weight into a layer that has none yet.

    ``Params4bit`` and ``Int8Params`` are subclasses of Tensor made from a plain tensor, which a fake one is not: the
    same attributes are put on a fake parameter instead (Params4bit._quantize, Int8Params._quantize, bitsandbytes 0.50
    nn/modules.py).
    """
    package = bitsandbytes()
    given, weight = plain.weight.data, module.weight
    if type(plain) is not torch.nn.Linear:
        given = given.T  # Conv1D: integrations/bitsandbytes.py
    if settings.quantised == "int8":
        codes, statistics, _ = package.functional.int8_vectorwise_quant(given.contiguous().to(torch.float16))
        stored = torch.nn.Parameter(codes, False)
        attributes = {"CB": codes, "SCB": statistics, "has_fp16_weights": False}
    else:
        codes, state = package.functional.quantize_4bit(
            given.contiguous(),
            blocksize=weight.blocksize,
            compress_statistics=weight.compress_statistics,
            quant_type=weight.quant_type,
            quant_storage=weight.quant_storage,
        )
        stored = torch.nn.Parameter(codes, False)
        names = ("blocksize", "compress_statistics", "quant_type", "quant_storage")
        attributes = {name: getattr(weight, name) for name in names}
        attributes |= {"quant_state": state, "bnb_quantized": True, "module": module}
        module.quant_state = state
    # peft goes by the name of the class (utils/integrations.py dequantize_bnb_weight, utils/other.py), and DoRA copies
    # the layer when it begins; what that copy holds is gone before the first step.
    stored.__class__ = type(type(weight).__name__, (type(stored),), {"__deepcopy__": lambda self, memo: self})
    for name, value in attributes.items():
        setattr(stored, name, value)
    module._parameters["weight"] = stored
    module._parameters["bias"] = plain.bias


def statistics(model: Any) -> list[torch.Tensor]:
    """What a quantised model keeps beside its parameters: block statistics, maps and scales, which it never trains."""
    found: list[torch.Tensor] = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        for part in (state, getattr(state, "state2", None)):
            if part is not None:
                found += [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
        scales = getattr(parameter, "SCB", None)
        found += [] if scales is None else [scales]
    return found
