"""Optimizers as they run on CUDA: PyTorch's own with foreach, and simulations of those that need a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from memlint.measure.trace.phases import local

IN_32_BITS = "_memlint_states_in_32_bits"
"""Attribute of a parameter whose states an 8-bit optimizer keeps in 32 bits."""


def keep_in_32_bits(model: Any) -> None:
    """Mark embeddings as transformers' Trainer does (5.24 trainer.py create_optimizer, GlobalOptimManager)."""
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            setattr(module.weight, IN_32_BITS, True)


class Adam8bit(torch.optim.Optimizer):  # type: ignore[misc]
    """bitsandbytes' block-wise 8-bit AdamW as far as memory goes.

    bitsandbytes/optim/optimizer.py: two uint8 states and two fp32 scales per block of 256 elements; tensors under 4096
    elements keep two fp32 states; two quantile maps of 256 fp32 values for each optimizer. The kernel works in place.
    """

    block = 256
    minimum = 4096

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__(parameters, {})
        self.maps: list[torch.Tensor] = []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Make the states of parameters that have a gradient for the first time."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or self.state[parameter]:
                    continue
                if not self.maps:
                    self.maps = [torch.empty(256, device=parameter.device) for _ in range(2)]
                state = self.state[parameter]
                tensor = local(parameter)
                small = tensor.numel() < self.minimum or hasattr(parameter, IN_32_BITS)
                for name in ("state1", "state2"):
                    state[name] = torch.zeros_like(tensor, dtype=torch.float32 if small else torch.uint8)
                if not small:
                    blocks = -(-tensor.numel() // self.block)
                    for name in ("absmax1", "absmax2"):
                        state[name] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)


class Adam32bit(torch.optim.Optimizer):  # type: ignore[misc]
    """bitsandbytes' 32-bit AdamW: two fp32 states whatever the parameter's dtype, a fused kernel in place."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Make the states of parameters that have a gradient for the first time."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    for name in ("state1", "state2"):
                        self.state[parameter][name] = torch.zeros_like(local(parameter), dtype=torch.float32)


def _adamw(**options: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, **options)


def _adafactor(parameters: Any) -> Any:
    # transformers' Trainer builds it so (trainer.py, optim adafactor).
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": _adamw(foreach=True),
    "adamw-for-loop": _adamw(foreach=False),
    "adamw-fused": _adamw(fused=True),
    "adam8bit": Adam8bit,
    "adamw-bnb": Adam32bit,
    "adafactor": _adafactor,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, foreach=True),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, foreach=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, foreach=True),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, foreach=True),
}
"""Name -> constructor over the trainable parameters, with what PyTorch picks for CUDA tensors (foreach)."""
