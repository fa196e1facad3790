"""Whisper: two convolutions over mel features, pre-norm layers, a text decoder over the audio encoder's states.

Source: transformers 5.24 models/whisper/modeling_whisper.py.
"""

from __future__ import annotations

from typing import Any, Iterable

from memlint.estimate.build import Build, Linear
from memlint.estimate.engine.pool import INPUTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.shared import shared
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import bart
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.basic import activation, add, copy, dropout, scale
from memlint.estimate.ops.convolutions import mean_over
from memlint.estimate.ops.images import requiring_grad
from memlint.estimate.ops.linear import Weight, cast_weight, embedding, to_autocast
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.ops.views import index
from memlint.estimate.peft_prompts import OUTSIDE
from memlint.estimate.stack import trains_layer
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture

KERNEL = 3
"""Width of both convolutions of WhisperEncoder."""

FRAMES = 2
"""Mel frames of one encoder position: conv2's stride."""


def _convolution_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # convolution_backward: gradients of input, weight and bias in one call.
    return tuple(
        [f.new(shape, dtype) if edge is not None else None for edge, (shape, dtype) in zip(node.edges, node.shapes)]
    )


def convolution(f: Tape, x: Tensor, weight: Weight, bias: Weight, length: int) -> Tensor:
    """nn.Conv1d: x [B, C, L] -> [B, C', length]; saves its input and weight; on autocast's lower-precision list."""
    offset = cast_weight(f, bias)
    held = cast_weight(f, weight)
    assert held is not None and offset is not None
    given = to_autocast(f, x)
    recorded = f.needs(given, held, offset)
    saved = f.save(given, held) if recorded else ()
    out = f.new((x.shape[0], held.shape[0], length), given.dtype)
    return f.record(out, _convolution_backward, (given, held, offset), saved) if recorded else out


class Attention:
    """WhisperAttention: no bias on the keys, the queries scaled, all three made contiguous."""

    def __init__(self, a: Architecture, b: Build, name: str, heads: int) -> None:
        h = a.hidden_size
        self.heads, self.width = heads, h // heads
        self.k_proj = b.linear(f"{name}.k_proj", h, h)
        self.v_proj, self.q_proj, self.out_proj = (
            b.linear(f"{name}.{n}", h, h, True) for n in ("v_proj", "q_proj", "out_proj")
        )
        self.dropout = float(a.get("attention_dropout", 0.0))

    def split(self, f: Tape, x: Tensor) -> Tensor:
        """``view().transpose(1, 2).contiguous()``."""
        return copy(f, heads_of(x, self.heads, self.width))

    def __call__(
        self, f: Tape, env: Env, x: Tensor, source: Tensor, mask: Tensor | None, *, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, H] over source [B, S, H] -> [B, T, H], attention weights."""
        q = self.split(f, scale(f, self.q_proj(f, x)))
        k = self.split(f, self.k_proj(f, source))
        v = self.split(f, self.v_proj(f, source))
        out, weights = attend(
            f, env, q, k, v, mask, self.dropout, causal=causal, style="raw", dense=True, dense_values=True
        )
        out = self.out_proj(f, out)
        return out, weights


def _gathered_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


class Gathering:
    """A linear layer to which its gradient comes transposed, so that it is copied first."""

    def __init__(self, linear: Any) -> None:
        self.linear = linear

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, I] -> [B, S, O]."""
        out: Tensor = self.linear(f, x)
        view = Tensor(out.shape, out.dtype, out.storage)
        return f.record(view, _gathered_backward, (out,)) if f.needs(out) else out


class Layer(bart.Layer):
    """WhisperEncoderLayer and WhisperDecoderLayer."""

    attention = Attention

    def __init__(self, a: Architecture, b: Build, name: str, env: Env, *, decoder: bool) -> None:
        super().__init__(a, b, name, env, decoder=decoder)
        options = env.checkpointing
        reentrant = options.mode != "none" and options.reentrant
        if not decoder and reentrant and b.training.method in ("full", "freeze"):
            # The convolutions' permuted output passes its strides on to each layer's. A reentrant checkpoint's input
            # is a leaf, whose gradient takes them (torch 2.13 accumulate_grad.h, clone_obey_contract).
            self.fc2: Any = Gathering(self.fc2)


