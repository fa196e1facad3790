"""Optimizer states and the temporaries of one step, as a table of optimizers.

Sources: torch 2.13 optim/adam.py (_multi_tensor_adam keeps one parameter-sized list, exp_avg_sq_sqrt), optim/_muon.py;
bitsandbytes 0.49 optim/optimizer.py (blockwise 8-bit states with fp32 absmax per 256 values, tensors under
min_8bit_size = 4096 elements in fp32; 32-bit states always in fp32); torchao 0.18 optim/subclass_4bit.py; transformers
5.24 optimization.py (Adafactor); torch-optimi 0.3.3, came-pytorch 0.1.3, schedulefree 1.4.1, grokadamw 0.1.2, and the
Muon of LLaMA-Factory 0.9.5 and axolotl-contribs-mit 0.0.6. ``benchmarks/optimizers`` runs them and counts their
storages.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate import optimizer_projected as projected
from memlint.estimate.engine.pool import rounded
from memlint.estimate.records import Slot
from memlint.records import dataclass
from memlint.units import DTYPE_BYTES

MIN_8BIT_SIZE = 4096
MIN_PAGED_SIZE = 100_000
"""Elements from which a paged optimizer's state is paged (bitsandbytes 0.49 optim/optimizer.py get_state_buffer)."""
BLOCK_8BIT = 256
OLD_BLOCK_8BIT = 2048
"""Values that share an absmax before bitsandbytes 0.44 (0.43.3 optim/optimizer.py init_state: ``n // 2048``)."""
BLOCK_4BIT = 256
"""transformers 5.24 trainer_optimizer.py hands torchao this block size for 4 bits as for 8."""


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
    matrix_states: int | None = None
    """State tensors of a matrix within a layer where it differs (Muon)."""
    flash: bool = False
    """flashoptim 0.1.4: states of 8 bits with an fp16 scale for 32 values, 8 bits of error for a half parameter."""
    kahan: bool = False
    """Parameters in 16 bits keep the rounding error of their updates in a tensor more (Kahan summation)."""
    scalars: int = 0
    """Tensors of one element on the device for each parameter."""
    lists: int = 1
    """foreach: lists of the parameters' size that live at once."""
    carries: bool = False
    """single: the loop's variable holds the last tensor of the parameter before until this one's is there."""
    step: str = "fused"
    """foreach (lists of the parameters' size), single (two copies of the largest), adafactor, came, muon, projected
    (see optimizer_projected.py), lomo, adalomo, fused (none)."""


_ADAMW = Rule(step="foreach")
RULES: dict[str, Rule] = {
    "adamw": _ADAMW,
    "adamw-foreach": _ADAMW,
    "adam": _ADAMW,
    "adamw-anyprecision": Rule(fp32=True, step="single"),
    "adamw-optimi": Rule(kahan=True),
    "adamw-fp8": Rule(bits=8),
    "flash-adamw": Rule(flash=True),
    "adamax": _ADAMW,
    "adopt": _ADAMW,
    "grokadamw": Rule(states=3, step="single", carries=True),
    "stable-adamw": Rule(kahan=True, scalars=2),
    "schedule-free-adamw": _ADAMW,
    "schedule-free-radam": _ADAMW,
    "schedule-free-sgd": Rule(states=1),
    "nadam": _ADAMW,
    "radam": _ADAMW,
    "adamw-fused": Rule(counter=True),
    "adam-fused": Rule(counter=True),
    "adamw-for-loop": Rule(step="single", carries=True),
    "adamw-bnb": Rule(fp32=True),
    "adamw-8bit": Rule(bits=8),
    "adam-8bit": Rule(bits=8),
    "adamw-4bit": Rule(bits=4),
    "ademamix": Rule(states=3, fp32=True),
    "ademamix-8bit": Rule(states=3, bits=8),
    "lion": Rule(states=1, step="single"),
    "lion-bnb": Rule(states=1, fp32=True),
    "lion-8bit": Rule(states=1, bits=8),
    "rmsprop": Rule(states=1, step="foreach"),
    "rmsprop-bnb": Rule(states=1, fp32=True),
    "rmsprop-8bit": Rule(states=1, bits=8),
    "adagrad": Rule(states=1, step="foreach", lists=2),
    "adagrad-8bit": Rule(states=1, bits=8),
    "sgd": Rule(states=0),
    "sgd-foreach": Rule(states=0),
    "sgd-momentum": Rule(states=1),
    "sgd-8bit": Rule(states=1, bits=8),
    "signum": Rule(states=1),
    "lomo": Rule(states=0, step="lomo"),
    "adalomo": Rule(states=0, factored=True, step="adalomo"),
    "adafactor": Rule(states=0, factored=True, step="adafactor"),
    "came": Rule(step="came"),
    "muon": Rule(matrix_states=1, step="muon"),
    "dion": Rule(matrix_states=1, step="muon"),
    "galore-adamw": Rule(step="projected"),
    "galore-adamw-8bit": Rule(bits=8, step="projected"),
    "q-galore-adamw-8bit": Rule(bits=8, step="projected"),
    "galore-adafactor": Rule(states=0, factored=True, step="adafactor"),
    "apollo": Rule(step="projected"),
}
"""Native optimizer names; ``paged-`` before one of bitsandbytes' keeps its states in unified memory."""


