"""Optimizer states and the temporaries of one step, as a table of optimizers.

Sources: torch 2.13 optim/adam.py (_multi_tensor_adam keeps one parameter-sized list, exp_avg_sq_sqrt), optim/_muon.py;
bitsandbytes 0.49 optim/optimizer.py (blockwise 8-bit states with fp32 absmax per 256 values, tensors under
min_8bit_size = 4096 elements in fp32; 32-bit states always in fp32); torchao 0.14 optim/subclass_4bit.py; transformers
5.24 optimization.py (Adafactor) and trainer_optimizer.py (GaLore and APOLLO ranks).
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import rounded
from memlint.estimate.records import Slot
from memlint.records import dataclass
from memlint.units import DTYPE_BYTES

MIN_8BIT_SIZE = 4096
BLOCK_8BIT = 256
BLOCK_4BIT = 128
GALORE_RANK = 128
"""optim_args rank of GaLore: transformers 5.24 trainer_optimizer.py."""
APOLLO_RANK = 1
"""optim_args rank of APOLLO there (its mini form)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one optimizer keeps for a parameter and needs while it steps."""

    states: int = 2
    """State tensors of the parameter's size."""
    bits: int = 0
    """8 or 4 for block-quantised states; 0: plain."""
    fp32: bool = False
    """States are fp32 whatever the parameter's dtype (bitsandbytes' 32-bit optimizers)."""
    counter: bool = False
    """The step counter is a device tensor (fused or capturable: optim/adam.py _init_group)."""
    factored: bool = False
    """Second moments of matrices as a row and a column vector in fp32."""
    rank: int = 0
    """States of matrices live in a space of this rank, beside a projection."""
    matrix_states: int | None = None
    """State tensors of a matrix where it differs (Muon)."""
    step: str = "fused"
    """foreach (a parameter-sized list), single (two copies of the largest), adafactor, muon, fused (none)."""


_ADAMW = Rule(step="foreach")
RULES: dict[str, Rule] = {
    "adamw": _ADAMW,
    "adamw-foreach": _ADAMW,
    "adam": _ADAMW,
    "adamw-anyprecision": Rule(step="single"),
    "grokadamw": Rule(states=3, step="single"),
    "stable-adamw": _ADAMW,
    "schedule-free-adamw": _ADAMW,
    "schedule-free-radam": _ADAMW,
    "schedule-free-sgd": Rule(states=1, step="foreach"),
    "nadam": _ADAMW,
    "radam": _ADAMW,
    "adamw-fused": Rule(counter=True),
    "adam-fused": Rule(counter=True),
    "adamw-for-loop": Rule(step="single"),
    "adamw-bnb": Rule(fp32=True),
    "adamw-8bit": Rule(bits=8),
    "adam-8bit": Rule(bits=8),
    "adamw-4bit": Rule(bits=4),
    "ademamix": Rule(states=3, fp32=True),
    "ademamix-8bit": Rule(states=3, bits=8),
    "lion": Rule(states=1, step="single"),
    "lion-8bit": Rule(states=1, bits=8),
    "rmsprop": Rule(states=1, step="single"),
    "rmsprop-8bit": Rule(states=1, bits=8),
    "adagrad": Rule(states=1, step="single"),
    "adagrad-8bit": Rule(states=1, bits=8),
    "sgd": Rule(states=0),
    "sgd-momentum": Rule(states=1),
    "sgd-8bit": Rule(states=1, bits=8),
    "signum": Rule(states=1),
    "lomo": Rule(states=0),
    "adalomo": Rule(states=0, factored=True),
    "adafactor": Rule(states=0, factored=True, step="adafactor"),
    "came": Rule(states=1, factored=True, step="adafactor"),
    "muon": Rule(matrix_states=1, step="muon"),
    "dion": Rule(matrix_states=1, step="muon"),
    "galore-adamw": Rule(rank=GALORE_RANK, step="single"),
    "galore-adamw-8bit": Rule(rank=GALORE_RANK, bits=8, step="single"),
    "galore-adafactor": Rule(rank=GALORE_RANK, step="single"),
    "apollo": Rule(rank=APOLLO_RANK, step="single"),
}
"""Native optimizer names; ``paged-`` before one of bitsandbytes' keeps its states in unified memory."""


def rule_of(name: str) -> Rule:
    """The rule of an optimizer; AdamW's where the name is not known."""
    bare = name[6:] if name.startswith("paged-") else name
    rule = RULES.get(bare, _ADAMW)
    if bare is not name and not rule.bits:
        return Rule(states=rule.states, fp32=True)
    return rule


def state_bytes(name: str, slots: Sequence[Slot], forced: str | None = None) -> int:
    """Bytes of all optimizer states on the device, each tensor rounded as the allocator rounds it."""
    rule = rule_of(name)
    return sum([slot.count * _slot_state(rule, slot, forced) for slot in slots])


def _state_dtype(rule: Rule, slot: Slot, forced: str | None) -> str:
    return forced or ("fp32" if rule.fp32 else slot.dtype)


