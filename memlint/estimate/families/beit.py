"""BEiT: a ViT with relative positions in every layer, scaled branches and stochastic depth, classified by its mean.

Source: transformers 5.24 models/beit/modeling_beit.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.families.vision_tower import side_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, copy, dropout, mul, scale, slice_of
from memlint.estimate.ops.convolutions import mean_over
from memlint.estimate.ops.gather import expand, index_rows
from memlint.estimate.ops.images import convolution, requiring_grad, unfold
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class Positions:
    """BeitRelativePositionBias: a bias for each two patches, [1, heads, N, N]."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        self.side = side_of(a.get("image_size")) // side_of(a.get("patch_size"))
        self.heads = int(a.get("num_attention_heads"))
        self.places = (2 * self.side - 1) ** 2
        self.table = b.parameter(f"{name}.relative_position_bias_table", self.places + 3, self.heads)

    def __call__(self, f: Tape) -> Tensor:
        """The table is interpolated to the size it has, and read."""
        heads, count = self.heads, self.side**2 + 1
        part = slice_of(f, self.table, (self.places, heads))
        if f.autocast is not None:
            part = cast(f, part, "fp32")
        part = unfold(f, part, (self.places, heads))
        rest = cast(f, slice_of(f, self.table, (3, heads)), part.dtype)
        table = cat(f, part, rest, shape=(self.places + 3, heads))
        chosen = index_rows(f, table, Tensor((count * count,), "int64", None))
        del part, rest, table
        return copy(f, chosen, (1, heads, count, count))


class Layer:
    """BeitLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, drops: bool, env: Env) -> None:
        h, self.env, self.drops = a.hidden_size, env, drops
        self.heads, self.act = int(a.get("num_attention_heads")), str(a.get("hidden_act", "gelu"))
        self.attention_dropout = float(a.get("attention_probs_dropout_prob", 0.0))
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        scaled = float(a.get("layer_scale_init_value", 0.1)) > 0
        self.scales = [b.parameter(f"{name}.lambda_{i}", h) for i in (1, 2)] if scaled else None
        at = f"{name}.attention"
        self.q, self.k, self.v = (b.linear(f"{at}.{n}_proj", h, h, n != "k") for n in "qkv")
        self.out = b.linear(f"{at}.o_proj", h, h, True)
        self.norm1, self.norm2 = (LayerNorm(b, f"{name}.layernorm_{n}", h) for n in ("before", "after"))
        inner = int(a.get("intermediate_size"))
        self.up, self.down = b.linear(f"{name}.mlp.fc1", h, inner, True), b.linear(f"{name}.mlp.fc2", inner, h, True)
        own = bool(a.get("use_relative_position_bias", False))
        self.positions = Positions(a, b, f"{name}.relative_position_bias") if own else None

    def attend(self, f: Tape, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """BeitAttention."""
        width = x.shape[-1] // self.heads
        q, k, v = (heads_of(project(f, x), self.heads, width) for project in (self.q, self.k, self.v))
        out, weights = attend(f, self.env, q, k, v, bias, self.attention_dropout, causal=False)
        return self.out(f, out), weights

    def branch(self, f: Tape, x: Tensor, number: int) -> Tensor:
        """A branch's end: dropout, a learned scale, stochastic depth."""
        x = dropout(f, x, self.dropout)
        if self.scales is not None:
            x = mul(f, self.scales[number], x)
        return mul(f, scale(f, x), f.new((x.shape[0], 1, 1), x.dtype)) if self.drops else x

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, H] -> [B, N, H]."""
        shared = self.env.state.get("positions")
        bias = shared
        if self.positions is not None:
            own = self.positions(f)
            bias = own if shared is None else add(f, own, shared)
            del own
        residual = x
        x = self.norm1(f, x)
        x, weights = self.attend(f, x, bias)
        x = add(f, self.branch(f, x, 0), residual)
        residual = x
        x = self.norm2(f, x)
        x = self.fed(f, x)
        x = add(f, self.branch(f, x, 1), residual)
        del weights, bias, shared
        return x

    def fed(self, f: Tape, x: Tensor) -> Tensor:
        """BeitMLP."""
        x = self.up(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.down(f, x)
        return result


class Tower:
    """BeitModel: pixels [B, C, h, w] -> hidden states [B, N + 1, H], normed where the mean is not taken."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str) -> None:
        self.env, h = env, a.hidden_size
        self.width = h
        self.image, self.patch = side_of(a.get("image_size")), side_of(a.get("patch_size"))
        self.channels, at = int(a.get("num_channels", 3)), f"{name}.embeddings"
        self.token = b.parameter(f"{at}.cls_token", 1, 1, h)
        if a.get("use_mask_token", False):
            b.parameter(f"{at}.mask_token", 1, 1, h)
        self.weight = b.parameter(f"{at}.patch_embeddings.projection.weight", h, self.channels, *2 * [self.patch])
        self.bias = b.parameter(f"{at}.patch_embeddings.projection.bias", h)
        placed, count = bool(a.get("use_absolute_position_embeddings", False)), (self.image // self.patch) ** 2
        self.places = b.parameter(f"{at}.position_embeddings", 1, count + 1, h) if placed else None
        self.dropout = float(a.get("hidden_dropout_prob", 0.0))
        shared = bool(a.get("use_shared_relative_position_bias", False))
        self.positions = Positions(a, b, f"{name}.shared_position_bias") if shared else None
        depth, rate = a.num_hidden_layers, float(a.get("drop_path_rate", 0.1))
        kinds = [rate > 0 and i > 0 for i in range(depth)]
        self.layers = Stack(b, kinds, lambda build, drops, i: Layer(a, build, f"{name}.layers.{i}", drops, env))
        self.mean = bool(a.get("use_mean_pooling", True))
        self.norm = None if self.mean else LayerNorm(b, f"{name}.layernorm", h)
        self.mean_norm = LayerNorm(b, f"{name}.pooler.layernorm", h) if self.mean else None

    def __call__(self, f: Tape, pixels: Tensor) -> Tensor:
        """See the class."""
        rows, h, count = pixels.shape[0], self.width, (pixels.shape[2] // self.patch) ** 2
        x = convolution(f, pixels, self.weight, self.bias, (rows, count, h))
        if self.env.checkpointing.mode != "none":
            x = requiring_grad(f, x)
        x = cat(f, expand(f, self.token, (rows, 1, h)), x, shape=(rows, count + 1, h))
        if self.places is not None:
            x = add(f, x, self.places)
        x = dropout(f, x, self.dropout)
        self.env.state["positions"] = self.positions(f) if self.positions is not None else None
        embedded = x
        x = self.layers(f, self.env, x)
        self.env.release()
        del embedded
        return x if self.norm is None else self.norm(f, x)

    def pooled(self, f: Tape, x: Tensor) -> Tensor:
        """BeitPooler."""
        rows, count, h = x.shape
        if self.mean_norm is None:
            return slice_of(f, x, (rows, h))
        return self.mean_norm(f, mean_over(f, slice_of(f, x, (rows, count - 1, h)), (rows, h)))


class Classifier:
    """BeitForImageClassification."""

    uncast = True
    """Pixels have the dtype of the weights: nothing casts them."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.tower = Tower(a, b, env, "beit")
        self.classifier = b.linear("classifier", a.hidden_size, labels_of(a), True)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the outputs hold."""
        assert batch.pixels is not None
        x = self.tower(f, batch.pixels)
        pooled = self.tower.pooled(f, x)
        return self.classifier(f, pooled), pooled, x

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)
