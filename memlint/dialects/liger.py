"""What all readers say of Liger's chunked losses."""

from __future__ import annotations

from memlint.dialects.base import JobDraft


def beneath_autocast(draft: JobDraft) -> None:
    """Say that Liger's losses run the model in the dtype of its weights, whatever mixed precision is asked for."""
    stated = draft.get("training.precision.autocast"), draft.get("training.precision.weights")
    if stated[0] not in (None, stated[1]):
        draft.assumptions.append(
            "Liger's loss calls the model beneath accelerate's autocast (TRL 1.9 dpo_trainer.py): it computes in the"
            f" dtype of the weights, {stated[1] or 'fp32'}"
        )
