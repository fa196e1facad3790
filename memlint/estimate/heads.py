"""From last hidden states to the loss: language-model heads, classifiers, and how the loss is computed."""

from __future__ import annotations

from typing import Any, Sequence

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch
from memlint.estimate.ops.basic import cast, dropout, saving_output, scale
from memlint.estimate.ops.cut_loss import cut_cross_entropy
from memlint.estimate.ops.fused_loss import (
    chunked_loss,
    liger_fused_loss,
    summed,
    trl_chunked_loss,
    trl_log_probs,
)
from memlint.estimate.ops.gather import index_rows
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.ops.loss import causal_lm_loss, cross_entropy, shifting_lm_loss
from memlint.estimate.versions import before
from memlint.models.architecture import Architecture
from memlint.models.traits import LOSS_IN_OWN_DTYPE, NORMED_HEAD

SCALED_LOGITS = (
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "granite_swa",
    "granitemoe_swa",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "falcon_h1",
    "hyperclovax",
)
"""Model types whose logits are multiplied or divided by a number, always (modeling files of transformers 5.24)."""

HEADLESS = ("chunked", "fused", "cut-cross-entropy")
"""Values of ``training.loss`` that never make all logits."""
OF_TRAINERS = ("token-weighted", "dft", "eaft", "asft")
"""Those for which the trainer takes the loss itself, from all logits (estimate/trainer_loss.py)."""


class CausalHead:
    """lm_head over all positions, then transformers' ForCausalLMLoss, or one of its fused or chunked substitutes."""

    def __init__(self, a: Architecture, b: Build, embed: Any, *, name: str = "lm_head", bias: bool = False) -> None:
        self.loss_kind = b.training.loss
        self.trl = b.job.framework.startswith(("trl", "TRL"))
        self.widens = before(b.job, "torch", 2, 8)
        """addmm knows no ``out_dtype`` yet (TRL 1.16 kernels/chunked_logprob.py _addmm_fp32)."""
        self.by_chunks = before(b.job, "trl", 1, 15)
        """The ``chunked_nll`` of TRL 1.6 to 1.14 instead of its fused head."""
        self.softcap = a.get("final_logit_softcapping") is not None
        own = LOSS_IN_OWN_DTYPE in a.traits
        halves = a.family == "gpt2" or own or before(b.job, "transformers", 4, 31)
        self.early_fp32 = before(b.job, "transformers", 4, 46) and not halves
        """Llama-shaped models upcast the logits in their own forward until 4.45; the GPT-2 shapes did not."""
        self.shifts = before(b.job, "transformers", 4, 49) or own
        self.upcasts = not before(b.job, "transformers", 4, 46) and not own
        accelerates = self.loss_kind not in HEADLESS and not before(b.job, "transformers", 4, 31)
        self.converting = self.shifts and not self.upcasts and not self.early_fp32 and accelerates
        self.scaled = a.model_type in SCALED_LOGITS
        self.known_to_trl = self.softcap or a.get("logit_scale") is not None
        """TRL 1.9's chunks multiply by ``logit_scale`` and cap; they know no granite's ``logits_scaling``."""
        rows = b.training.vocab_size or a.vocab_size
        self.normed = NORMED_HEAD in a.traits
        self.tied = a.tie_word_embeddings
        if self.tied:
            offset = b.parameter(f"{name}.bias", rows) if bias else None
            head = Linear(_tied(b, name, embed.weight), offset)
            # PEFT's own choices leave out what get_output_embeddings names, whatever it is called.
            own = b.lora is None or b.lora.targets in ("all-linear", "default")
            spared = own or b.frozen or b.reference or head.weight.trainable
            self.head: Any = head if spared else b.adapted(name, head, a.hidden_size, rows)
        else:
            self.head = b.linear(name, a.hidden_size, rows, bias)

    def logits(self, f: Tape, hidden: Tensor) -> Tensor | None:
        """Logits [B, S, V]; None when the loss never makes them whole."""
        if self.loss_kind in HEADLESS:
            return None
        f.component = LOGITS
        logits: Tensor = self.normalised(f, hidden) if self.normed else self.head(f, hidden)
        if self.softcap:  # as in turned(), which would hold the logits as its caller's
            logits = scale(f, logits)
            logits = saving_output(f, logits)
        if self.softcap or self.scaled:
            logits = scale(f, logits)
        if self.early_fp32:
            logits = cast(f, logits, "fp32")
        f.component = TEMPORARIES
        return logits

    def converts(self, f: Tape) -> bool:
        """Whether accelerate's copies of the outputs may be the most that the loss has at once: one that upcasts the
        logits holds as much before.
        """
        return f.autocast is not None and self.converting

    def converted(self, f: Tape, logits: Tensor, cached: Sequence[Tensor]) -> None:
        """convert_outputs_to_fp32 around a forward under autocast, which holds the outputs until all are copied.

        accelerate 0.25 and 1.15 utils/operations.py: copies in fp32 of all that is in half precision. cached: keys and
        values among the outputs.
        """
        f.component = LOGITS
        copies = [f.new(x.shape, "fp32") for x in (logits, *cached) if x.dtype != "fp32"]
        del copies
        f.component = TEMPORARIES

    def turned(self, f: Tape, logits: Tensor) -> Tensor:
        """Logits through the model's cap, or times its scale."""
        if self.softcap:
            logits = scale(f, logits)
            logits = saving_output(f, logits)
            return scale(f, logits)
        return scale(f, logits) if self.scaled else logits

    def normalised(self, f: Tape, hidden: Tensor) -> Tensor:
        """Baichuan 2's NormHead."""
        from memlint.estimate.ops.similarity import normalised

        weight = matrix_of(self.head)
        return linear(f, hidden, normalised(f, weight))

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """The scalar loss."""
        assert batch.labels is not None
        if logits is not None:
            if self.shifts:
                return shifting_lm_loss(f, logits, batch.labels, upcast=self.upcasts)
            return causal_lm_loss(f, logits, batch.labels)
        assert hidden is not None
        f.component = LOGITS
        if self.loss_kind == "fused":
            return liger_fused_loss(f, hidden, matrix_of(self.head))
        if self.loss_kind == "cut-cross-entropy":
            return cut_cross_entropy(f, hidden, matrix_of(self.head), batch.labels)
        if self.trl and self.by_chunks:
            return trl_chunked_loss(f, hidden, matrix_of(self.head), self.turned if self.known_to_trl else _as_it_is)
        if self.trl:
            return summed(f, trl_log_probs(f, hidden, matrix_of(self.head), widens=self.widens))
        return chunked_loss(f, hidden, matrix_of(self.head), batch.labels)