def rule_of(name: str) -> Rule:
    """The rule of an optimizer; AdamW's where the name is not known."""
    bare = name[6:] if name.startswith("paged-") else name
    rule = RULES.get(bare, _ADAMW)
    if bare is not name and not rule.bits:
        return Rule(states=rule.states, fp32=True)
    return rule


def state_bytes(name: str, slots: Sequence[Slot], forced: str | None = None, *, block: int = BLOCK_8BIT) -> int:
    """Bytes of all optimizer states on the device, each tensor rounded as the allocator rounds it.

    ``block``: 8-bit values that share an absmax.
    """
    rule = rule_of(name)
    return sum([slot.count * _slot_state(name, rule, slot, forced, block) for slot in slots])


def paged_bytes(name: str, slots: Sequence[Slot]) -> int:
    """Bytes of states in unified memory: not small ones, 8-bit blocks' statistics or DeepSpeed's copies of weights."""
    if not name.startswith("paged-"):
        return 0
    rule = rule_of(name)
    total = 0
    for slot in slots:
        if slot.numel >= MIN_PAGED_SIZE:
            size = 1 if rule.bits == 8 and not slot.fp32_states else 4
            total += slot.count * rule.states * rounded(size * slot.numel)
    return total


def _state_dtype(rule: Rule, slot: Slot, forced: str | None) -> str:
    return forced or ("fp32" if rule.fp32 else slot.dtype)


