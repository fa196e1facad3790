"""A decoder-only model with its head and loss: causal LM, classification, reward."""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, TEMPORARIES, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.heads import CausalHead, ClassificationHead
from memlint.estimate.ops.basic import add, slice_of
from memlint.estimate.ops.fused_loss import summed
from memlint.estimate.peft_kinds import prompt_parameters
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.traits import MASK_PER_LAYER

Body = Callable[[Architecture, Build, Env], Any]


PAIRED = ("dpo", "orpo", "cpo", "reward")
"""Objectives whose micro batch counts pairs: a chosen and a rejected row each."""
POLICY = ("dpo", "orpo", "cpo", "kto", "grpo")
"""Objectives computed from log-probabilities of the labels."""
SUPERVISED = ("orpo", "cpo")
"""Objectives to which TRL adds the cross entropy of the chosen rows."""


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

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits and last hidden states, which the model's forward holds until its loss is computed."""
        hidden = self.body(f, batch)
        logits = self.head.logits(f, self._kept(f, hidden))
        if self.objective in POLICY:
            return [logits, hidden]
        return logits, hidden

    def _scored(self) -> int | None:
        """Positions of a row whose log-probability is asked for; None: all but the last."""
        return self.job.training.completion_length if self.objective == "grpo" else None

    def _kept(self, f: Tape, hidden: Tensor) -> Tensor:
        """GRPO with whole logits asks for those of the completion only (logits_to_keep, TRL before 1.15)."""
        length = self._scored()
        if length is None or length >= hidden.shape[1] or self.head.loss_kind != "standard":
            return hidden
        return slice_of(f, hidden, (hidden.shape[0], length, hidden.shape[2]))

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """The scalar loss; of a policy's ``output`` nothing is left."""
        if self.objective not in POLICY:
            loss: Tensor = self.head.loss(f, *output, batch)
            return loss
        held = output if isinstance(output, list) else list(output)
        del output
        outer = f.autocast
        assert batch.labels is not None
        adds = self.objective in SUPERVISED
        values, first, logits = self.head.log_probs(f, held, batch.labels, self._scored(), adds=adds)
        # Each call of a model is an autocast of its own (Accelerator.prepare_model), whose cached weights end with it.
        f.cast_cache.clear()
        f.autocast = outer
        self._reference_pass(f, batch)
        f.autocast = None
        del logits
        loss = summed(f, values)
        return loss if first is None else add(f, first, loss)

    def _reference_pass(self, f: Tape, batch: Batch) -> None:
        """Log-probabilities of the reference, without gradients, while the policy's activations are alive.

        TRL dpo_trainer.py _compute_loss and LLaMA-Factory dpo/trainer.py get_batch_loss_metrics run it after the
        policy; KTO adds a forward over mismatched pairs of the same size, also without gradients. GRPO's and RLOO's
        are taken with the completions, before the step (_generate_and_score_completions), when nothing else is alive.
        """
        kind = self.job.training.reference_model
        if self.objective == "grpo" or (kind not in ("copy", "adapter") and self.objective != "kto"):
            return
        body, head = self.reference or (self.body, self.head)
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        f.adapters = kind != "adapter"
        f.component = TEMPORARIES
        hidden = body(f, batch)
        held = [head.logits(f, hidden), hidden]
        del hidden
        assert batch.labels is not None
        head.log_probs(f, held, batch.labels, self._scored(), adds=False)
        f.cast_cache.clear()
        f.grad_enabled, f.adapters = grad_enabled, True

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
