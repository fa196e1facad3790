"""wav2vec 2.0, HuBERT, data2vec: convolutions over the waveform, a transformer over their frames, CTC or a classifier.

``sequence_length`` counts frames, one for each 320 samples (20 ms at 16 kHz). Layers that LayerDrop may leave out all
run. Sources: transformers 5.24 models/{wav2vec2,hubert,data2vec}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.speech_positions import DATA2VEC, Positions, SeveralPositions
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, dropout
from memlint.estimate.ops.convolutions import group_norm, mean_over
from memlint.estimate.ops.ctc import ctc_loss
from memlint.estimate.ops.images import convolution, requiring_grad
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.ops.views import fill_in_place, put_in_place
from memlint.estimate.outputs import held_by_the_next
from memlint.estimate.stack import Stack
from memlint.job import Checkpointing, TrainingJob
from memlint.models.architecture import Architecture

CHANNELS, STRIDES = (512,) * 7, (5, 2, 2, 2, 2, 2, 2)
"""conv_dim and conv_stride of Wav2Vec2Config; conv_kernel is in the class defaults."""
CLASSES = ("sequence-classification", "image-classification")


class Convolution:
    """Wav2Vec2{GroupNorm,NoLayerNorm,LayerNorm}ConvLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, index: int) -> None:
        channels = a.get("conv_dim", CHANNELS)
        kernel, self.stride = int(a.get("conv_kernel")[index]), int(a.get("conv_stride", STRIDES)[index])
        self.kernel, self.channels = kernel, int(channels[index])
        inputs = int(channels[index - 1]) if index else 1
        self.act = str(a.get("feat_extract_activation", "gelu"))
        self.weight = b.parameter(f"{name}.conv.weight", self.channels, inputs, kernel)
        self.bias = b.parameter(f"{name}.conv.bias", self.channels) if a.get("conv_bias", False) else None
        self.grouped = a.model_type != DATA2VEC and a.get("feat_extract_norm", "group") == "group"
        self.norm: Any = None
        if index == 0 or not self.grouped:
            self.norm = LayerNorm(b, f"{name}.layer_norm", self.channels)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, C, N] -> [B, C', N']."""
        length = (x.shape[2] - self.kernel) // self.stride + 1
        shape = (x.shape[0], self.channels, length)
        x = convolution(f, x, self.weight, self.bias, shape)
        if self.norm is not None and self.grouped:
            x = group_norm(f, x, self.norm.weight, self.norm.bias, self.channels)
        elif self.norm is not None:
            x = self.norm(f, x.view(shape[0], length, self.channels)).view(*shape)
        return activate(f, x, self.act)


class Layer:
    """Wav2Vec2EncoderLayer, or with ``stable`` norms before its branches."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env, *, stable: bool) -> None:
        h, inner = a.hidden_size, int(a.get("intermediate_size"))
        self.env, self.stable = env, stable
        self.heads = int(a.get("num_attention_heads"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.attention_dropout = float(a.get("attention_dropout", 0.0))
        self.dropout = float(a.get("hidden_dropout", 0.0))
        self.inner_dropout = float(a.get("activation_dropout", 0.0))
        self.k, self.v, self.q, self.out = (
            b.linear(f"{name}.attention.{n}", h, h, True) for n in ("k_proj", "v_proj", "q_proj", "out_proj")
        )
        self.norm = LayerNorm(b, f"{name}.layer_norm", h)
        self.up = b.linear(f"{name}.feed_forward.intermediate_dense", h, inner, True)
        self.down = b.linear(f"{name}.feed_forward.output_dense", inner, h, True)
        self.last = LayerNorm(b, f"{name}.final_layer_norm", h)
        if a.get("adapter_attn_dim") is not None:
            raise Unsupported("no memory model for adapters inside attention layers yet")

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Wav2Vec2Attention."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(project(f, x), self.heads, width) for project in (self.q, self.k, self.v))
        mask = self.env.state["mask"]
        out, weights = attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False, style="raw")
        return self.out(f, out), weights

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """Wav2Vec2FeedForward."""
        x = self.up(f, x)
        x = activate(f, x, self.act)
        x = dropout(f, x, self.inner_dropout)
        x = self.down(f, x)
        return dropout(f, x, self.dropout)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, L, H] -> [B, L, H]."""
        residual = x
        if self.stable:
            x = self.norm(f, x)
        x, weights = self.attend(f, x)
        x = dropout(f, x, self.dropout)
        x = add(f, residual, x)
        if self.stable:
            normed = self.last(f, x)
            x = add(f, x, self.fed(f, normed))
            del normed
        else:
            x = self.norm(f, x)
            x = add(f, x, self.fed(f, x))
            x = self.last(f, x)
        del weights, residual
        return x


class Body:
    """Wav2Vec2Model and HubertModel: waveform [B, N] -> frames [B, L, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        name, h = a.model_type.replace("-", "_"), a.hidden_size
        self.a, self.env = a, env
        layers = int(a.get("num_feat_extract_layers", len(STRIDES)))
        channels = int(a.get("conv_dim", CHANNELS)[-1])
        # freeze_feature_encoder() also says that the waveform needs no gradient.
        self.frozen = "feature_extractor" in b.training.freeze
        masked = float(a.get("mask_time_prob", 0.05)) > 0 or float(a.get("mask_feature_prob", 0.0)) > 0
        self.masking = b.parameter(f"{name}.masked_spec_embed", h) if masked else None
        at = f"{name}.feature_extractor.conv_layers"
        kinds = list(range(layers))
        self.features = Stack(b, kinds, lambda build, _, i: Convolution(a, build, f"{at}.{i}", i))
        normed = bool(a.get("feat_proj_layer_norm", True))
        self.feature_norm = LayerNorm(b, f"{name}.feature_projection.layer_norm", channels) if normed else None
        self.project = b.linear(f"{name}.feature_projection.projection", channels, h, True)
        self.feature_dropout = float(a.get("feat_proj_dropout", 0.0))
        self.keeps = name != "hubert"
        """The outputs hold the features, normed."""
        at = f"{name}.encoder"
        self.stable = bool(a.get("do_stable_layer_norm", False))
        self.dropout = float(a.get("hidden_dropout", 0.0))
        self.first: Tensor | None = None
        """What went into the first layer, where the outputs hold it."""
        kind: Any = SeveralPositions if a.model_type == DATA2VEC else Positions
        self.positions = kind(a, b, f"{at}.pos_conv_embed")
        self.norm = LayerNorm(b, f"{at}.layer_norm", h)
        make = lambda build, _, i: Layer(a, build, f"{at}.layers.{i}", env, stable=self.stable)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        if a.get("add_adapter", False):
            raise Unsupported("no memory model for an adapter behind the encoder yet")

    def samples(self, frames: int) -> int:
        """Length of the waveform that gives so many frames."""
        for kernel, stride in zip(reversed(self.a.get("conv_kernel")), reversed(self.a.get("conv_stride", STRIDES))):
            frames = (frames - 1) * int(stride) + int(kernel)
        return frames

    def __call__(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Frames, and what the outputs hold besides."""
        rows, count = batch.ids.shape
        x = batch.ids.view(rows, 1, count)
        if not self.frozen:
            x = requiring_grad(f, x)
        options = self.env.checkpointing
        if self.frozen:
            # A checkpointed layer that saves nothing holds nothing either, not even its input.
            self.env.checkpointing = Checkpointing()
        x = self.features(f, self.env, x)
        self.env.checkpointing = options
        features = x.view(rows, x.shape[2], x.shape[1])
        x = features
        if self.feature_norm is not None:
            x = self.feature_norm(f, x)
        if self.keeps:
            features = x
        x = self.project(f, x)
        x = dropout(f, x, self.feature_dropout)
        out = self.encoded(f, self.hidden(f, x), batch)
        self.env.release()
        first, self.first = self.first, None
        return out, (features if self.keeps else None, first)

    def hidden(self, f: Tape, x: Tensor) -> Tensor:
        """_mask_hidden_states: spans of frames are replaced by one learned vector."""
        if self.masking is None or not self.a.get("apply_spec_augment", True):
            return x
        if float(self.a.get("mask_time_prob", 0.05)) > 0:
            x = put_in_place(f, x, cast(f, self.masking, x.dtype), f.new(x.shape[:2], "bool"))
        if float(self.a.get("mask_feature_prob", 0.0)) > 0:
            x = fill_in_place(f, x, f.new((x.shape[0], x.shape[2]), "bool"))
        return x

    def encoded(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Wav2Vec2Encoder."""
        rows, length, h = x.shape
        mask = None
        sound = None
        if self.env.padding:
            sound = f.new((rows, length, h), "bool")
            x = fill_in_place(f, x, f.like(sound))
            if self.env.attention not in ("flash", "flex"):
                mask = f.new((rows, 1, length, length), "bool" if self.env.attention == "sdpa" else x.dtype)
        positions = self.positions(f, x)
        x = add(f, x, positions)
        if not self.stable:
            x = self.norm(f, x)
        x = dropout(f, x, self.dropout)
        self.env.state["mask"] = mask
        self.first = x if self.layers.keeps else None
        x = self.layers(f, self.env, x)
        if self.stable:
            x = self.norm(f, x)
        del positions, sound
        return x


class SpeechModel:
    """The body under CTC, or under a classifier over the mean of its frames."""

    def __init__(self, job: TrainingJob, build: Build, env: Env) -> None:
        a = job.architecture
        assert a is not None
        if a.model_type not in ("wav2vec2", "hubert", DATA2VEC):
            raise Unsupported(f"no memory model for `{a.model_type}` yet")
        if job.training.objective not in ("causal-lm", *CLASSES):
            raise Unsupported(f"no memory model for the objective `{job.training.objective}` on `{a.model_type}` yet")
        self.job, self.build = job, build
        self.classified = job.training.objective in CLASSES
        self.body = Body(a, build, env)
        # Wav2Vec2ForSequenceClassification has every layer's output made (filter_output_hidden_states).
        self.body.layers.keeps = self.classified and a.model_type != "hubert"
        self.dropout = float(a.get("final_dropout", 0.0))
        self.head: Any
        if self.classified:
            width = int(a.get("classifier_proj_size", 256))
            self.project = build.linear("projector", a.hidden_size, width, True)
            self.head = build.linear("classifier", width, labels_of(a), True)
        else:
            self.head = build.linear("lm_head", a.hidden_size, build.training.vocab_size or a.vocab_size, True)

    def batch(self, f: Tape) -> Batch:
        """The waveform [B, N], labels [B] or [B, T] and, with padding, a mask."""
        training = self.job.training
        rows, length = training.micro_batch_size, training.sequence_length
        count = self.body.samples(length)
        # A model that is loaded in half precision needs its waveform so: no cast stands before the first convolution.
        dtype = training.precision.weights
        labels = (rows,) if self.classified else (rows, training.target_sequence_length or length)
        return Batch(
            ids=f.new((rows, count), dtype, INPUTS),
            labels=f.new(labels, "int64", INPUTS),
            mask=f.new((rows, count), "int32", INPUTS) if training.padding else None,
        )

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits, and what the model's forward holds."""
        x, held = self.body(f, batch)
        if not self.classified:
            dropped = dropout(f, x, self.dropout)
            logits = self.head(f, dropped)
            # Without a mask one is made, of the waveform's size, for the lengths that the loss needs.
            mask = None if self.job.training.padding else f.new(batch.ids.shape, "int64")
            return logits, dropped, x, held, mask
        projected = self.project(f, x)
        pooled = mean_over(f, projected, (projected.shape[0], projected.shape[2]))
        return [self.head(f, pooled), pooled, projected, x, held]

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """CTC, or cross entropy over the labels."""
        assert batch.labels is not None
        if self.classified:
            loss = cross_entropy(f, output[0], batch.labels)
            output.clear()
            self.body.layers.outputs.forget(f, f.grad_enabled and held_by_the_next(self.body.env.checkpointing))
            return loss
        return ctc_loss(f, output[0], batch.labels)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
