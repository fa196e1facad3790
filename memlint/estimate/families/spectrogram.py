"""The Audio Spectrogram Transformer: a ViT over overlapping squares of a mel spectrogram, under a classifier.

Source: transformers 5.24 models/audio_spectrogram_transformer/modeling_audio_spectrogram_transformer.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.vision_tower import KINDS, Layer, side_of
from memlint.estimate.ops.basic import add, cat, dropout, scale, slice_of
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.images import convolution, requiring_grad
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.stack import Stack
from memlint.job import TrainingJob


class Model:
    """ASTForAudioClassification: features [B, L, M] -> logits [B, labels]."""

    def __init__(self, job: TrainingJob, b: Build, env: Env) -> None:
        a = job.architecture
        assert a is not None
        self.job, self.build, self.env, h = job, b, env, a.hidden_size
        self.width, self.mels, self.length = h, int(a.get("num_mel_bins", 128)), int(a.get("max_length", 1024))
        patch, name = side_of(a.get("patch_size", 16)), "audio_spectrogram_transformer"
        high = (self.mels - patch) // int(a.get("frequency_stride", 10)) + 1
        long = (self.length - patch) // int(a.get("time_stride", 10)) + 1
        self.count, at = high * long, f"{name}.embeddings"
        self.tokens = [b.parameter(f"{at}.{n}_token", 1, 1, h) for n in ("cls", "distillation")]
        self.weight = b.parameter(f"{at}.patch_embeddings.projection.weight", h, 1, patch, patch)
        self.bias = b.parameter(f"{at}.patch_embeddings.projection.bias", h)
        self.places = b.parameter(f"{at}.position_embeddings", 1, self.count + 2, h)
        self.dropout, kind = float(a.get("hidden_dropout_prob", 0.0)), KINDS["vit"]
        make = lambda build, _, i: Layer(a, build, f"{name}.layers.{i}", kind, env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, f"{name}.layernorm", h)
        self.head_norm = LayerNorm(b, "classifier.layernorm", h)
        self.head = b.linear("classifier.dense", h, labels_of(a), True)

    def batch(self, f: Tape) -> Batch:
        """Mel features in the dtype of the weights, which nothing casts, and a label each."""
        training = self.job.training
        rows = training.micro_batch_size
        labels = f.new((rows,), "int64", INPUTS)
        return Batch(ids=f.new((rows, self.length, self.mels), training.precision.weights, INPUTS), labels=labels)

    def embedded(self, f: Tape, features: Tensor) -> Tensor:
        """ASTEmbeddings."""
        rows, h, count = features.shape[0], self.width, self.count
        x = convolution(f, features, self.weight, self.bias, (rows, count, h))
        if self.env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        x = cat(f, *(expand(f, token, (rows, 1, h)) for token in self.tokens), x, shape=(rows, count + 2, h))
        x = add(f, x, self.places)
        return dropout(f, x, self.dropout)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits, and what the model's forward holds."""
        x = self.embedded(f, batch.ids)
        embedded = x
        x = self.layers(f, self.env, x)
        del embedded
        x = self.norm(f, x)
        self.env.release()
        first = (x.shape[0], self.width)
        pooled = scale(f, add(f, slice_of(f, x, first), slice_of(f, x, first)))
        return self.head(f, self.head_norm(f, pooled)), pooled, x

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