def _slot_state(rule: Rule, slot: Slot, forced: str | None) -> int:
    counter = rounded(4) if rule.counter else 0
    is_matrix = slot.matrix and len(slot.shape) >= 2
    if rule.factored:
        # ``RMS`` is a scalar tensor (Adafactor and CAME).
        scalar = rounded(4) if rule.step == "adafactor" else 0
        return scalar + rule.states * rounded(slot.numel * DTYPE_BYTES[slot.dtype]) + _factored(slot)
    if rule.rank and is_matrix and min(slot.shape[-2:]) > rule.rank:
        short, long = sorted(slot.shape[-2:])
        size = DTYPE_BYTES[_state_dtype(rule, slot, forced)]
        projection = rounded(rule.rank * short * size)
        inner = Slot((rule.rank, long), slot.dtype, slot.grad_dtype, 1)
        return projection + _plain(rule, inner, 2, forced)
    states = rule.matrix_states if rule.matrix_states is not None and is_matrix else rule.states
    return counter + _plain(rule, slot, states, forced)


def _plain(rule: Rule, slot: Slot, states: int, forced: str | None) -> int:
    n = slot.numel
    if rule.bits == 8:
        if n < MIN_8BIT_SIZE:
            return states * rounded(4 * n)
        return states * (rounded(n) + rounded(4 * -(-n // BLOCK_8BIT)))
    if rule.bits == 4:
        if n < MIN_8BIT_SIZE or n % BLOCK_4BIT:
            return states * rounded(n * DTYPE_BYTES[slot.dtype])
        return states * (rounded(n // 2) + rounded(4 * (n // BLOCK_4BIT)))
    return states * rounded(n * DTYPE_BYTES[_state_dtype(rule, slot, forced)])


def _factored(slot: Slot) -> int:
    # Adafactor: exp_avg_sq_row and _col in fp32 for two or more dimensions, a full fp32 exp_avg_sq otherwise.
    shape = slot.shape
    if len(shape) >= 2:
        return rounded(4 * prod(shape[:-1])) + rounded(4 * prod(shape[:-2]) * shape[-1])
    return rounded(4 * slot.numel)


def step_temporary_bytes(
    name: str, slots: Sequence[Slot], forced: str | None = None, *, two_lists: bool = False
) -> int:
    """Highest bytes of temporaries inside ``optimizer.step()``, beyond parameters, gradients and states.

    ``two_lists``: torch 2.0 and earlier, whose foreach AdamW makes the denominator a second list
    (``denom = torch._foreach_add(exp_avg_sq_sqrt, eps)``, optim/adamw.py); from 2.1 on it is added in place.
    """
    if not slots:
        return 0
    rule = rule_of(name)
    if rule.step == "foreach":
        # _foreach_sqrt of all second moments of one dtype group at once; the list of the group before is still referred
        # to while the next one is made.
        groups: dict[str, int] = {}
        for slot in slots:
            dtype = _state_dtype(rule, slot, forced)
            groups[dtype] = groups.get(dtype, 0) + slot.count * rounded(slot.numel * DTYPE_BYTES[dtype])
        sizes = list(groups.values())
        highest = max([sizes[0], *(sizes[i] + sizes[i + 1] for i in range(len(sizes) - 1))])
        return 2 * highest if two_lists else highest
    if rule.step == "adafactor":
        return _adafactor_temporaries(slots, moments=rule.states)
    if rule.step == "single":
        return max([2 * slot.bytes for slot in slots])
    if rule.step == "muon":
        # Newton-Schulz in bf16: the matrix, its update, X X^T and the polynomial of it.
        return max(
            [
                4 * rounded(2 * slot.numel) + 2 * rounded(2 * min(slot.shape) ** 2) if len(slot.shape) == 2 else 0
                for slot in slots
            ]
        )
    return 0


def _adafactor_temporaries(slots: Sequence[Slot], moments: int) -> int:
    """transformers' Adafactor.step: ``update = (grad**2) + eps``, a parameter at a time.

    The square and the sum are there, beside the parameter and the gradient in fp32 where they are half; the update of
    the parameter before keeps its name until then. Later the factors' inverse roots and their product take the place
    of the square. CAME holds two more (the residual and its square).
    """
    highest = 0
    for slot in slots:
        size = rounded(4 * slot.numel)
        copies = 2 if slot.dtype in ("fp16", "bf16") else 0
        factors = _factored(slot) if len(slot.shape) > 1 else 0
        highest = max(highest, max(rounded(4 * slot.after), factors) + (2 + copies + 2 * moments) * size)
    return highest


def clip_temporary_bytes(slots: Sequence[Slot]) -> int:
    """Scratch of ``clip_grad_norm_`` in its foreach form.

    _foreach_norm (aten/src/ATen/native/cuda/ForeachReduceOp.cu, torch 2.13) zeroes one fp32 partial norm for each chunk
    of 65,536 elements, as many for every tensor as the largest one needs, and makes one scalar a tensor.
    """
    tensors = sum([slot.count for slot in slots])
    chunks = max([-(-slot.numel // 65536) for slot in slots])
    return rounded(4 * tensors * chunks) + 512 * tensors
