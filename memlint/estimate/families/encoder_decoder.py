"""Encoder-decoder models with their language-model head: sequence-to-sequence training."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, LOGITS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.ops.basic import cast
from memlint.estimate.ops.loss import cross_entropy
from memlint.job import TrainingJob

MODULES = {
    "t5": "t5",
    "mt5": "t5",
    "umt5": "umt5",
    "bart": "bart",
    "mvp": "bart",
    "mbart": "bart",
    "pegasus": "bart",
    "marian": "bart",
    "plbart": "bart",
    "blenderbot": "bart",
    "blenderbot-small": "bart",
    "m2m_100": "bart",
    "whisper": "whisper",
    "vision-encoder-decoder": "vision_encoder_decoder",
    "t5gemma": "t5gemma",
}
"""model_type -> module of this package that holds its ``Model``; modules load on first use."""


class EncoderDecoderModel:
    """``body(f, batch)`` gives logits and whatever the model's forward holds until the loss is taken."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Any) -> None:
        assert job.architecture is not None
        if job.training.objective != "seq2seq-lm":
            raise Unsupported(f"no memory model for the objective `{job.training.objective}` on an encoder-decoder yet")
        self.job, self.build = job, build
        self.body = body(job.architecture, build, env)

    def batch(self, f: Tape) -> Batch:
        """Source ids [B, S], labels [B, T] and, with padding, the source's mask; or features where the body has
        them.
        """
        training = self.job.training
        rows, length = training.micro_batch_size, training.sequence_length
        features = getattr(self.body, "features", None)
        source = f.new(features(rows), self.body.dtype, INPUTS) if features else f.new((rows, length), "int64", INPUTS)
        return Batch(
            ids=source,
            labels=f.new((rows, training.target_sequence_length or length), "int64", INPUTS),
            mask=f.new((rows, length), "int64", INPUTS) if training.padding and not features else None,
        )

    def forward(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Logits [B, T, V] and what is held with them."""
        result: tuple[Tensor, Any] = self.body(f, batch)
        return result

    def loss(self, f: Tape, output: tuple[Tensor, Any], batch: Batch) -> Tensor:
        """CrossEntropyLoss in the logits' dtype, or in fp32 where the class calls ForMaskedLMLoss."""
        assert batch.labels is not None
        f.component = LOGITS
        logits = cast(f, output[0], "fp32") if getattr(self.body, "upcasts", False) else output[0]
        return cross_entropy(f, logits, batch.labels)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves


def build(job: TrainingJob, b: Build, env: Env) -> Any:
    """Build an encoder-decoder, or Whisper's encoder under a classifier. Raises Unsupported for a type that has no
    module.
    """
    assert job.architecture is not None
    module = MODULES.get(job.architecture.model_type)
    if module is None:
        raise Unsupported(f"no memory model for `{job.architecture.model_type}` yet")
    made = import_module(f"memlint.estimate.families.{module}")
    if module == "whisper" and job.training.objective == "sequence-classification":
        return made.Classifier(job, b, env)
    return EncoderDecoderModel(job, b, env, made.Model)
