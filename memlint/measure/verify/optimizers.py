"""The job's optimizer over real tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.errors import UserError
from memlint.measure.trace.from_job import OPTIMIZERS as TRACED
from memlint.measure.trace.optimizers import OPTIMIZERS
from memlint.measure.verify.quantised import has_bitsandbytes
from memlint.measure.verify.request import BITSANDBYTES, STAND_INS


class InBackward:
    """One optimizer for each parameter, stepped and emptied as soon as its gradient is there."""

    def __init__(self, parameters: list[Any], make: Any) -> None:
        """``make`` builds an optimizer over a list of parameters."""
        self._parts = {parameter: make([parameter]) for parameter in parameters}
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._stepped) for parameter in parameters]

    def _stepped(self, parameter: Any) -> None:
        self._parts[parameter].step()
        self._parts[parameter].zero_grad(set_to_none=True)

    @property
    def state(self) -> dict[Any, dict[str, Any]]:
        """States of all parameters, as of one optimizer."""
        return {key: value for part in self._parts.values() for key, value in part.state.items()}

    def step(self) -> None:
        """Nothing is left to do."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing is left to do."""


def make_optimizer(name: str, parameters: list[Any], *, in_backward: bool) -> tuple[Any, tuple[str, ...]]:
    """Return the optimizer of native name ``name`` and what is to be said about it."""
    make, notes = _maker(name)
    return (InBackward(parameters, make) if in_backward else make(parameters)), notes


def keep_embeddings_in_32_bits(model: Any) -> Callable[[], None]:
    """Give embeddings 32-bit states under an 8-bit optimizer, as Trainer does; returns what undoes it.

    transformers 5.24 trainer.py create_optimizer: register_module_override(module, "weight", {"optim_bits": 32}).
    bitsandbytes keeps the registered modules for as long as the process lives unless they are taken out.
    """
    if not has_bitsandbytes():
        return lambda: None
    import bitsandbytes
    import torch

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    before = len(manager.module_weight_config_triple)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})

    def undo() -> None:
        del manager.module_weight_config_triple[before:]

    return undo


def _maker(name: str) -> tuple[Any, tuple[str, ...]]:
    wanted = BITSANDBYTES.get(name)
    if wanted is None:
        return OPTIMIZERS[TRACED[name]], ()
    if has_bitsandbytes():
        import bitsandbytes

        owner = getattr(bitsandbytes.optim, wanted, None)
        if owner is None:
            raise UserError(f"bitsandbytes {bitsandbytes.__version__} has no {wanted}, so `{name}` cannot run")
        return (lambda parameters: owner(parameters, lr=1e-4)), ()
    stand_in = STAND_INS.get(name)
    if stand_in is None:
        raise UserError(f"`{name}` needs bitsandbytes, which is not installed here: `pip install bitsandbytes`")
    note = f"bitsandbytes is not installed: the states of {name} are stood in for by tensors of the same sizes"
    return OPTIMIZERS[stand_in], (note,)
