"""Encoders with the heads that they are trained with: masked language model, sequence and token classification."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.contrastive import Columns
from memlint.estimate.engine.pool import INPUTS, LOGITS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.ops.basic import cast
from memlint.estimate.ops.loss import cross_entropy
from memlint.job import TrainingJob

MODULES = {
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "camembert": "bert",
    "data2vec-text": "bert",
    "ernie": "bert",
    "electra": "bert",
    "distilbert": "bert",
    "modernbert": "modernbert",
    "deberta-v2": "deberta",
    "deberta": "deberta_v1",
    "roberta-prelayernorm": "pre_norm_bert",
    "megatron-bert": "pre_norm_bert",
    "mpnet": "mpnet",
    "eurobert": "eurobert",
    "albert": "albert",
    "nomic_bert": "rotary_bert",
    "gte": "rotary_bert",
    "jina_embeddings_v3": "rotary_bert",
    "esm": "esm",
    "xlm-roberta-xl": "pre_norm_bert",
    "roformer": "composed_bert",
    "rembert": "composed_bert",
    "convbert": "convbert",
    "layoutlm": "layoutlm",
    "squeezebert": "squeezebert",
    "nystromformer": "nystromformer",
    "mobilebert": "mobilebert",
}
"""model_type -> module of this package that holds its ``Model``; modules load on first use."""

BY_KEYWORD = ("modernbert", "eurobert", "nomic_bert", "gte", "jina_embeddings_v3")
"""Types that give their layers masks and rotary tables by keyword; the others by position."""
NOT_EMBEDDED = ("esm", "mobilebert")
"""Types whose classes without a head have not been modelled."""

OBJECTIVES = ("masked-lm", "sequence-classification", "token-classification")


class EncoderModel:
    """Body and head of an encoder; the model's forward holds its hidden states until the loss is taken."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Any) -> None:
        assert job.architecture is not None
        objective = job.training.objective
        embeds = objective == "contrastive" and job.architecture.model_type not in NOT_EMBEDDED
        if objective not in OBJECTIVES and not embeds:
            raise Unsupported(f"no memory model for the objective `{objective}` on an encoder yet")
        self.job, self.build = job, build
        self.body = body(job.architecture, build, env, objective)
        self.head = self.body.head
        closures = job.architecture.model_type in BY_KEYWORD
        self.columns = Columns(job, build, env, self.body, closures=closures) if embeds else None
        """What runs where texts are embedded; it makes batch, forward and loss."""
        self.upcasts = getattr(self.body, "upcasts", False) and objective == "masked-lm"
        """The loss casts logits to fp32 (transformers' ForMaskedLMLoss); older heads call CrossEntropyLoss directly."""

    def batch(self, f: Tape) -> Any:
        """ids [B, S], labels [B] or [B, S] and, with padding, a mask."""
        if self.columns is not None:
            return self.columns.batch(f)
        training = self.job.training
        shape = (training.micro_batch_size, training.sequence_length)
        labels = shape[:1] if training.objective == "sequence-classification" else shape
        return Batch(
            ids=f.new(shape, "int64", INPUTS),
            labels=f.new(labels, "int64", INPUTS),
            mask=f.new(shape, "int64", INPUTS) if training.padding else None,
        )

    def forward(self, f: Tape, batch: Any) -> Any:
        """Logits, what the head's forward holds besides, and last hidden states."""
        if self.columns is not None:
            return self.columns.forward(f, batch)
        hidden = self.body(f, batch)
        return *self.head(f, hidden), hidden

    def loss(self, f: Tape, output: Any, batch: Any) -> Tensor:
        """Cross entropy over the vocabulary or the labels."""
        if self.columns is not None:
            return self.columns.loss(f, output)
        assert batch.labels is not None
        f.component = LOGITS
        logits = cast(f, output[0], "fp32") if self.upcasts else output[0]
        return cross_entropy(f, logits, batch.labels)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves


def build(job: TrainingJob, b: Build, env: Env) -> EncoderModel:
    """Build an encoder. Raises Unsupported for a type that has no module or an objective that encoders do not have."""
    assert job.architecture is not None
    module = MODULES.get(job.architecture.model_type)
    if module is None:
        raise Unsupported(f"no memory model for `{job.architecture.model_type}` yet")
    return EncoderModel(job, b, env, import_module(f"memlint.estimate.families.{module}").Model)