def _slot_state(name: str, rule: Rule, slot: Slot, forced: str | None, block: int) -> int:
    scalars = rounded(4) * (rule.counter + rule.scalars)
    is_matrix = slot.matrix and len(slot.shape) >= 2
    if slot.rank:
        # APOLLO remembers the norm of its scaled gradient.
        scalars += projected.projection_bytes(name, slot) + (rounded(4) if name == "apollo" else 0)
        slot = projected.low(slot)
    if rule.factored:
        # ``RMS`` is a scalar tensor (transformers' Adafactor).
        return scalars + (rounded(4) if rule.step == "adafactor" else 0) + _factored(slot)
    if rule.step == "came":
        # came_pytorch CAME.py: exp_avg and the factors are fp32, as the gradient is cast; a matrix has those twice.
        return scalars + rounded(4) + rounded(4 * slot.numel) + (2 if is_matrix else 1) * _factored(slot)
    states = rule.matrix_states if rule.matrix_states is not None and is_matrix and not slot.table else rule.states
    if rule.flash:
        error = rounded(slot.numel) if slot.dtype in ("fp16", "bf16") else 0
        return scalars + states * (rounded(slot.numel) + rounded(2 * -(-slot.numel // 32))) + error
    if rule.kahan:
        # optimi stableadamw.py, adam.py _init_state: kahan_comp like the parameter, or one byte for its Triton kernel.
        half = slot.dtype in ("fp16", "bf16")
        states, scalars = states + half, scalars + (0 if half else rounded(1))
    return scalars + _plain(rule, slot, states, forced, block)


def _plain(rule: Rule, slot: Slot, states: int, forced: str | None, block: int) -> int:
    n = slot.numel
    if rule.bits == 8:
        if n < MIN_8BIT_SIZE or slot.fp32_states:
            return states * rounded(4 * n)
        return states * (rounded(n) + rounded(4 * -(-n // block)))
    if rule.bits == 4:
        if n < MIN_8BIT_SIZE or n % BLOCK_4BIT:
            return states * rounded(n * DTYPE_BYTES[slot.dtype])
        # subclass_4bit.py OptimState4bit: codes, scales, and a map of 16 values for each state.
        return states * (rounded(n // 2) + rounded(4 * (n // BLOCK_4BIT)) + rounded(4 * 16))
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
        # to while the next one is made, and of two lists the second while the first has its successor.
        groups: dict[str, int] = {}
        for slot in slots:
            dtype = _state_dtype(rule, slot, forced)
            groups[dtype] = groups.get(dtype, 0) + slot.count * rounded(slot.numel * DTYPE_BYTES[dtype])
        sizes = list(groups.values())
        lists = 2 if two_lists else rule.lists
        pairs = [(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)]
        return max([lists * sizes[0], *[sum(pair) + (lists - 1) * max(pair) for pair in pairs]])
    if rule.step == "projected":
        return projected.step_bytes(name, slots)
    if rule.step == "adafactor":
        # GaLore's has the same copies of a target, whose update is back in its own space twice at the end.
        renewed = [projected.decomposition_bytes(slot) for slot in slots if slot.rank]
        return max([_adafactor_temporaries(slots), *renewed])
    if rule.step == "came":
        return _came_temporaries(slots)
    if rule.step == "single":
        # adam.py _single_tensor_adam: ``denom``, of the square root over its correction; grokadamw.py: ``grok_grad``.
        typed = [(DTYPE_BYTES[_state_dtype(rule, slot, forced)], slot) for slot in slots]
        return max([2 * rounded(n * slot.numel) + rounded(n * slot.after) * rule.carries for n, slot in typed])
    if rule.step == "muon":
        return _muon_temporaries(slots)
    if rule.step in ("lomo", "adalomo"):
        return max([_lomo_temporaries(slot, 3 if rule.step == "adalomo" else 2) for slot in slots])
    return 0


def _adafactor_temporaries(slots: Sequence[Slot]) -> int:
    """transformers' Adafactor.step: ``update = (grad**2) + eps``, a parameter at a time.

    The square and the sum are there, beside the parameter and the gradient in fp32 where they are half; the update of
    the parameter before keeps its name until then. Later the factors' inverse roots and their product take the place
    of the square.
    """
    highest = 0
    for slot in slots:
        size = rounded(4 * slot.numel)
        copies = 2 if slot.dtype in ("fp16", "bf16") else 0
        factors = _factored(slot) if len(slot.shape) > 1 else 0
        highest = max(highest, max(rounded(4 * slot.after), factors) + (2 + copies) * size)
    return highest


def _came_temporaries(slots: Sequence[Slot]) -> int:
    """came_pytorch CAME.step, a parameter at a time: the update, the square of its instability, and the update's
    negative that is added, beside the gradient in fp32 where it is half.

    ``res_approx`` of the matrix before keeps its name until then: the largest one's, for all but the first matrix.
    """
    matrices = [slot for slot in slots if len(slot.shape) > 1]
    within = max([0, *[rounded(4 * slot.numel) for slot in matrices if not slot.table]])
    highest = 0
    for slot in slots:
        size = rounded(4 * slot.numel)
        alone = not matrices or (slot is matrices[0] and slot.count == 1)
        copies = 1 if slot.grad_dtype in ("fp16", "bf16") else 0
        factors = _factored(slot) if len(slot.shape) > 1 else 0
        highest = max(highest, (3 + copies) * size + factors + (0 if alone else within))
    return highest


def _lomo_temporaries(slot: Slot, copies: int) -> int:
    """lomo_optim 0.1.1 fuse_update: gradient and parameter in fp32 (lomo.py), or gradient, its square and the update
    (adalomo.py); of fp32 the first, and LOMO's parameter too, are no copies. A half gradient has gone by then.
    """
    size = rounded(4 * slot.numel)
    if slot.grad_dtype == "fp32":
        return (copies - 1) * size if copies > 2 else 0
    return copies * size - slot.grad_bytes


def _muon_temporaries(slots: Sequence[Slot]) -> int:
    """Muon.step of LLaMA-Factory (third_party/muon/muon.py) and axolotl, a matrix at a time, then AdamW for the rest.

    A matrix: the gradient with its momentum, and in bf16 the iterate, a multiple of it, the product and their sum with
    two squares; the update of the matrix before. AdamW: the denominator and the quotient, beside the last matrix's
    update.
    """
    inner = [slot for slot in slots if len(slot.shape) == 2 and not slot.table]
    last = max([0, *[rounded(2 * slot.numel) for slot in inner]])
    highest = 0
    for slot in inner:
        squares = 2 * rounded(2 * min(slot.shape) ** 2)
        highest = max(highest, slot.grad_bytes + 4 * rounded(2 * slot.numel) + squares + last)
    return max([highest, *[2 * slot.grad_bytes + last for slot in slots if slot not in inner]])


def clip_temporary_bytes(slots: Sequence[Slot]) -> int:
    """Scratch of ``clip_grad_norm_`` in its foreach form.

    _foreach_norm (aten/src/ATen/native/cuda/ForeachReduceOp.cu, torch 2.13) zeroes one fp32 partial norm for each chunk
    of 65,536 elements, as many for every tensor as the largest one needs, and makes one scalar a tensor.
    """
    tensors = sum([slot.count for slot in slots])
    chunks = max([-(-slot.numel // 65536) for slot in slots])
    return rounded(4 * tensors * chunks) + 512 * tensors
