"""Names of optimizers, attention kernels and dtypes: Hugging Face spelling to native and back."""

from __future__ import annotations

from typing import Any

HF_OPTIMIZERS: dict[str, str] = {
    "adamw_torch": "adamw",
    "adamw_hf": "adamw",
    "adamw_torch_fused": "adamw-fused",
    "adamw_torch_xla": "adamw",
    "adamw_torch_npu_fused": "adamw-fused",
    "adamw_apex_fused": "adamw-fused",
    "adafactor": "adafactor",
    "adamw_anyprecision": "adamw-anyprecision",
    "adamw_torch_4bit": "adamw-4bit",
    "adamw_torch_8bit": "adamw-8bit",
    "ademamix": "ademamix",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "adamw_bnb_8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "ademamix_8bit": "ademamix-8bit",
    "lion_8bit": "lion-8bit",
    "lion_32bit": "lion-bnb",
    "paged_adamw_32bit": "paged-adamw",
    "paged_adamw_8bit": "paged-adamw-8bit",
    "paged_ademamix_32bit": "paged-ademamix",
    "paged_ademamix_8bit": "paged-ademamix-8bit",
    "paged_lion_32bit": "paged-lion",
    "paged_lion_8bit": "paged-lion-8bit",
    "rmsprop": "rmsprop",
    "rmsprop_bnb": "rmsprop-bnb",
    "rmsprop_bnb_8bit": "rmsprop-8bit",
    "rmsprop_bnb_32bit": "rmsprop-bnb",
    "galore_adamw": "galore-adamw",
    "galore_adamw_8bit": "galore-adamw-8bit",
    "galore_adafactor": "galore-adafactor",
    "galore_adamw_layerwise": "galore-adamw",
    "galore_adamw_8bit_layerwise": "galore-adamw-8bit",
    "galore_adafactor_layerwise": "galore-adafactor",
    "lomo": "lomo",
    "adalomo": "adalomo",
    "grokadamw": "grokadamw",
    "schedule_free_radam": "schedule-free-radam",
    "schedule_free_adamw": "schedule-free-adamw",
    "schedule_free_sgd": "schedule-free-sgd",
    "apollo_adamw": "apollo",
    "apollo_adamw_layerwise": "apollo",
    "stable_adamw": "stable-adamw",
}
"""OptimizerNames of transformers 5.24 (training_args.py), and adamw_hf and adamw_apex_fused of 4.x, to native names."""

LAYERWISE_OPTIMIZERS = frozenset(name for name in HF_OPTIMIZERS if name.endswith("_layerwise")) | {"lomo", "adalomo"}
"""Optimizers that step inside backward and free each gradient at once (transformers 5.24 trainer_optimizer.py)."""

NATIVE_TO_HF: dict[str, str] = {
    "adamw": "adamw_torch",
    "adamw-foreach": "adamw_torch",
    "adamw-fused": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "adamw-4bit": "adamw_torch_4bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion-bnb": "lion_32bit",
    "lion-8bit": "lion_8bit",
    "paged-lion": "paged_lion_32bit",
    "paged-lion-8bit": "paged_lion_8bit",
    "ademamix": "ademamix",
    "ademamix-8bit": "ademamix_8bit",
    "paged-ademamix-8bit": "paged_ademamix_8bit",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
    "rmsprop-8bit": "rmsprop_bnb_8bit",
    "rmsprop-bnb": "rmsprop_bnb_32bit",
    "galore-adamw": "galore_adamw",
    "galore-adamw-8bit": "galore_adamw_8bit",
    "apollo": "apollo_adamw",
    "lomo": "lomo",
    "adalomo": "adalomo",
    "stable-adamw": "stable_adamw",
}
"""The optimizer name to write for a native one, for ``express``."""

ATTENTION: dict[str, str] = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attention_4": "flash",
    "flex_attention": "flex",
}
"""Names of ``attn_implementation`` (transformers 5.24 modeling_utils.py ALL_ATTENTION_FUNCTIONS) -> native names."""

NATIVE_TO_ATTENTION: dict[str, str] = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash": "flash_attention_2",
    "flex": "flex_attention",
}


def attention_name(value: str) -> str | None:
    """Return the native name of an ``attn_implementation``, or None when it is not known.

    ``paged|flash_attention_2`` and kernels of the hub (``kernels-community/flash-attn3``) count as what they replace.
    """
    word = value.strip().lower().rpartition("|")[2]
    if word in ATTENTION:
        return ATTENTION[word]
    if "/" in word and "flash" in word:
        return "flash"
    return None


DTYPES: dict[str, str] = {
    "float32": "fp32",
    "fp32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
}
"""torch dtype names -> native names."""

NATIVE_TO_DTYPE: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def dtype_name(value: Any) -> str | None:
    """Return ``fp32``, ``bf16`` or ``fp16`` from a torch dtype name (``torch.bfloat16``, ``bfloat16``); else None."""
    if not isinstance(value, str):
        return None
    return DTYPES.get(value.strip().lower().rpartition(".")[2])
