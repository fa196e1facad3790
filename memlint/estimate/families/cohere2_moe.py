"""Cohere 2 with experts: one norm before two branches, positions in local layers, a few dense layers first.

Source: transformers 5.24 models/cohere2_moe/modeling_cohere2_moe.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.errors import kinds_of_layers, required
from memlint.estimate.families.body import Body
from memlint.estimate.families.expert_adapters import FoldedRouter, folded_router
from memlint.estimate.families.gated_mlp import GatedMlp
from memlint.estimate.families.llama import Attention, layer_kinds
from memlint.estimate.families.mixtures import Mixture
from memlint.estimate.families.moe import Moe
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.attention import softmax
from memlint.estimate.ops.basic import add, cast, saving_output, scale
from memlint.estimate.ops.gather import divide, sum_last, topk
from memlint.estimate.ops.linear import linear
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

MIXTURE = Mixture(width="intermediate_size", shared="after", shared_width="*num_shared_experts", gate_after=False)


class Router:
    """Cohere2MoeTopKRouter: top-k of the logits, then softmax or sigmoid over the chosen."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        self.weight = b.parameter(f"{name}.weight", required(a, "num_experts"), a.hidden_size)
        self.adapter: FoldedRouter | None = None
        self.k = required(a, "num_experts_per_tok")
        self.sigmoid = a.get("expert_selection_fn") == "sigmoid"
        self.normalise = bool(a.get("norm_topk_prob", True))

    def __call__(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, H] -> logits, weights [T, k], ids [T, k]."""
        logits = linear(f, x, folded_router(f, self))
        scores, ids = topk(f, logits, self.k)
        if self.sigmoid:
            scores = saving_output(f, scores)
            if self.normalise:
                scores = divide(f, scores, sum_last(f, scores))
        else:
            scores = softmax(f, scores, "fp32")
        return logits, cast(f, scores, x.dtype), ids


class SparseMlp(Moe):
    """Cohere2MoeSparseMoeBlock."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        super().__init__(a, b, name, MIXTURE)
        self.averaged = a.get("shared_expert_combination_strategy", "average") == "average"

    def make_router(self, a: Architecture, b: Build, name: str, experts: int) -> Any:
        """The router of this type."""
        return Router(a, b, name)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        out = super().__call__(f, x)
        return scale(f, out) if self.averaged and self.shared is not None else out


class Block:
    """Cohere2MoeDecoderLayer: attention and feed-forward side by side."""

    def __init__(self, a: Architecture, b: Build, kind: tuple[str, bool], index: int, env: Env, s: Shape) -> None:
        name, h = f"model.layers.{index}", a.hidden_size
        self.env, (self.kind, sparse) = env, kind
        self.attention = Attention(a, b, f"{name}.self_attn", s)
        self.mlp: Any
        if sparse:
            self.mlp = SparseMlp(a, b, f"{name}.mlp")
        else:
            width = required(a, "prefix_dense_intermediate_size", "intermediate_size")
            self.mlp = GatedMlp(b, f"{name}.mlp", h, width, str(a.get("hidden_act") or "silu"), a=a)
        self.norm = Norm(b, f"{name}.input_layernorm", h, s.norm)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.norm(f, self.env, x)
        attended = self.attention(f, self.env, x, self.kind)
        fed = self.mlp(f, x)
        return add(f, add(f, residual, attended), fed)


class Model(Body):
    """Cohere2MoeModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        style = "cohere" if a.get("rms_norm_eps") is None else "llama"
        s = Shape(norm=style, mlp_bias=False, rope_upcast=True)
        super().__init__(a, b, env, s)
        sparse = [kind != "dense" for kind in kinds_of_layers(a, "mlp_layer_types")]
        everywhere = a.get("prefix_dense_sliding_window_pattern", 1) == 1
        # Layers that see everything have no positions, unless they are dense and so is the pattern of the first ones.
        kinds = [
            "nope" if kind == "full" and not (everywhere and not routed) else kind
            for kind, routed in zip(layer_kinds(a), sparse)
        ]
        self.kinds = kinds
        layers = list(zip(kinds, sparse))
        self.layers = Stack(b, layers, lambda build, kind, index: Block(a, build, kind, index, env, s))
        self.finish(b, int(a.get("head_dim") or a.hidden_size // a.get("num_attention_heads")))
