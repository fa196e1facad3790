"""The loss of preference and policy training: log-probabilities of the labels, beside those of a reference.

Sources: TRL 1.16 and 1.9 (the release that axolotl 0.19 pins) ``trainer/{dpo,kto,grpo,rloo}_trainer.py``,
``experimental/{orpo,cpo}``, ``trainer/utils.py``; LLaMA-Factory 0.9.5 ``train/{dpo,kto}/trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch
from memlint.estimate.heads import matrix_of
from memlint.estimate.ops.basic import add, cast, copy, slice_of
from memlint.estimate.ops.fused_loss import summed, trl_log_probs
from memlint.estimate.ops.logps import (
    chosen_loss,
    divided_in_place,
    entropy,
    kernel_log_probs,
    log_softmax_gather,
    selective_log_softmax,
)
from memlint.estimate.versions import before
from memlint.job import TrainingJob
from memlint.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memlint.estimate.liger_loss import Liger

Model = tuple[Any, Any]
"""Body and head."""

PAIRED = ("dpo", "orpo", "cpo", "reward")
"""Objectives whose micro batch counts pairs: a chosen and a rejected row each."""
POLICY = ("dpo", "orpo", "cpo", "kto", "grpo")
"""Objectives computed from log-probabilities of the labels."""
SUPERVISED = ("orpo", "cpo")
"""Objectives to which TRL adds the cross entropy of the chosen rows."""


class Policy:
    """How the trainer of a job goes from a model's output to its loss."""

    def __init__(self, job: TrainingJob) -> None:
        training = job.training
        self.objective = training.objective
        self.whole = job.framework.lower().startswith("llama")
        """LLaMA-Factory casts all logits to fp32 and takes the log-softmax of all rows at once."""
        self.kernel = not before(job, "trl", 1, 14)
        """TRL has a Triton kernel for log-probabilities of whole logits (kernels/logprob_entropy.py)."""
        self.kind = training.reference_model
        self.logs = before(job, "trl", 1, 15) and not self.whole and self.kind != "none"
        """DPO and KTO log the mean of the chosen and rejected logits, which they copy for that; CPO does not."""
        self.supervised = (
            self.objective == "causal-lm"
            and job.framework.lower().startswith("trl")
            and training.loss == "standard"
            and before(job, "trl", 1, 15)
        )
        self.counts = not before(job, "trl", 0, 22)
        self.widens = before(job, "torch", 2, 8)
        """addmm knows no ``out_dtype`` yet (TRL 1.16 kernels/chunked_logprob.py _addmm_fp32)."""
        self.adds = self.objective in SUPERVISED and not self.whole
        self.liger: Liger | None = None
        """Liger's own loss of this objective, which takes the place of the model's head."""
        if training.loss == "fused" and self.objective in POLICY and not self.whole:
            from memlint.estimate.liger_loss import Liger

            self.liger = Liger(job)
        self.scored = training.completion_length if self.objective == "grpo" else None
        """Positions of a row whose log-probability is asked for; None: all but the last."""

    def log_supervised(self, f: Tape, held: list[Any]) -> None:
        """What TRL's SFT trainer before its fused head logs of whole logits: token accuracy, from 0.22 on the entropy.

        held: logits and hidden states of the model, of which only the logits are left, in fp32 under autocast
        (accelerate's convert_outputs_to_fp32).
        """
        logits: Tensor = held[0].detach()
        held.clear()
        f.component = LOGITS
        f.cast_cache.clear()
        if f.autocast is not None:
            logits = cast(f, logits, "fp32")
        rows, length, width = logits.shape
        entropy(f, Tensor((rows, length - 1, width), logits.dtype, None), counted=self.counts)

    def kept(self, f: Tape, hidden: Tensor) -> Tensor:
        """The positions of [B, S, H] whose logits are made: GRPO's ``logits_to_keep`` is one more than it scores.

        The head's product copies the slice of more than one row.
        """
        if self.scored is None or self.scored + 1 >= hidden.shape[1]:
            return hidden
        rows, _, width = hidden.shape
        part = slice_of(f, hidden, (rows, self.scored + 1, width))
        return copy(f, part) if rows > 1 else part

    def loss(self, f: Tape, held: list[Any], batch: Batch, own: Model, reference: Model) -> Tensor:
        """The scalar loss.

        held: the model's logits [B, S, V] or None and its hidden states; emptied here, so that what the trainer does
        not hold goes. own, reference: body and head of the policy and of what gives reference log-probabilities.
        """
        if self.liger is not None:
            return self.liger.loss(f, held, batch, own, reference)
        autocast = f.autocast
        values, first, logits = self._log_probs(f, held, batch, own[1], adds=self.adds)
        # Each call of a model is an autocast of its own (Accelerator.prepare_model), whose cached weights end with it.
        f.cast_cache.clear()
        if self.whole and self.objective == "kto":
            logits = self._mismatched(f, batch, own, autocast, logits)
        other = self._reference(f, batch, reference, autocast)
        f.autocast = None
        f.component = LOGITS
        if self.logs and logits is not None and self.objective in ("dpo", "kto"):
            self._log(f, logits)
        del logits, other
        loss = summed(f, values)
        return loss if first is None else add(f, first, loss)

    def _log_probs(
        self, f: Tape, held: list[Any], batch: Batch, head: Any, *, adds: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities [B, S], the chosen rows' cross entropy if it ``adds`` one, and the logits that the trainer
        goes on holding.
        """
        f.component = LOGITS
        hidden, logits = held.pop(), held.pop()
        if logits is None:
            # Inside the model's forward, so under its autocast.
            return trl_log_probs(f, hidden, matrix_of(head.head), self.scored, widens=self.widens), None, None
        del hidden
        f.cast_cache.clear()
        if self.whole or f.autocast is not None:
            # LLaMA-Factory's own cast, else accelerate's convert_outputs_to_fp32 around the model's forward and the
            # autocast inside it (utils/operations.py, 1.15).
            logits = cast(f, logits, "fp32")
        f.autocast = None
        if self.whole:
            return log_softmax_gather(f, logits), None, logits
        assert batch.labels is not None
        first = chosen_loss(f, logits, batch.labels) if adds else None
        if self.objective == "grpo":
            logits = divided_in_place(f, logits)
        rows, length, width = logits.shape
        shifted = slice_of(f, logits, (rows, length - 1, width))
        if self.objective == "grpo":
            shifted = slice_of(f, shifted, shifted.shape)
        if self.kernel:
            return kernel_log_probs(f, shifted), first, logits
        values = selective_log_softmax(f, shifted)
        if self.objective == "grpo":
            entropy(f, shifted)
        return values, first, logits

    def _reference(self, f: Tape, batch: Batch, model: Model, autocast: str | None) -> Tensor | None:
        """Log-probabilities of the reference, without gradients, while the policy's activations are alive; returns the
        logits that the trainer goes on holding.

        TRL dpo_trainer.py _compute_loss and LLaMA-Factory dpo/trainer.py get_batch_loss_metrics run it after the
        policy. KTO's forwards over mismatched pairs are of the same size, and TRL's come before the policy's and before
        the reference's, when less is alive. GRPO's and RLOO's references are asked with the completions, before the
        step (_generate_and_score_completions).
        """
        if self.objective == "grpo" or self.kind not in ("copy", "adapter"):
            return None
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        f.adapters = self.kind != "adapter"
        _, _, logits = self._log_probs(f, self._forward(f, batch, model, autocast), batch, model[1])
        f.cast_cache.clear()
        if self.whole:
            if self.objective == "kto":
                self._mismatched(f, batch, model, autocast, logits)
            logits = None
        f.grad_enabled, f.adapters = grad_enabled, True
        return logits

    def _forward(self, f: Tape, batch: Batch, model: Model, autocast: str | None) -> list[Any]:
        f.autocast = autocast
        f.component = TEMPORARIES
        hidden = model[0](f, batch)
        return [model[1].logits(f, hidden), hidden]

    def _mismatched(
        self, f: Tape, batch: Batch, model: Model, autocast: str | None, logits: Tensor | None
    ) -> Tensor | None:
        """LLaMA-Factory's KTO: a forward over mismatched pairs beside the logits, then copies of the chosen and
        rejected rows, which together are as large and stay (kto/trainer.py concatenated_forward).
        """
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        self._log_probs(f, self._forward(f, batch, model, autocast), batch, model[1])
        f.cast_cache.clear()
        copies = f.like(logits) if logits is not None else None
        f.grad_enabled = grad_enabled
        return copies

    def _log(self, f: Tape, logits: Tensor) -> None:
        """What TRL before 1.15 logs of whole logits: their entropy, and means of the chosen and the rejected rows.

        DPO copies the chosen half's logits; KTO those of all rows, and then those of one label, which may be all.
        """
        rows, length, width = logits.shape
        if not self.kernel:
            entropy(f, Tensor((rows, length - 1, width), logits.dtype, None))
        if self.objective == "dpo":
            f.pool.touch(DTYPE_BYTES[logits.dtype] * rows // 2 * (length - 1) * width, LOGITS)
        else:
            f.pool.touch(2 * DTYPE_BYTES[logits.dtype] * rows * (length - 1) * width, LOGITS)