def _as_it_is(f: Tape, logits: Tensor) -> Tensor:
    return logits


def matrix_of(layer: Any) -> Any:
    """``layer.weight``, as a loss takes it that makes no logits: an adapted layer's is its base's, without the adapter.

    peft 0.21 tuners/tuners_utils.py BaseTunerLayer.weight.
    """
    while not hasattr(layer, "weight"):
        layer = layer.base
    return layer.weight


def _tied(b: Build, name: str, weight: Weight) -> Weight:
    """The head's matrix where it is the embedding's.

    What modules_to_save names trains as a copy of its own, and what it does not name stays as it was (peft 0.21
    utils/other.py ModulesToSaveWrapper; LoraConfig.ensure_weight_tying is off).
    """
    saved = b.lora.modules_to_save if b.adapter and b.lora is not None and not b.reference else ()
    if any(fragment in name.split(".") for fragment in saved):
        return b.parameter(f"{name}.weight", *weight.shape, adapter=True)
    if saved and weight.node is not None:
        return Weight(name, weight.shape, weight.dtype, False, weight.dtype)
    return weight


class ClassificationHead:
    """GenericForSequenceClassification: ``score`` over every position, then the last token's logits
    (modeling_layers.py).
    """

    def __init__(
        self, a: Architecture, b: Build, embed: Any, *, per_token: bool = False, labels: int | None = None
    ) -> None:
        self.labels = int(a.get("num_labels", 2)) if labels is None else labels
        self.per_token = per_token
        self.dropout = float(a.get("classifier_dropout", a.get("hidden_dropout", 0.1))) if per_token else 0.0
        width = a.hidden_size if a.model_type != "opt" else int(a.get("word_embed_proj_dim", a.hidden_size))
        self.score = b.linear("score", width, self.labels, per_token)
        self.held: Tensor | None = None
        """What the model's forward calls sequence_output until its loss is there."""

    def logits(self, f: Tape, hidden: Tensor) -> Tensor | None:
        """[B, S, labels]."""
        scored = dropout(f, hidden, self.dropout)
        logits: Tensor = self.score(f, scored)
        self.held = scored
        return logits

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """Cross entropy over the pooled (or all) positions."""
        assert logits is not None and batch.labels is not None
        if self.per_token:
            # ForTokenClassification upcasts, and holds the upcast logits until the loss is there.
            logits = cast(f, logits, "fp32")
            loss = cross_entropy(f, logits, batch.labels)
            self.held = None
            return loss
        # The last token that is no padding; its mask and positions live until the loss is there (modeling_layers.py).
        b, length, _ = logits.shape
        kept, positions = f.new((b, length), "int32"), f.new((length,), "int32")
        rows, last = f.new((b,), "int64"), f.new((b,), "int64")
        pooled = index_rows(f, logits.view(b * length, self.labels), last)
        loss = cross_entropy(f, pooled, batch.labels)
        self.held = None
        del kept, positions, rows
        return loss
