"""GaLore and APOLLO: states in a low-rank space beside a projection for each matrix, all else as AdamW has it.

Sources: galore_torch 1.0 (adamw.py, adamw8bit.py, adafactor.py, galore_projector.py), apollo_torch 1.0.3 (apollo.py,
random_projector.py), q_galore_torch 1.0; transformers 5.24 trainer_optimizer.py for what is a target and the ranks.
``benchmarks/optimizers`` runs them and counts their storages.
"""

from __future__ import annotations

from typing import Sequence

from memlint.estimate.engine.pool import rounded
from memlint.estimate.records import Slot
from memlint.job import Training
from memlint.units import DTYPE_BYTES

RANK = 128
"""``optim_args`` rank of GaLore and of APOLLO: transformers 5.24 trainer_optimizer.py."""


class Targets:
    """Which weights of linear layers a job's optimizer projects, and to what rank."""

    def __init__(self, rank: int, names: tuple[str, ...]) -> None:
        self.rank = rank
        self.names = names

    @classmethod
    def of(cls, training: Training) -> Targets | None:
        """Those of a job; None where its optimizer projects nothing."""
        if "galore" not in training.optimizer and training.optimizer != "apollo":
            return None
        return cls(training.optimizer_rank or RANK, training.optimizer_targets)

    def rank_of(self, name: str) -> int:
        """The rank for the linear layer ``name``; 0: it is no target.

        transformers 5.24 trainer_pt_utils.py check_target_module_exists: a fragment of the name, or a pattern of all of
        it. Without names all linear layers but the head are (LLaMA-Factory's ``all``, PEFT's ``all-linear``).
        """
        if not self.names:
            return 0 if name.endswith("lm_head") else self.rank
        if self.names == ("all-linear",):
            return self.rank
        return self.rank if any(fragment in name for fragment in self.names) else 0


def low(slot: Slot) -> Slot:
    """What the optimizer keeps of a matrix in its low-rank space."""
    short, long = sorted(slot.shape[-2:])
    return Slot((min(slot.rank, short), long), slot.dtype, slot.grad_dtype, 1)


def projection_bytes(name: str, slot: Slot) -> int:
    """The projection of a matrix.

    galore_projector.py get_orthogonal_matrix: ``Vh[:rank, :]`` (or U's columns) is a view, and of a gradient in fp32 it
    holds all of Vh; of a half one it is cast, which copies. GaLore's Adafactor casts the gradient before it projects
    it. APOLLO's projection is drawn at random, in the gradient's dtype.
    """
    short = min(slot.shape[-2:])
    if name == "apollo" or (slot.grad_dtype != "fp32" and name != "galore-adafactor"):
        return rounded(min(slot.rank, short) * short * DTYPE_BYTES[slot.grad_dtype])
    return rounded(4 * short * short)


def step_bytes(name: str, slots: Sequence[Slot], *, renews: bool = True) -> int:
    """Most temporaries of a step of GaLore's AdamW, its 8-bit form or APOLLO, one parameter after another.

    A plain parameter has its denominator and quotient; both keep their names until the first target's are made. A
    target has its update in its own space twice: the product, and that times a scale (APOLLO: the scaled gradient, and
    that over a limiter). GaLore's projections are renewed by an SVD of the gradient in the first step and every 200:
    in fp32 (a copy of a half one), which torch copies again by columns, and U, V; cuSOLVER's scratch has no documented
    size and is not counted. ``renews`` False: of a step between.
    """
    plain, targets = [s for s in slots if not s.rank], [s for s in slots if s.rank]
    eight = "8bit" in name
    highest = 0 if eight else max([0, *[2 * s.bytes for s in plain]])
    if targets and not eight:
        first = rounded(low(targets[0]).numel * DTYPE_BYTES[targets[0].grad_dtype])
        highest = max([highest, *[2 * s.bytes + 2 * first for s in plain if s is plain[-1] or s.count > 1]])
    before = 0
    for slot in targets:
        inner = rounded(low(slot).numel * DTYPE_BYTES[slot.grad_dtype])
        highest = max(highest, 2 * slot.bytes + (2 if eight else 3) * inner)
        if renews and name != "apollo":
            highest = max(highest, decomposition_bytes(slot) + (0 if eight else max(before, slot.bytes)))
        before = slot.bytes
    return highest


def decomposition_bytes(slot: Slot) -> int:
    """``torch.linalg.svd`` of a gradient: its copies, U, V and the singular values, in fp32."""
    short = min(slot.shape[-2:])
    copies = 1 if slot.grad_dtype == "fp32" else 2
    return (copies + 1) * rounded(4 * slot.numel) + rounded(4 * short * short) + rounded(4 * short)