def hooked_by_peft(b: Build) -> bool:
    """Whether what embeds (the encoder's first convolution, the decoder's tokens) is made to require gradients.

    transformers' own checkpointing does so for models that take input_ids first (5.24 modeling_utils.py
    _activation_checkpointing_enable). peft does for all: over weights that are not quantised (0.21 peft_model.py
    _prepare_model_for_gradient_checkpointing), and over others in its k-bit preparation for reentrant checkpoints.
    """
    training = b.training
    if training.checkpointing.mode == "none" or training.method in ("full", "freeze"):
        return False
    quantization = training.quantization
    return quantization is None or (quantization.kbit_preparation and training.checkpointing.reentrant)


def reenters(env: Env) -> bool:
    """Whether checkpointed layers run inside CheckpointFunction, which selective checkpointing has no use for."""
    return env.checkpointing.reentrant and env.checkpointing.mode not in ("none", "selective")


def cut_layers(b: Build, env: Env, name: str, count: int, entry: Iterable[Weight]) -> set[int]:
    """Layers of a stack behind the weights ``entry`` whose parameters get no gradient, although they train.

    Nothing hooks what embeds where the model trains as it is (see :func:`hooked_by_peft`), and CheckpointFunction makes
    no gradient for what trains in a layer no input of which asks for one: the checkpointed ones before the first layer
    that trains without a checkpoint (torch 2.13 utils/checkpoint.py).
    """
    trained = b.training.trainable_layers
    if not reenters(env) or any(weight.node is not None for weight in entry):
        return set()
    depth, frozen, cut = b.depth or count, b.layer_frozen, set()
    for number in range(count):
        b.layer_frozen = trained is not None and not trains_layer(number, depth, trained)
        if env.checkpointed(b.first_layer + number):
            cut.add(number)
        elif b.trains(f"{name}.layers.{number}.fc1.weight"):
            break
    b.layer_frozen = frozen
    return cut


class Encoder:
    """WhisperEncoder: mel features [B, M, 2 L] -> hidden states [B, L, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str = "model.encoder") -> None:
        h = a.hidden_size
        self.env = env
        self.length = int(a.get("max_source_positions", 1500))
        self.dropout = float(a.get("dropout", 0.0))
        self.conv1 = b.parameter(f"{name}.conv1.weight", h, int(a.get("num_mel_bins", 80)), KERNEL)
        self.bias1 = b.parameter(f"{name}.conv1.bias", h)
        self.conv2 = b.parameter(f"{name}.conv2.weight", h, h, KERNEL)
        self.bias2 = b.parameter(f"{name}.conv2.bias", h)
        # WhisperEncoder freezes them, but from_pretrained of transformers 5.24 puts parameters in their place that
        # train.
        self.positions = b.parameter(f"{name}.embed_positions.weight", self.length, h)
        self.hooked = hooked_by_peft(b)
        count, cut = int(a.get("encoder_layers")), set[int]()
        if b.training.method in ("full", "freeze"):
            entry = self.conv1, self.bias1, self.conv2, self.bias2, self.positions
            cut = cut_layers(b, env, name, count, entry)
        self.layers = bart.stack(a, b, env, "encoder", count, Layer, name, cut)
        self.norm = LayerNorm(b, f"{name}.layer_norm", h)

    def __call__(self, f: Tape, features: Tensor) -> Tensor:
        """The encoder's forward."""
        env, length = self.env, self.length
        embeds = convolution(f, features, self.conv1, self.bias1, FRAMES * length)
        if self.hooked:
            embeds = requiring_grad(f, embeds)
        embeds = activation(f, embeds)
        embeds = activation(f, convolution(f, embeds, self.conv2, self.bias2, length))
        embeds = embeds.view(embeds.shape[0], length, embeds.shape[1])
        x = add(f, embeds, embedding(f, self.positions, f.new((length,), "int64")))
        x = dropout(f, x, self.dropout)
        env.state["mask"] = None
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x


