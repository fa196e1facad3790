"""AdaLoRA's orthogonal regularisation, which the model of a task adds to the loss that it gives back.

Source: peft 0.21 tuners/adalora/model.py (AdaLoraModel.forward): for each factor the norm of its product with itself,
less the identity. A PeftModel without a task type goes past it; the configs that name none are few.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import GRADIENTS, Pool, rounded
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.records import Record
from memlint.units import DTYPE_BYTES

OWN_LOSS = ("causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification", "token-classification")
"""Objectives whose loss the model gives back."""


def _factors(build: Build) -> list[Record]:
    if build.training.objective not in OWN_LOSS:
        return []
    return [r for r in build.records if r.trainable and r.name.endswith((".lora_A", ".lora_B"))]


def products(tape: Tape, build: Build) -> Tensor:
    """What the norms keep until the backward: the difference and the result."""
    sizes = [r.count * (rounded(4 * min(r.shape) ** 2) + rounded(4)) for r in _factors(build)]
    return tape.new((sum(sizes),), "uint8")


def regularise(pool: Pool, build: Build) -> None:
    """Make its gradients: its nodes are the last of the forward, so the first of the backward."""
    factors = _factors(build)
    if factors:
        for leaf in build.orthogonal:
            leaf.grad = True
        pool.add(sum([r.count * rounded(r.numel * DTYPE_BYTES[r.grad_dtype]) for r in factors]), GRADIENTS)
