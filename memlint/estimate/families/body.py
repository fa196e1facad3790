"""What the bodies of decoder-only families have in common: embedding, masks and rotary tables, layers, final norm."""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import keep_tables, rotary_tables
from memlint.estimate.families.shapes import Shape, scaled_inside
from memlint.estimate.ops.basic import add, scale
from memlint.models.architecture import Architecture


class PreNormBlock:
    """A layer that norms what attention and feed-forward take and adds what they give; a subclass makes its parts."""

    env: Env
    kind: Any
    norms: Any
    attention: Any
    mlp: Any

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        env = self.env
        residual = x
        x = self.norms[0](f, env, x)
        x = self.attention(f, env, x, self.kind)
        x = add(f, residual, x)
        residual = x
        x = self.norms[1](f, env, x)
        x = self.mlp(f, x)
        return add(f, residual, x)


class Body:
    """ids [B, S] -> hidden states [B, S, H]; a family sets ``layers``, ``kinds`` and ``rotary`` in its constructor."""

    layers: Any
    kinds: list[str]
    rotary: int

    def __init__(self, a: Architecture, b: Build, env: Env, s: Shape, *, embed: str = "model.embed_tokens") -> None:
        self.a, self.env, self.shape = a, env, s
        self.rows = b.training.vocab_size or a.vocab_size
        inside = scaled_inside(a, s)
        self.embed = b.embedding(embed, self.rows, a.hidden_size, entry=True, scaled=inside)
        self.scales = s.embed_scale and not inside
        """The model multiplies what its embedding gives."""

    def finish(self, b: Build, width: int, norm: Any = None) -> None:
        """Add the final norm and the two buffers of rotary frequencies, ``width`` rotated columns each."""
        self.norm: Any = norm or Norm(b, "model.norm", self.a.hidden_size, self.shape.norm)
        self.rotary = width
        b.buffer(width // 2 * 4)
        b.buffer(width // 2 * 4)
        keep_tables(self.a, b, width)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        x = self.embed(f, batch.ids)
        if self.scales:
            x = scale(f, x)
        return self.body(f, x, batch)

    def share(self, f: Tape, x: Tensor) -> None:
        """Make what the layers share: masks by kind of layer, rotary tables."""
        env = self.env
        rows, length = x.shape[0], x.shape[1]
        env.state["masks"] = {
            kind: env.mask(f, rows, length, x.dtype, self.a.get("sliding_window") if kind == "sliding" else None)
            for kind in dict.fromkeys("full" if kind == "nope" else kind for kind in self.kinds)
        }
        env.number(f, length)
        dtype = "fp32" if self.shape.rope_fp32 else x.dtype
        wide = self.shape.rope_rows or env.positions
        env.state["rope"] = rotary_tables(f, length, self.rotary, dtype, rows if wide else 1)
        if self.shape.local_rope and len(env.state["masks"]) > 1:
            env.state["rope:sliding"] = rotary_tables(f, length, self.rotary, dtype, rows if env.positions else 1)

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        self.share(f, x)
        x = self.layers(f, self.env, x)
        x = self.norm(f, self.env, x)
        kept = self.env.state.get("router")
        self.env.release()
        if kept:
            self.env.state["router"] = kept
        return x
