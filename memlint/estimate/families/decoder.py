"""A decoder-only model with its head and loss: causal LM, classification, reward."""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.heads import CausalHead, ClassificationHead
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture

Body = Callable[[Architecture, Build, Env], Any]


class DecoderModel:
    """Body (embedding, layers, norm) and head, as transformers' ...ForCausalLM runs them."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Body) -> None:
        assert job.architecture is not None
        a = job.architecture
        self.job, self.build = job, build
        self.body = body(a, build, env)
        self.head: Any
        objective = job.training.objective
        if objective == "causal-lm":
            self.head = CausalHead(a, build, self.body.embed, bias=getattr(self.body, "head_bias", False))
        elif objective in ("sequence-classification", "token-classification", "reward"):
            self.head = ClassificationHead(a, build, self.body.embed, per_token=objective == "token-classification")
        else:
            raise Unsupported(f"no memory model for the objective `{objective}` yet")

    def batch(self, f: Tape) -> Batch:
        """ids, labels and, with padding, a mask: [B, S] int64 each."""
        training = self.job.training
        shape = (training.micro_batch_size, training.sequence_length)
        labels = shape if training.objective != "sequence-classification" else shape[:1]
        return Batch(
            ids=f.new(shape, "int64", INPUTS),
            labels=f.new(labels, "int64", INPUTS),
            mask=f.new(shape, "int64", INPUTS) if training.padding else None,
        )

    def forward(self, f: Tape, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Logits and last hidden states, which the model's forward holds until its loss is computed."""
        hidden = self.body(f, batch)
        return self.head.logits(f, hidden), hidden

    def loss(self, f: Tape, output: tuple[Tensor | None, Tensor | None], batch: Batch) -> Tensor:
        """The scalar loss."""
        loss: Tensor = self.head.loss(f, *output, batch)
        return loss

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
