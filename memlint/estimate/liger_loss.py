"""How TRL runs Liger's chunked losses: the body alone, then the loss over its hidden states and the head's weight.

Sources: TRL 1.9 ``trainer/{dpo,kto}_trainer.py`` (_compute_loss_liger), ``trainer/grpo_trainer.py``
(compute_liger_loss), the same in 0.24 to 1.12; from 1.13 on TRL has a head of its own instead. They go past the
autocast that accelerate puts around the model's forward, so everything runs in the dtype of the weights.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch
from memlint.estimate.heads import matrix_of
from memlint.estimate.ops.basic import copy, slice_of
from memlint.estimate.ops.liger_policy import policy_loss, preference_loss
from memlint.estimate.ops.logps import selective_log_softmax
from memlint.estimate.versions import before
from memlint.job import TrainingJob

Model = tuple[Any, Any]
"""Body and head."""


class Liger:
    """The loss of a job whose ``loss`` is ``fused`` and whose objective is one of preferences or of a policy."""

    def __init__(self, job: TrainingJob) -> None:
        training = job.training
        self.objective, self.kind = training.objective, training.reference_model
        self.completion = training.completion_length
        self.scales = training.gradient_accumulation_steps > 1
        """The loss is divided by the micro batches of a step, so the gradients that it has made are multiplied."""
        self.tiles = not before(job, "liger-kernel", 0, 8)
        """GRPO's log-probabilities are taken in tiles since 0.8; before, a row's logits are whole."""
        self.always = before(job, "liger-kernel", 0, 8, 4 if self.objective == "grpo" else 3)
        """The head's gradient is taken where it is frozen too."""

    def loss(self, f: Tape, held: list[Any], batch: Batch, own: Model, reference: Model) -> Tensor:
        """The scalar loss. held: no logits, and the hidden states; emptied here."""
        hidden: Tensor = held.pop()
        held.clear()
        weight: Tensor = matrix_of(own[1].head)
        rows, length, width = hidden.shape
        if self.objective == "grpo":
            taken = min(self.completion or length - 1, length - 1)
            scored = slice_of(f, slice_of(f, hidden, (rows, length - 1, width)), (rows, taken, width))
            del hidden
            if self.tiles:
                return policy_loss(f, scored, weight, always=self.always, scales=self.scales)
            return preference_loss(
                f, scored, weight, None, rows=1, copies=False, always=self.always, scales=self.scales
            )
        given = slice_of(f, hidden, (rows, length - 1, width))
        paired = self.objective != "kto"
        if paired:
            given = copy(f, given)
        other = self._reference(f, batch, reference, paired=paired)
        whole, theirs = hidden.detach(), None
        if other is not None and not (self.objective == "kto" and self.kind == "adapter"):
            # Without a second model TRL tells KTO's loss that it has no reference.
            theirs = (other[-1], weight if self.kind == "adapter" else matrix_of(reference[1].head))
        del hidden
        loss = preference_loss(
            f, given, weight, theirs, rows=2 if paired else 1, copies=paired, always=self.always, scales=self.scales
        )
        del whole, other, theirs, given
        return loss

    def _reference(self, f: Tape, batch: Batch, model: Model, *, paired: bool) -> list[Tensor] | None:
        """The reference's hidden states, as long as the policy's graph: [B, S, H], and DPO's copy without the last."""
        if self.kind not in ("copy", "adapter"):
            return None
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        f.adapters = self.kind != "adapter"
        if not paired:
            # _compute_kl_logps: whole logits of the mismatched pairs.
            hidden = model[0](f, batch)
            rows, length, _ = hidden.shape
            f.component = LOGITS
            vocabulary = matrix_of(model[1].head).shape[0]
            logits = f.new((rows, length, vocabulary), hidden.dtype)
            selective_log_softmax(f, slice_of(f, logits, (rows, length - 1, vocabulary)))
            del hidden, logits
        f.component = TEMPORARIES
        hidden = model[0](f, batch)
        rows, length, width = hidden.shape
        shifted = slice_of(f, hidden, (rows, length - 1, width))
        held = [hidden, copy(f, shifted)] if paired else [hidden, shifted]
        f.grad_enabled, f.adapters = grad_enabled, True
        return held
