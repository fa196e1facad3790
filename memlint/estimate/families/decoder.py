"""A decoder-only model with its head and loss: causal LM, classification, reward."""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, TEMPORARIES, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.heads import CausalHead, ClassificationHead
from memlint.estimate.ops.basic import slice_of
from memlint.estimate.ops.fused_loss import summed
from memlint.estimate.peft_kinds import prompt_parameters
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.traits import MASK_PER_LAYER

Body = Callable[[Architecture, Build, Env], Any]


PAIRED = ("dpo", "orpo", "reward")
"""Objectives whose micro batch counts pairs: a chosen and a rejected row each."""
POLICY = ("dpo", "orpo", "kto", "grpo")
"""Objectives computed from log-probabilities of the labels."""


class DecoderModel:
    """Body (embedding, layers, norm) and head, as transformers' ...ForCausalLM runs them, under an objective."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Body) -> None:
        assert job.architecture is not None
        a = job.architecture
        self.job, self.build = job, build
        self.objective = job.training.objective
        self.body = body(a, build, env)
        self.prompt_tokens = prompt_parameters(build, a)
        if MASK_PER_LAYER in a.traits:
            build.buffer_bytes += a.num_hidden_layers * rounded((a.max_position_embeddings or 0) ** 2)
        self.head: Any
        if self.objective == "causal-lm" or self.objective in POLICY:
            self.head = self._language_head(a, self.body)
        elif self.objective in ("sequence-classification", "token-classification", "reward"):
            per_token = self.objective == "token-classification"
            self.head = ClassificationHead(a, build, self.body.embed, per_token=per_token)
        else:
            raise Unsupported(f"no memory model for the objective `{self.objective}` yet")
        self.reference: tuple[Any, Any] | None = None
        if self.objective in POLICY and job.training.reference_model == "copy":
            build.reference = True
            copied = body(a, build, env)
            self.reference = (copied, self._language_head(a, copied))
            build.reference = False

    def _language_head(self, a: Architecture, body: Any) -> CausalHead:
        name = getattr(body, "head_name", "lm_head")
        return CausalHead(a, self.build, body.embed, name=name, bias=getattr(body, "head_bias", False))

    def batch(self, f: Tape) -> Batch:
        """ids, labels and, with padding, a mask: [B, S] int64 each."""
        training = self.job.training
        rows = training.micro_batch_size * (2 if self.objective in PAIRED else 1)
        length = -(-training.sequence_length // self.job.parallelism.context) + self.prompt_tokens
        shape = (rows, length)
        labels = shape if self.objective not in ("sequence-classification", "reward") else shape[:1]
        return Batch(
            ids=f.new(shape, "int64", INPUTS),
            labels=f.new(labels, "int64", INPUTS),
            mask=f.new(shape, "int64", INPUTS) if training.padding else None,
        )

    def forward(self, f: Tape, batch: Batch) -> tuple[Tensor | None, Tensor]:
        """Logits and last hidden states, which the model's forward holds until its loss is computed."""
        hidden = self.body(f, batch)
        return self.head.logits(f, self._scored(f, hidden)), hidden

    def _scored(self, f: Tape, hidden: Tensor) -> Tensor:
        """GRPO asks for the logits of the completion only (logits_to_keep)."""
        length = self.job.training.completion_length
        if self.objective != "grpo" or length is None or length >= hidden.shape[1]:
            return hidden
        return slice_of(f, hidden, (hidden.shape[0], length, hidden.shape[2]))

    def loss(self, f: Tape, output: tuple[Tensor | None, Tensor], batch: Batch) -> Tensor:
        """The scalar loss."""
        if self.objective not in POLICY:
            loss: Tensor = self.head.loss(f, *output, batch)
            return loss
        logits, hidden = output
        values, held = self.head.log_probs(f, logits, self._scored(f, hidden))
        del output, logits
        if self.objective == "orpo":
            hidden = None  # type: ignore[assignment]
        self._reference_pass(f, batch)
        del held
        return summed(f, values)

    def _reference_pass(self, f: Tape, batch: Batch) -> None:
        """Log-probabilities of the reference, without gradients, while the policy's activations are alive.

        TRL dpo_trainer.py _compute_loss and LLaMA-Factory dpo/trainer.py get_batch_loss_metrics run it after the
        policy; KTO adds a forward over mismatched pairs of the same size, also without gradients.
        """
        kind = self.job.training.reference_model
        if kind not in ("copy", "adapter") and self.objective != "kto":
            return
        body, head = self.reference or (self.body, self.head)
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        f.component = TEMPORARIES
        hidden = body(f, batch)
        logits = head.logits(f, self._scored(f, hidden))
        head.log_probs(f, logits, hidden)
        f.grad_enabled = grad_enabled

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
