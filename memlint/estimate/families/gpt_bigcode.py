"""GPTBigCode (StarCoder, SantaCoder): GPT-2 with one key and value head for all queries.

Source: transformers 5.24 models/gpt_bigcode/modeling_gpt_bigcode.py.

Before 4.53 its forward did not turn ``use_cache`` off under checkpointing, as all other decoders' did: keys and values
of every layer, views of what ``c_attn`` has made, come out of the checkpoints and live as long as the model's outputs.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import ACTIVATIONS
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families import gpt2
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.basic import dropout
from memlint.estimate.ops.views import split
from memlint.estimate.versions import before
from memlint.models.architecture import Architecture

CACHES = ("hf-trainer", "peft", "trl")
"""Frameworks that leave a model's ``use_cache`` as its config has it. axolotl (loaders/utils.py), LLaMA-Factory
(model/model_utils/checkpointing.py) and ms-swift (llm/sft.py) turn it off in training; so does TRL from 0.15 on, where
it loads the model (trainer/sft_trainer.py; read in 0.11 to 0.24).
"""


class Attention:
    """GPTBigCodeAttention."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        self.multi_query = bool(a.get("multi_query", True))
        kv = self.width if self.multi_query else h
        self.c_attn = b.linear(f"{name}.c_attn", h, h + 2 * kv, True)
        self.c_proj = b.linear(f"{name}.c_proj", h, h, True)
        self.dropout = float(a.get("attn_pdrop", 0.0))
        self.residual_dropout = float(a.get("resid_pdrop", 0.0))
        self.fused: Tensor | None = None
        """Shape and dtype of what ``c_attn`` last made."""

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        b, s, h = x.shape
        fused = self.c_attn(f, x)
        self.fused = Tensor(fused.shape, fused.dtype, None)
        if self.multi_query:
            one = (b, 1, s, self.width)
            q, k, v = split(f, fused, (b, 1, s, h), one, one)
            q = heads_of(q, self.heads, self.width)
        else:
            part = (b, self.heads, s, self.width)
            q, k, v = split(f, fused, part, part, part)
        del fused
        out, weights = attend(f, env, q, k, v, env.state["mask"], self.dropout)
        out = self.c_proj(f, out)
        out = dropout(f, out, self.residual_dropout)
        return out, weights


class Block(gpt2.Block):
    """GPTBigCodeBlock."""

    def __init__(self, a: Architecture, b: Build, kind: str, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.env = env
        self.ln_1 = LayerNorm(b, f"{name}.ln_1", a.hidden_size)
        self.attn: Any = Attention(a, b, f"{name}.attn")
        self.ln_2 = LayerNorm(b, f"{name}.ln_2", a.hidden_size)
        self.mlp = gpt2.Mlp(a, b, f"{name}.mlp", int(a.get("n_inner") or 4 * a.hidden_size))


class Model(gpt2.Model):
    """GPTBigCodeModel: ids [B, S] -> hidden states [B, S, H]."""

    block = Block

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env)
        b.buffer(int(a.get("max_position_embeddings")) ** 2)
        framework = b.job.framework.partition(" ")[0].lower()
        asked = framework in CACHES and a.get("use_cache", True) and before(b.job, "transformers", 4, 53)
        off = env.checkpointing.mode == "none" or (framework == "trl" and not before(b.job, "trl", 0, 15))
        self.held = b.held if asked and not off else None
        """What lives until the loss is there, where keys and values do; without checkpointing they are saved anyhow."""
        self.depth = a.num_hidden_layers
        self.cached: list[Tensor] = []
        """Keys and values among the model's outputs, in sizes alone."""

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """See gpt2.Model; under checkpointing the cache that its outputs hold, too."""
        x = super().__call__(f, batch)
        if self.held is not None:
            layer: Any = self.layers.parts[0][1].layers[0][1]
            fused: Tensor = layer.attn.fused
            rows, length, width = fused.shape
            self.held.append(f.new((self.depth, rows, length, width), fused.dtype, ACTIVATIONS))
            self.cached = [Tensor((self.depth, rows, length, width - x.shape[2]), fused.dtype, None)]
        return x
