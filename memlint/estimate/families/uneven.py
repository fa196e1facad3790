"""Models of the Llama shape whose layers differ in key/value heads and width.

DeciLM, and what Nvidia makes of a Llama by a search for parts of it that can go (Nemotron Super, Ultra and 51B). Their
code lies on the hub beside the weights. What a layer has is read as in vLLM 0.20, nemotron_nas.py (DeciLMDecoderLayer,
_ffn_mult_to_intermediate_size); the rest is Llama's.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported, required
from memlint.estimate.families import llama
from memlint.estimate.families.mlp import Mlp
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import shape_of
from memlint.estimate.ops.basic import add
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture
from memlint.records import replace

MULTIPLE = 256
"""_find_multiple: nemotron_nas.py."""
LINEAR = -1
"""A part that is one square linear layer (``replace_with_linear``)."""


class Sizes(NamedTuple):
    """Of one layer; 0 where the part is left out (``no_op``)."""

    kv_heads: int
    width: int


def sizes_of(a: Architecture) -> list[Sizes]:
    """What each layer has.

    Raises:
        Unsupported: the config does not say so for every layer.
    """
    blocks, heads = a.get("block_configs"), a.get("num_key_value_heads_per_layer")
    found: list[Sizes] = []
    if isinstance(blocks, list) and all(isinstance(block, Mapping) for block in blocks):
        found = [Sizes(_kv_heads(a, block.get("attention")), _width(a, block.get("ffn"))) for block in blocks]
    elif isinstance(heads, list):
        width = required(a, "intermediate_size")
        found = [Sizes(number, width) for number in heads if isinstance(number, int) and number > 0]
    if len(found) != a.num_hidden_layers:
        raise Unsupported("this model's layers differ, and its config does not say how for each of them")
    return found


def _instead(part: Any, name: str) -> int | None:
    """What stands in a part's place: nothing (0) or a linear layer; None where it is whole."""
    if not isinstance(part, Mapping):
        raise Unsupported(f"an entry of `block_configs` has no `{name}`")
    if part.get("no_op"):
        return 0
    return LINEAR if part.get("replace_with_linear") else None


def _kv_heads(a: Architecture, part: Any) -> int:
    instead = _instead(part, "attention")
    if instead is not None:
        return instead
    group = part.get("n_heads_in_group")
    heads = required(a, "num_attention_heads")
    if not isinstance(group, int) or group <= 0 or heads % group:
        raise Unsupported(f"`n_heads_in_group` of `block_configs` does not divide {heads} heads")
    return heads // group


def _width(a: Architecture, part: Any) -> int:
    instead = _instead(part, "ffn")
    if instead is not None:
        return instead
    stated, factor = part.get("intermediate_size"), part.get("ffn_mult")
    if isinstance(stated, int) and stated > 0:
        return stated
    if not isinstance(factor, (int, float)) or not 0 < factor < 1024:
        raise Unsupported("a `ffn` of `block_configs` states neither `ffn_mult` nor `intermediate_size`")
    return -(-int(2 * factor * a.hidden_size / 3) // MULTIPLE) * MULTIPLE


class Block:
    """DeciLMDecoderLayer: a part that is left out has no norm either."""

    def __init__(self, a: Architecture, b: Build, sizes: Sizes, index: int, env: Env) -> None:
        self.env, s = env, shape_of(a)
        name, h = f"model.layers.{index}", a.hidden_size
        self.attention: llama.Attention | None = None
        self.instead: Any = None
        self.mlp: Any = None
        if sizes.kv_heads > 0:
            own = replace(a, config={**a.config, "num_key_value_heads": sizes.kv_heads})
            self.attention = llama.Attention(own, b, f"{name}.self_attn", s)
        elif sizes.kv_heads == LINEAR:
            self.instead = b.linear(f"{name}.self_attn.linear_attn", h, h, bool(a.get("attention_bias", False)))
        if sizes.width > 0:
            self.mlp = Mlp(replace(a, config={**a.config, "intermediate_size": sizes.width}), b, f"{name}.mlp", s)
        elif sizes.width == LINEAR:
            self.mlp = b.linear(f"{name}.mlp.linear_mlp", h, h, bool(a.get("mlp_bias", False)))
        self.norms = [
            Norm(b, f"{name}.{norm}", h, s.norm) if size else None
            for norm, size in zip(("input_layernorm", "post_attention_layernorm"), sizes)
        ]

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env = self.env
        before, behind = self.norms
        if before is not None:
            residual = x
            x = before(f, env, x)
            x = self.instead(f, x) if self.attention is None else self.attention(f, env, x, "full")
            x = add(f, residual, x)
            del residual
        if behind is not None:
            residual = x
            x = behind(f, env, x)
            x = self.mlp(f, env, x) if isinstance(self.mlp, Mlp) else self.mlp(f, x)
            x = add(f, residual, x)
        return x


class Model(llama.Model):
    """DeciLMModel: ids [B, S] -> hidden states [B, S, H]."""

    def stack(self, b: Build) -> Any:
        """The layers."""
        return Stack(b, sizes_of(self.a), lambda build, sizes, index: Block(self.a, build, sizes, index, self.env))
