"""A model's linear layers in torchao's float8, put there as accelerate, axolotl and LLaMA-Factory do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from memlint.errors import UserError
from memlint.estimate.float8 import Float8


def convert(model: Any, float8: Float8) -> None:
    """Swap torchao's layers in, those that the framework of ``float8`` chooses.

    accelerate 1.15 utils/ao.py convert_model_to_fp8_ao, with the configuration of utils/dataclasses.py AORecipeKwargs
    but for the float8 all-gather, which is FSDP2's.
    Raises UserError where torchao is not installed.
    """
    try:
        with _quiet():
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise UserError(
            "float8 layers are torchao's: `pip install torchao` beside memlint to trace them, or use `memlint estimate`"
        ) from None
    from dataclasses import replace

    import torch

    config = Float8LinearConfig.from_recipe_name(float8.recipe)
    if float8.pads:
        config = replace(config, pad_inner_dim=True)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]

    def chosen(module: Any, name: str) -> bool:
        if name == linear[-1] and float8.spares_ends:
            return False
        return float8.takes(name, module.in_features, module.out_features)

    convert_to_float8_training(model, module_filter_fn=chosen, config=config)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torchao says which of its kernels it cannot load, none of which a trace calls."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
