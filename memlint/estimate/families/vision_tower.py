"""Transformers over image patches: CLIP's and SigLIP's towers, Idefics3's, InternVL's and ViT.

Sources: transformers 5.24 models/{clip,siglip,idefics3,smolvlm,internvl,vit,vit_msn,ijepa}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any, Sequence

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.pieces import LayerNorm, RmsNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cast, cat, dropout, mul
from memlint.estimate.ops.gather import expand
from memlint.estimate.ops.images import convolution, own_gradient, requiring_grad
from memlint.estimate.ops.linear import embedding
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What distinguishes one tower from CLIP's."""

    layers: str = "encoder.layers"
    attention: str = "self_attn"
    out: str = "out_proj"
    norms: tuple[str, str] = ("layer_norm1", "layer_norm2")
    second_token: str | None = None
    """deit: a token for distillation behind the class token."""
    class_token: str | None = None
    """Name of the token that stands before the patches; None: there is none."""
    patches: str = "patch_embedding"
    bias: bool = True
    """The patch convolution has a bias."""
    table: bool = True
    """Positions are an embedding table; False: one parameter [1, N, H]."""
    first_norm: str | None = None
    last_norm: str | None = "post_layernorm"
    scaled: bool = False
    """internvl: each branch is multiplied by a learned vector."""


_OLD = {
    "attention": "attention",
    "norms": ("layernorm_before", "layernorm_after"),
    "class_token": "cls_token",
    "patches": "patch_embeddings.projection",
    "table": False,
}
_VIT = Kind(layers="layers", out="o_proj", last_norm="layernorm", **_OLD)  # type: ignore[arg-type]
KINDS: dict[str, Kind] = {
    "clip_vision_model": Kind(class_token="class_embedding", bias=False, first_norm="pre_layrnorm", last_norm=None),
    "siglip_vision_model": Kind(),
    "idefics2_vision": Kind(),
    "idefics3_vision": Kind(),
    "smolvlm_vision": Kind(),
    "vit": _VIT,
    "vit_msn": _VIT,
    "ijepa": replace(_VIT, class_token=None),
    "deit": Kind(
        layers="layers",
        out="o_proj",
        last_norm="layernorm",
        second_token="distillation_token",
        **_OLD,  # type: ignore[arg-type]
    ),
    "internvl_vision": Kind(
        layers="encoder.layer",
        out="projection_layer",
        last_norm=None,
        scaled=True,
        **_OLD,  # type: ignore[arg-type]
    ),
}
"""model_type of the vision part -> its kind. CLIP's post_layernorm sees the class token alone (families/vision.py)."""


