"""Audio beside text: Whisper's encoder over clips of 30 seconds, and what fits its states to a language model.

``training.images`` counts the clips of a sequence.
Sources: transformers 5.24 models/{qwen2_audio,voxtral}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import whisper
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.heads import CausalHead
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import activation, add, cast, dropout, slice_of
from memlint.estimate.ops.gather import index_rows
from memlint.estimate.ops.images import pooled, requiring_grad
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

Tokens = tuple[Tensor, list[Tensor], list[Any]]


class Encoder:
    """Qwen2AudioEncoder and VoxtralEncoder: mel features [B, M, 2 L] -> hidden states [B, L, H], or half as many."""

    pools = False
    position_dtype: str | None = None

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        h, at = a.hidden_size, f"model.{name}"
        self.env, self.width = env, h
        self.mels = int(a.get("num_mel_bins", 128))
        self.length = int(a.get("max_source_positions", 1500))
        self.dropout = float(a.get("dropout", 0.0))
        self.conv1 = b.parameter(f"{at}.conv1.weight", h, self.mels, whisper.KERNEL)
        self.bias1 = b.parameter(f"{at}.conv1.bias", h)
        self.conv2 = b.parameter(f"{at}.conv2.weight", h, h, whisper.KERNEL)
        self.bias2 = b.parameter(f"{at}.conv2.bias", h)
        # Built frozen, they train after from_pretrained of transformers 5.24 (see families/whisper.py).
        self.positions = b.parameter(f"{at}.embed_positions.weight", self.length, h, dtype=self.position_dtype)
        make = lambda build, _, i: whisper.Layer(a, build, f"{at}.layers.{i}", env, decoder=False)  # noqa: E731
        self.layers = Stack(b, ["layer"] * int(a.get("encoder_layers")), make)
        self.norm = LayerNorm(b, f"{at}.layer_norm", h)
        text: Any = whole.config["text_config"]
        self.out = int(text["hidden_size"])

    def input_shape(self, clips: int, size: int | None) -> tuple[int, ...]:
        """input_features of the micro batch."""
        return clips, self.mels, whisper.FRAMES * self.length

    def mask(self, f: Tape, x: Tensor) -> Tensor | None:
        """Which positions of a clip are sound."""
        return None

    def states(self, f: Tape, features: Tensor) -> Tensor:
        """The encoder's forward."""
        env, length = self.env, self.length
        embeds = whisper.convolution(
            f, cast(f, features, self.conv1.dtype), self.conv1, self.bias1, whisper.FRAMES * length
        )
        if env.checkpointing.mode != "none":
            embeds = requiring_grad(f, embeds)
        embeds = activation(f, embeds)
        embeds = activation(f, whisper.convolution(f, embeds, self.conv2, self.bias2, length))
        embeds = embeds.view(embeds.shape[0], length, self.width)
        x = cast(f, add(f, embeds, self.positions), embeds.dtype)
        x = dropout(f, x, self.dropout)
        env.state["mask"] = self.mask(f, x)
        x = self.layers(f, env, x)
        if self.pools:
            x = pooled(f, x, (x.shape[0], length // 2, self.width))
        x = self.norm(f, x)
        env.release()
        return x


class Voxtral(Encoder):
    """Four states in a row make one token; two matrices."""

    position_dtype = "fp32"

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        at = "model.multi_modal_projector"
        self.joined = int(a.get("intermediate_size"))
        self.first = b.linear(f"{at}.linear_1", self.joined, self.out)
        self.second = b.linear(f"{at}.linear_2", self.out, self.out)
        self.act = str(whole.get("projector_hidden_act", "gelu"))

    def __call__(self, f: Tape, features: Tensor, clips: int, size: int | None) -> Tokens:
        """Audio tokens, none for later layers, and what the outputs hold."""
        x = self.states(f, features)
        x = x.view(clips * self.length * self.width // self.joined, self.joined)
        tokens = self.first(f, x)
        tokens = activate(f, tokens, self.act)
        tokens = self.second(f, tokens)
        # get_placeholder_mask chooses the embeddings of all audio tokens, element by element, only to count them.
        count = tokens.shape[0] * self.out
        f.pool.touch(count * (3 * 8 + DTYPE_BYTES[tokens.dtype]), TEMPORARIES)
        return tokens, [], [tokens]


class Qwen2Audio(Encoder):
    """States averaged two by two; one matrix; clips are padded to 30 seconds, so that there is always a mask."""

    pools = True

    def __init__(self, whole: Architecture, a: Architecture, b: Build, env: Env, name: str) -> None:
        super().__init__(whole, a, b, env, name)
        self.linear = b.linear("model.multi_modal_projector.linear", self.width, self.out, True)

    def beside(self, f: Tape, clips: int, size: int | None) -> tuple[Tensor, ...]:
        """feature_attention_mask."""
        return (f.new((clips, whisper.FRAMES * self.length), "int32", INPUTS),)

    def mask(self, f: Tape, x: Tensor) -> Tensor | None:
        """See Encoder."""
        if self.env.attention in ("flash", "flex"):
            return None
        mask = f.new((x.shape[0], 1, self.length, self.length), "bool")
        return mask if self.env.attention == "sdpa" else f.new(mask.shape, x.dtype)

    def __call__(self, f: Tape, features: Tensor, clips: int, size: int | None) -> Tokens:
        """Audio tokens of full clips, none for later layers, and what the outputs hold."""
        x = self.states(f, features)
        tokens = self.linear(f, x)
        count = tokens.shape[0] * tokens.shape[1]
        places = f.new((count, 2), "int64")
        return index_rows(f, tokens.view(count, self.out), Tensor((count,), "int64", places.storage)), [], []


class Qwen2AudioHead(CausalHead):
    """Qwen2AudioForConditionalGeneration chooses the logits that are not padding, and takes their loss as they are."""

    def loss(self, f: Tape, logits: Tensor | None, hidden: Tensor | None, batch: Batch) -> Tensor:
        """The scalar loss."""
        if logits is None:
            return super().loss(f, logits, hidden, batch)
        assert batch.labels is not None
        f.component = LOGITS
        rows, length, width = logits.shape
        count = rows * (length - 1)
        shifted = slice_of(f, logits, (rows, length - 1, width))
        places = f.new((count, 2), "int64")
        chosen = index_rows(f, shifted.view(count, width), Tensor((count,), "int64", places.storage))
        del shifted, places
        return cross_entropy(f, chosen, f.new((count,), "int64"))