class Decoder:
    """WhisperDecoder: ids [B, T] over the encoder's states -> [B, T, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        h, name = a.hidden_size, "model.decoder"
        self.env = env
        self.dropout = float(a.get("dropout", 0.0))
        entry = hooked_by_peft(b) or b.training.method in OUTSIDE
        self.embed = b.embedding(f"{name}.embed_tokens", b.training.vocab_size or a.vocab_size, h, entry=entry)
        self.positions = b.parameter(f"{name}.embed_positions.weight", int(a.get("max_target_positions", 448)), h)
        self.layers = bart.stack(a, b, env, "decoder", int(a.get("decoder_layers")), Layer)
        self.norm = LayerNorm(b, f"{name}.layer_norm", h)

    def __call__(self, f: Tape, ids: Tensor, source: Tensor) -> Tensor:
        """The decoder's forward."""
        env, state = self.env, self.env.state
        rows, length = ids.shape
        embeds = self.embed(f, ids)
        position_ids = f.new((rows, length), "int64")
        position_embeds = index(f, self.positions, (rows, length, embeds.shape[-1]), position_ids)
        x = add(f, embeds, position_embeds)
        x = dropout(f, x, self.dropout)
        if reenters(env) and source.node is not None and env.checkpointed(self.layers.numbers[0]):
            # The encoder's states are among the checkpoint's inputs: it has a graph, whatever the embedding does.
            x = requiring_grad(f, x)
        state["mask"] = env.mask(f, rows, length, embeds.dtype)
        state["source"], state["cross mask"] = shared(f, source), None
        del state
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        return x


class Classifier:
    """WhisperForAudioClassification: the encoder, and the mean of its projected states."""

    def __init__(self, job: TrainingJob, build: Build, env: Env) -> None:
        a = job.architecture
        assert a is not None
        self.job, self.build = job, build
        self.mels = int(a.get("num_mel_bins", 80))
        self.encoder = Encoder(a, build, env, "encoder")
        if a.get("use_weighted_layer_sum", False):
            raise Unsupported("no memory model for a weighted sum of Whisper's layers yet")
        width = int(a.get("classifier_proj_size", 256))
        self.project = build.linear("projector", a.hidden_size, width, True)
        self.head = build.linear("classifier", width, labels_of(a), True)

    def batch(self, f: Tape) -> Batch:
        """Mel features of 30 seconds and a label each."""
        training = self.job.training
        rows = training.micro_batch_size
        shape = (rows, self.mels, FRAMES * self.encoder.length)
        labels = f.new((rows,), "int64", INPUTS)
        return Batch(ids=f.new(shape, training.precision.weights, INPUTS), labels=labels)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the model's forward holds."""
        x = self.encoder(f, batch.ids)
        projected = self.project(f, x)
        pooled = mean_over(f, projected, (projected.shape[0], projected.shape[2]))
        return self.head(f, pooled), pooled, projected, x

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves


class Model:
    """WhisperForConditionalGeneration: mel features and labels [B, T] -> logits [B, T, V]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.dtype = b.training.precision.weights
        self.mels = int(a.get("num_mel_bins", 80))
        self.encoder = Encoder(a, b, env)
        b.first_layer = b.depth = b.layers  # a decoder's layers go by the encoder's numbers
        self.decoder = Decoder(a, b, env)
        b.first_layer, b.depth = 0, None
        embed = self.decoder.embed.weight
        self.head = Linear(embed if a.tie_word_embeddings else b.parameter("proj_out.weight", *embed.shape), None)

    def features(self, rows: int) -> tuple[int, int, int]:
        """Shape of the mel features of ``rows`` clips; their length is the model's, whatever the job says."""
        return rows, self.mels, FRAMES * self.encoder.length

    def __call__(self, f: Tape, batch: Batch) -> tuple[Tensor, Any]:
        """Logits, and the hidden states that the model's forward holds."""
        assert batch.labels is not None
        decoder_ids = f.new(batch.labels.shape, "int64")
        hidden = self.encoder(f, batch.ids)
        out = self.decoder(f, decoder_ids, hidden)
        f.component = LOGITS
        logits = self.head(f, out)
        f.component = TEMPORARIES
        return logits, (hidden, out, decoder_ids)
