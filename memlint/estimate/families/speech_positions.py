"""Where a frame of sound stands: convolutions over its neighbours.

Sources: transformers 5.24 models/{wav2vec2,hubert,data2vec}/modeling_*.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.errors import Unsupported
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import slice_of
from memlint.estimate.ops.convolutions import weight_norm
from memlint.estimate.ops.images import convolution
from memlint.estimate.ops.norm import layer_norm
from memlint.models.architecture import Architecture

DATA2VEC = "data2vec-audio"


class Positions:
    """Wav2Vec2PositionalConvEmbedding: a convolution over neighbours whose weight is normed anew in each forward."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, kernel = a.hidden_size, int(a.get("num_conv_pos_embeddings"))
        if a.get("conv_pos_batch_norm", False):
            raise Unsupported("no memory model for a batch norm before the convolution of positions yet")
        self.act = str(a.get("feat_extract_activation", "gelu"))
        self.cut = kernel % 2 == 0
        self.bias = b.parameter(f"{name}.conv.bias", h)
        at = f"{name}.conv.parametrizations.weight"
        self.length = b.parameter(f"{at}.original0", 1, 1, kernel)
        self.direction = b.parameter(f"{at}.original1", h, h // int(a.get("num_conv_pos_embedding_groups")), kernel)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, L, H] -> [B, L, H]."""
        rows, length, h = x.shape
        weight = weight_norm(f, self.direction, self.length)
        x = convolution(f, x.view(rows, h, length), weight, self.bias, (rows, h, length + self.cut))
        del weight
        if self.cut:
            x = slice_of(f, x, (rows, h, length))
        return activate(f, x, self.act).view(rows, length, h)


class SeveralPositions:
    """Data2VecAudioPositionalConvEmbedding: one convolution after another, each normed without weights."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, kernel = a.hidden_size, int(a.get("conv_pos_kernel_size", 19))
        self.act, self.cut = str(a.get("feat_extract_activation", "gelu")), kernel % 2 == 0
        groups = int(a.get("num_conv_pos_embedding_groups", 16))
        self.layers: list[tuple[Tensor, Tensor]] = []
        for i in range(int(a.get("num_conv_pos_embeddings", 5))):
            at = f"{name}.layers.{i}.conv"
            self.layers.append((b.parameter(f"{at}.weight", h, h // groups, kernel), b.parameter(f"{at}.bias", h)))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, L, H] -> [B, L, H]."""
        rows, length, h = x.shape
        x = x.view(rows, h, length)
        for weight, bias in self.layers:
            x = convolution(f, x, weight, bias, (rows, h, length + self.cut))
            if self.cut:
                x = slice_of(f, x, (rows, h, length))
            x = layer_norm(f, x.view(rows, length, h), None, None).view(rows, h, length)
            x = activate(f, x, self.act)
        return x.view(rows, length, h)
