"""Optimizer states and the temporaries of one step.

Sources: torch 2.13 optim/adam.py (_multi_tensor_adam keeps one parameter-sized list, exp_avg_sq_sqrt), optim/adamw.py;
bitsandbytes 0.49 optim/optimizer.py (Optimizer2State: blockwise 8-bit with fp32 absmax per 256 values, tensors under
min_8bit_size = 4096 elements in fp32); transformers 5.24 optimization.py (Adafactor).
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import rounded
from memlint.estimate.records import Slot
from memlint.units import DTYPE_BYTES

MIN_8BIT_SIZE = 4096
BLOCK_8BIT = 256


_ONE_STATE = {"lion", "sgd-momentum", "rmsprop", "adagrad", "paged-lion", "schedule-free-sgd", "signum"}
_EIGHT_BIT_TWO = {"adamw-8bit", "paged-adamw-8bit", "adam-8bit", "ademamix-8bit"}
_EIGHT_BIT_ONE = {"lion-8bit", "paged-lion-8bit", "rmsprop-8bit", "adagrad-8bit", "sgd-8bit"}
_FOREACH = {"adamw", "adamw-foreach", "adam", "stable-adamw", "schedule-free-adamw", "sgd-foreach", "nadam", "radam"}


def _state_dtype(name: str, slot: Slot, forced: str | None) -> str:
    if forced is not None:
        return forced
    if name in ("paged-adamw", "paged-lion", "adamw-bnb"):
        # bitsandbytes 32-bit optimizers keep fp32 states whatever the parameter's dtype (optimizer.py
        # get_state_buffer).
        return "fp32"
    return slot.dtype


def _quantised_state(slot: Slot, states: int) -> int:
    """Bytes of blockwise 8-bit states with their fp32 absmax; small tensors stay in fp32."""
    n = slot.numel
    if n < MIN_8BIT_SIZE:
        return states * rounded(4 * n)
    return states * (rounded(n) + rounded(4 * -(-n // BLOCK_8BIT)))


def state_bytes(name: str, slots: Sequence[Slot], forced: str | None = None) -> int:
    """Bytes of all optimizer states on the device, each tensor rounded as the allocator rounds it."""
    return sum(slot.count * _slot_state(name, slot, forced) for slot in slots)


def _slot_state(name: str, slot: Slot, forced: str | None) -> int:
    n = slot.numel
    if name in ("sgd", "lomo"):
        return 0
    if name in ("adamw-fused", "adam-fused", "adamw-fused-capturable"):
        # fused: the step counter is a device tensor (optim/adam.py _init_group: device_as_param when fused or
        # capturable)
        return 2 * rounded(n * DTYPE_BYTES[forced or slot.dtype]) + rounded(4)
    if name in _EIGHT_BIT_TWO:
        return _quantised_state(slot, 2)
    if name in _EIGHT_BIT_ONE:
        return _quantised_state(slot, 1)
    if name == "adamw-4bit":
        # torchao optim/subclass_4bit.py: two 4-bit states, fp32 scale per 128; tensors under 4096 elements unquantised.
        if n < MIN_8BIT_SIZE or n % 128:
            return 2 * rounded(n * DTYPE_BYTES[slot.dtype])
        return 2 * (rounded(n // 2) + rounded(4 * (n // 128)))
    if name == "adafactor":
        return _factored(slot)
    if name in _ONE_STATE:
        return rounded(n * DTYPE_BYTES[_state_dtype(name, slot, forced)])
    if name in ("muon", "dion"):
        # Muon: one momentum buffer for matrices, AdamW for the rest (torch 2.13 optim/_muon.py momentum_buffer).
        states = 1 if len(slot.shape) == 2 else 2
        return states * rounded(n * DTYPE_BYTES[forced or slot.dtype])
    return 2 * rounded(n * DTYPE_BYTES[_state_dtype(name, slot, forced)])


def _factored(slot: Slot) -> int:
    # transformers Adafactor: exp_avg_sq_row and _col in fp32 for two or more dimensions, a full fp32 exp_avg_sq
    # otherwise.
    shape = slot.shape
    if len(shape) >= 2:
        return rounded(4 * prod(shape[:-1])) + rounded(4 * prod(shape[:-2]) * shape[-1])
    return rounded(4 * slot.numel)


def step_temporary_bytes(name: str, slots: Sequence[Slot], forced: str | None = None) -> int:
    """Highest bytes of temporaries inside ``optimizer.step()``, beyond parameters, gradients and states."""
    if not slots:
        return 0
    if name in _FOREACH:
        # _foreach_sqrt of all second moments of one dtype group at once; the list of the group before is still referred
        # to while the next one is made.
        groups: dict[str, int] = {}
        for slot in slots:
            dtype = _state_dtype(name, slot, forced)
            groups[dtype] = groups.get(dtype, 0) + slot.count * rounded(slot.numel * DTYPE_BYTES[dtype])
        sizes = list(groups.values())
        return max([sizes[0], *(sizes[i] + sizes[i + 1] for i in range(len(sizes) - 1))])
    if name == "adafactor":
        # update = grad**2 + eps and its fp32 copies: about four fp32 tensors of the largest parameter (optimization.py
        # step).
        return max(4 * rounded(4 * slot.numel) for slot in slots)
    if name in ("adamw-for-loop", "lion", "rmsprop", "adagrad"):
        return max(2 * slot.bytes for slot in slots)
    if name in ("muon", "dion"):
        # Newton-Schulz in bf16: X, A = X X^T, B, and the update of one matrix.
        return max(
            4 * rounded(2 * slot.numel) + 2 * rounded(2 * min(slot.shape) ** 2) if len(slot.shape) == 2 else 0
            for slot in slots
        )
    return 0


def clip_temporary_bytes(slots: Sequence[Slot]) -> int:
    """Scratch of ``clip_grad_norm_`` in its foreach form.

    _foreach_norm (aten/src/ATen/native/cuda/ForeachReduceOp.cu, torch 2.13) zeroes one fp32 partial norm for each chunk
    of 65,536 elements, as many for every tensor as the largest one needs, and makes one scalar a tensor.
    """
    tensors = sum(slot.count for slot in slots)
    chunks = max(-(-slot.numel // 65536) for slot in slots)
    return rounded(4 * tensors * chunks) + 512 * tensors