class Layer:
    """CLIPEncoderLayer and its like: ``x + attention(norm(x))``, ``x + mlp(norm(x))``."""

    def __init__(self, a: Architecture, b: Build, name: str, kind: Kind, env: Env) -> None:
        h = a.hidden_size
        self.env = env
        self.heads = int(a.get("num_attention_heads"))
        self.act = str(a.get("hidden_act", "gelu"))
        old = kind.layers == "layers"
        p = a.get("attention_probs_dropout_prob" if old else "attention_dropout", 0.0)
        self.attention_dropout = float(p)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0)) if kind.layers != "encoder.layers" else 0.0
        bias = bool(a.get("qkv_bias" if old else "attention_bias", True))
        at = f"{name}.{kind.attention}"
        self.q, self.k, self.v = (b.linear(f"{at}.{n}_proj", h, h, bias) for n in "qkv")
        self.out = b.linear(f"{at}.{kind.out}", h, h, True)
        self.style = "raw" if kind.scaled else "fp32"
        """InternVL's eager softmax is not upcast."""
        self.q_norm = self.k_norm = None
        if kind.scaled and a.get("use_qk_norm"):
            self.q_norm, self.k_norm = RmsNorm(b, f"{at}.q_norm", h), RmsNorm(b, f"{at}.k_norm", h)
        wide = int(a.get("intermediate_size"))
        self.up, self.down = b.linear(f"{name}.mlp.fc1", h, wide, True), b.linear(f"{name}.mlp.fc2", wide, h, True)
        norm: Any = RmsNorm if a.get("norm_type") == "rms_norm" else LayerNorm
        self.norm1, self.norm2 = (norm(b, f"{name}.{n}", h) for n in kind.norms)
        self.scales = [b.parameter(f"{name}.lambda_{i}", h) for i in (1, 2)] if kind.scaled else None

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, N, H] -> [B, N, H] and, under eager, the attention's weights."""
        width = x.shape[-1] // self.heads
        q, k, v = self.q(f, x), self.k(f, x), self.v(f, x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(f, q), self.k_norm(f, k)
        q, k, v = heads_of(q, self.heads, width), heads_of(k, self.heads, width), heads_of(v, self.heads, width)
        mask, causal = self.env.state.get("tower mask", (None, False))
        out, weights = attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=causal, style=self.style)
        return self.out(f, out), weights

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, N, H] -> [B, N, H]."""
        attended, weights = self.attend(f, self.norm1(f, x))
        if self.scales is None:
            attended = dropout(f, attended, self.dropout)
            x = add(f, x, attended)
            del attended
            inner = self.norm2(f, x)
            inner = self._fed(f, inner)
            inner = dropout(f, inner, self.dropout)
            out = add(f, x, inner)
        else:
            attended = mul(f, self.scales[0], attended)
            x = add(f, attended, x)
            inner = self.norm2(f, x)
            inner = self._fed(f, inner)
            inner = dropout(f, inner, self.dropout)
            inner = mul(f, self.scales[1], inner)
            out = add(f, inner, x)
        del weights
        return out

    def _fed(self, f: Tape, x: Tensor) -> Tensor:
        x = self.up(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.down(f, x)
        return result


class Tower:
    """Patches, positions and layers: pixels [B, C, h, w] -> hidden states [B, N, H].

    ``used`` layers have a part in the result; those behind them run, but get no gradients (llava takes the output of
    the last layer but one).
    """

    def __init__(
        self,
        a: Architecture,
        b: Build,
        env: Env,
        name: str,
        used: int | None = None,
        *,
        bare: bool = False,
        taps: Sequence[int] = (),
    ) -> None:
        self.a, self.env = a, env
        self.taps = taps
        """Layers whose outputs are kept in :attr:`tapped` as well, for whoever calls the tower."""
        self.tapped: dict[int, Tensor] = {}
        self.bare = bare
        """The result is the last layer's output as it is; the norm behind it runs, but gets no gradients."""
        kind = self.kind = KINDS[a.model_type]
        h = a.hidden_size
        image, patch = side_of(a.get("image_size")), side_of(a.get("patch_size"))
        self.image, self.patch, self.channels = image, patch, int(a.get("num_channels", 3))
        self.patches = (image // patch) ** 2
        at = f"{name}.embeddings"
        self.token = None
        if kind.class_token is not None:
            self.token = b.parameter(f"{at}.{kind.class_token}", *((h,) if kind.table else (1, 1, h)))
        self.second = b.parameter(f"{at}.{kind.second_token}", 1, 1, h) if kind.second_token is not None else None
        if a.get("use_mask_token"):
            b.parameter(f"{at}.mask_token", 1, 1, h)
        self.weight = b.parameter(f"{at}.{kind.patches}.weight", h, self.channels, patch, patch)
        self.bias = b.parameter(f"{at}.{kind.patches}.bias", h) if kind.bias else None
        count = self.patches + (self.token is not None) + (self.second is not None)
        self.by_position = a.model_type in ("idefics2_vision", "idefics3_vision", "smolvlm_vision")
        """Positions are looked up for each image by its place in the grid."""
        self.positions = None
        if kind.table:
            self.positions = b.parameter(f"{at}.position_embedding.weight", count, h)
            if not self.by_position:
                b.buffer(count * 8)
        elif a.get("use_absolute_position_embeddings", True):
            self.positions = b.parameter(f"{at}.position_embeddings", 1, count, h)
        self.dropout = float(a.get("hidden_dropout_prob", 0.0)) if not kind.table else 0.0
        self.first_norm = LayerNorm(b, f"{name}.{kind.first_norm}", h) if kind.first_norm is not None else None
        depth = a.num_hidden_layers
        used = depth if used is None else used
        self.layers = self._stack(b, f"{name}.{kind.layers}", used, 0)
        idle, b.idle = b.idle, b.idle or used < depth or bare
        self.rest = self._stack(b, f"{name}.{kind.layers}", depth - used, used) if used < depth else None
        self.last_norm = LayerNorm(b, f"{name}.{kind.last_norm}", h) if kind.last_norm is not None else None
        b.idle = idle

    def _stack(self, b: Build, name: str, count: int, start: int) -> Stack:
        a, kind, env = self.a, self.kind, self.env
        make = lambda build, _, i: Layer(a, build, f"{name}.{start + i}", kind, env)  # noqa: E731
        taps = [] if start else self.taps
        b.first_layer += start
        # A tapped output is held by itself; the layer after it adds to its gradient.
        stack = Stack(b, ["layer"] * count, make, alone=[*taps, *(i + 1 for i in taps)], taps=taps)
        b.first_layer -= start
        return stack

    def _tap(self, f: Tape, env: Env, index: int, x: Tensor) -> Tensor:
        if index in self.taps:
            self.tapped[index] = x
        return x

    def embedded(self, f: Tape, pixels: Tensor) -> Tensor:
        """Patches with their positions, and the class token before them."""
        rows, h = pixels.shape[0], self.a.hidden_size
        side = pixels.shape[2] // self.patch
        x = convolution(f, cast(f, pixels, self.weight.dtype), self.weight, self.bias, (rows, side * side, h))
        hooked = self.env.checkpointing.mode != "none"
        if hooked and not self.by_position:
            x = requiring_grad(f, x)
        if self.token is not None:
            tokens = [expand(f, token, (rows, 1, h)) for token in (self.token, self.second) if token is not None]
            x = cat(f, *tokens, x, shape=(rows, side * side + len(tokens), h))
        if self.positions is not None:
            x = add(f, x, self._placed(f, rows, x.shape[1]))
        if hooked and self.by_position:
            # Idefics3's input embeddings are all of this.
            x = requiring_grad(f, x)
        return dropout(f, x, self.dropout)

    def _placed(self, f: Tape, rows: int, count: int) -> Tensor:
        assert self.positions is not None
        if not self.kind.table:
            # One image alone: nothing is summed, and the patches and the class token get the same gradient.
            return own_gradient(f, self.positions) if rows == 1 else self.positions
        if self.by_position:
            return embedding(f, self.positions, f.new((rows, count), "int64"))
        return embedding(f, self.positions, Tensor((1, count), "int64", None))

    def __call__(self, f: Tape, pixels: Tensor) -> tuple[Tensor, list[Any]]:
        """Hidden states of the last used layer (normed where it is the last), and what the outputs hold besides."""
        env = self.env
        if self.kind.layers == "layers":
            # ViTModel.forward and its like hold the cast until they return.
            pixels = cast(f, pixels, self.weight.dtype)
        x = self.embedded(f, pixels)
        if self.first_norm is not None:
            x = self.first_norm(f, x)
        if self.taps:
            self.layers.after = self._tap
        x = self.layers(f, env, x)
        self.layers.after = None
        held: list[Any] = []
        if self.rest is not None:
            mark = len(f.nodes)
            last = self.rest(f, env, x)
            if self.last_norm is not None:
                last = self.last_norm(f, last)
            # Nothing leads backward through these layers: their graph lives as long as the outputs that hold it.
            held = [last, Unreached(f.nodes[mark:])]
            del f.nodes[mark:]
        elif self.last_norm is not None and self.bare:
            mark = len(f.nodes)
            held = [self.last_norm(f, x), Unreached(f.nodes[mark:])]
            del f.nodes[mark:]
        elif self.last_norm is not None:
            x = self.last_norm(f, x)
        return x, held


class Unreached:
    """A graph that nothing leads backward through; what it saved ends with this object, as with its last owner."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes

    def __del__(self) -> None:
        for node in self.nodes:
            node.saved = ()


def side_of(size: Any) -> int:
    """image_size and patch_size: a number, or height and width."""
    return int(size[0] if isinstance(size, (list, tuple)) else size)
