"""How each optimizer is made, as trainers make it. Packages beyond the dev extra are imported where they are needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

RANK = 32


def _projected(rule: dict[str, Any]) -> Callable[[list[Any]], list[dict[str, Any]]]:
    """Groups as transformers' _setup_low_rank_optimizer makes them: what is no target first."""

    def groups(parameters: list[Any]) -> list[dict[str, Any]]:
        targets = [parameter for parameter in parameters if parameter.target]
        return [{"params": [p for p in parameters if not p.target]}, {"params": targets, **rule}]

    return groups


GALORE = _projected({"rank": RANK, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"})
APOLLO = _projected(
    {
        "rank": RANK,
        "proj": "random",
        "scale_type": "channel",
        "update_proj_gap": 200,
        "scale": 1.0,
        "proj_type": "std",
    }
)


def _of(module: str, name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda parameters: getattr(importlib.import_module(module), name)(parameters, **options)


def _schedule_free(name: str) -> Callable[[Any], Any]:
    def made(parameters: Any) -> Any:
        optimizer = getattr(importlib.import_module("schedulefree"), name)(parameters, lr=1e-3)
        optimizer.train()
        return optimizer

    return made


def _muon(parameters: list[Any]) -> Any:
    # llamafactory/train/trainer_utils.py _create_muon_optimizer: matrices that are no table, AdamW for the rest.
    inner = [p for p in parameters if p.ndim == 2 and not p.table]
    rest = [p for p in parameters if p.ndim != 2 or p.table]
    module = importlib.import_module("llamafactory.third_party.muon.muon")
    return module.Muon(muon_params=inner, adamw_params=rest)


_ADAFACTOR = {"lr": 1e-4, "scale_parameter": False, "relative_step": False}
KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "adamw": _of("torch.optim", "AdamW", foreach=True),
    "adamw-for-loop": _of("torch.optim", "AdamW", foreach=False),
    "adagrad": _of("torch.optim", "Adagrad", foreach=True),
    "rmsprop": _of("torch.optim", "RMSprop", foreach=True),
    "nadam": _of("torch.optim", "NAdam", foreach=True),
    "radam": _of("torch.optim", "RAdam", foreach=True),
    "adamax": _of("torch.optim", "Adamax", foreach=True),
    "sgd": _of("torch.optim", "SGD", foreach=True, lr=1e-3),
    "sgd-momentum": _of("torch.optim", "SGD", foreach=True, lr=1e-3, momentum=0.9),
    "adafactor": _of("transformers.optimization", "Adafactor", **_ADAFACTOR),
    "schedule-free-adamw": _schedule_free("AdamWScheduleFree"),
    "schedule-free-radam": _schedule_free("RAdamScheduleFree"),
    "schedule-free-sgd": _schedule_free("SGDScheduleFree"),
    "grokadamw": _of("grokadamw", "GrokAdamW"),
    "came": _of("came_pytorch", "CAME", lr=1e-4, betas=(0.9, 0.999, 0.9999), eps=(1e-30, 1e-16)),
    "muon": _muon,
    "galore-adamw": lambda parameters: _of("galore_torch", "GaLoreAdamW")(GALORE(parameters)),
    "galore-adafactor": lambda parameters: _of("galore_torch", "GaLoreAdafactor", **_ADAFACTOR)(GALORE(parameters)),
    "apollo": lambda parameters: _of("apollo_torch", "APOLLOAdamW")(APOLLO(parameters)),
}
"""Native name -> what makes the optimizer over parameters that say whether they are a ``target`` or a ``table``."""

SHAPES: list[tuple[str, tuple[int, ...]]] = [
    ("model.embed_tokens.weight", (2000, 256)),
    *[
        (f"model.layers.{layer}.{name}.weight", shape)
        for layer in range(2)
        for name, shape in (
            ("input_layernorm", (256,)),
            ("self_attn.q_proj", (256, 256)),
            ("self_attn.k_proj", (128, 256)),
            ("self_attn.o_proj", (256, 256)),
            ("post_attention_layernorm", (256,)),
            ("mlp.up_proj", (700, 256)),
            ("mlp.down_proj", (256, 700)),
        )
    ],
    ("model.norm.weight", (256,)),
    ("lm_head.weight", (2000, 256)),
]
"""A small decoder's parameters: what comes before what matters to some."""
TIED = SHAPES[:-1]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def parameters(dtype: str, shapes: list[tuple[str, tuple[int, ...]]]) -> list[Any]:
    """The parameters, told apart as optimizers tell them: matrices within layers are targets."""
    made = []
    for name, shape in shapes:
        parameter: Any = torch.nn.Parameter((torch.randn(shape) * 0.02).to(DTYPES[dtype]))
        parameter.table = "embed" in name or "lm_head" in name
        parameter.target = name.endswith("_proj.weight")
        made.append(parameter)
    return made
