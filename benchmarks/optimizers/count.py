"""Count the storages that live while an optimizer steps, each rounded as the CUDA allocator rounds it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memlint.measure.trace.recorder import rounded

STEPS = 8
"""RAdam makes no denominator in its first five."""


class Count(TorchDispatchMode):  # type: ignore[misc]  # torch leaves its base untyped
    """Live bytes of the storages that operators make, and their highest level."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and note what it made."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return made

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.seen:
            return
        size = rounded(storage.nbytes())
        self.seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def counted(make: Callable[[list[Any]], Any], parameters: list[Any]) -> tuple[int, int]:
    """Bytes of the states after some steps, and of the highest temporaries in the last one."""
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    count = Count([*parameters, *[parameter.grad for parameter in parameters]])
    with count:
        optimizer = make(parameters)
        for _ in range(STEPS):
            count.peak = before = count.live
            optimizer.step()
    # PyTorch's counters are tensors of the host, whatever the parameters' device (NAdam's mu_product as well).
    holders = [*optimizer.state.values(), *optimizer.param_groups]
    counters = [holder.get(name) for holder in holders for name in ("step", "mu_product")]
    return count.live - 512 * sum(isinstance(c, torch.Tensor) for c in counters), count.peak - before
