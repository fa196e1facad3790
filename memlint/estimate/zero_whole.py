"""Gradients that every rank of DeepSpeed keeps whole, and the copies that averaging and stepping make of them.

That is a run without ZeRO (stage 0) and BF16_Optimizer, which takes the place of stage 1 where bf16 gradients are
summed in fp32 (engine.py _do_optimizer_sanity_check). Source: DeepSpeed 0.19.8 runtime/engine.py,
runtime/bf16_optimizer.py and runtime/fp16/unfused_optimizer.py, functions that comments name.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS, TEMPORARIES, Pool, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.records import Slot
from memlint.estimate.zero_settings import Forms
from memlint.units import DTYPE_BYTES

MESSAGE_ELEMENTS = 500_000_000
"""MEMORY_OPT_ALLREDUCE_SIZE: runtime/engine.py, DeepSpeed 0.19.8."""


class Whole:
    """Gradients of stage 0, or of BF16_Optimizer. Sizes in bytes unless they say elements."""

    def __init__(self, stage: int, forms: Forms, *, at_once: bool) -> None:
        """``at_once``: immediate_grad_update, a gradient is added to its sum and let go as soon as it is there."""
        self.sums = stage == 1
        """BF16_Optimizer: fp32 sums beside the gradients of each backward."""
        self.at_once = self.sums and at_once
        self.forms = forms
        self.sizes: Sequence[int] = ()
        self.flat = 1
        """Tensors in which the sums are."""

    def settle(self, sizes: Sequence[int], slots: Sequence[Slot]) -> None:
        """Elements of what trains, in order. Trainers keep vectors in a group without weight decay (transformers 5.24
        trainer.py get_decay_parameter_names), which has a flat tensor of its own.
        """
        self.sizes = sizes
        self.flat = len({len(slot.shape) > 1 for slot in slots})

    @property
    def always(self) -> int:
        """fp32_groups_gradients_flat, which lives as long as the optimizer."""
        return rounded(sum(self.sizes) * DTYPE_BYTES["fp32"]) if self.sums else 0

    def take(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        """accumulate_hp_grads_and_remove_lp: cast, added, and gone."""
        if grad.storage is not None:
            grad.storage.relabel(GRADIENTS)
        f.pool.touch(rounded(prod(leaf.shape) * DTYPE_BYTES["fp32"]), COMMUNICATION)

    def finish(self, f: Tape) -> None:
        """_backward_epilogue: gradients are added to the sums, then averaged over the ranks a message at a time."""
        if self.sums and self.sizes:
            f.pool.touch(rounded(max(self.sizes) * DTYPE_BYTES["fp32"]), COMMUNICATION)
        f.pool.touch(self._copied(), COMMUNICATION)

    def _copied(self) -> int:
        """buffered_allreduce_fallback: a message's members are flattened, and cast where the wire has another dtype.

        allreduce_no_retain closes a message with the member that exceeds its size; one member alone is not copied.
        """
        total = sum(self.sizes)
        members = [total] if self.flat == 1 else [total, 0]
        most = elements = held = 0
        for size in members if self.sums else self.sizes:
            elements, held = elements + size, held + 1
            most = max(most, self._message(elements, held))
            if elements > MESSAGE_ELEMENTS:
                elements = held = 0
        return most

    def _message(self, elements: int, members: int) -> int:
        size = DTYPE_BYTES[self.forms.summed] if members > 1 else 0
        return rounded(elements * size) + rounded(elements * self.forms.wire_bytes)

    def norm(self, pool: Pool) -> None:
        """has_overflow and get_weight_norm: the largest half-precision gradient in fp32."""
        if not self.sums and self.forms.summed != "fp32" and self.sizes:
            pool.touch(rounded(max(self.sizes) * DTYPE_BYTES["fp32"]), TEMPORARIES)

    def step(self, pool: Pool, slots: Sequence[Slot], temporary: int, *, master: bool) -> None:
        """FP16_UnfusedOptimizer.step: all gradients once more, in fp32. BF16_Optimizer takes its sums as they are."""
        copied = 0
        if master and not self.sums and self.forms.summed != "fp32":
            copied = sum([slot.count * rounded(slot.numel * DTYPE_BYTES["fp32"]) for slot in slots])
        pool.touch(copied + temporary, TEMPORARIES)
