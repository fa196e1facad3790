"""DeepSeek V3.2: latent attention over the tokens that an indexer chooses.

Source: transformers 5.24 models/deepseek_v32/modeling_deepseek_v32.py. The indexer runs without gradients, so its
parameters never train; eager and sdpa fold its choice into the mask, and attention itself is as wide as without it.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.mla import SHAPE, LatentAttention
from memlint.estimate.families.pieces import LayerNorm
from memlint.estimate.families.rotary import rotate
from memlint.estimate.ops.basic import cast, cat, copy, scale
from memlint.estimate.ops.linear import to_autocast
from memlint.models.architecture import Architecture


class SparseAttention(LatentAttention):
    """DeepseekV32Attention."""

    indexes = True

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        super().__init__(a, b, name)
        h, rank = a.hidden_size, int(a.get("q_lora_rank"))
        self.count, self.width = int(a.get("index_n_heads", 64)), int(a.get("index_head_dim", 128))
        self.chosen = int(a.get("index_topk", 2048))
        at = f"{name}.indexer"
        idle, b.idle = b.idle, True
        self.wq = b.linear(f"{at}.wq_b", rank, self.count * self.width)
        self.wk = b.linear(f"{at}.wk", h, self.width)
        self.k_norm = LayerNorm(b, f"{at}.k_norm", self.width)
        self.weights = b.linear(f"{at}.weights_proj", h, self.count)
        b.idle = idle

    def seen(self, f: Tape, env: Env, x: Tensor, residual: Tensor) -> Tensor | None:
        """The mask with the indexer's choice in it; flash kernels would take the choice itself."""
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        self.held = [self.indexed(f, env, x, residual)]
        mask: Tensor | None = env.state["masks"]["full"]
        if mask is not None:
            b, s, _ = x.shape
            shape = (b, 1, s, s)
            ones, wide = f.new(shape, "bool"), f.new((b, s, min(self.chosen, s)), "int64")
            left_out = f.new(shape, "bool")
            del ones, wide
            inverse = f.new(shape, "bool") if mask.dtype == "bool" else None
            mask = f.new(shape, mask.dtype)
            del inverse
            self.held += [left_out, mask]
        f.grad_enabled = grad_enabled
        return mask

    def indexed(self, f: Tape, env: Env, x: Tensor, residual: Tensor) -> Tensor:
        """DeepseekV32Indexer: -> ids int32 [B, S, k]."""
        b, s, _ = x.shape
        count, width = self.count, self.width
        cos, sin = (table.view(1, s, 1, self.rope) for table in env.state["rope"])
        q = self.wq(f, residual).view(b, s, count, width)
        k = self.k_norm(f, self.wk(f, x)).view(b, s, 1, width)
        part = (self.rope, width - self.rope)
        q_turned, k_turned = self.turned(f, q, cos, sin), self.turned(f, k, cos, sin)
        wide, keys = self.joined(f, q_turned, q, part[1]), self.joined(f, k_turned, k, part[1])
        scores = self.scored(f, wide, keys)
        dtype = scores.dtype
        weights = scale(f, cast(f, self.weights(f, cast(f, x, self.weight_dtype(x))), "fp32"))
        index_scores = f.new((b, s, s), dtype)
        inverse = f.new((b, s, s), "bool") if env.attention == "sdpa" else None
        index_scores = f.like(index_scores)
        del inverse
        shape = (b, s, min(self.chosen, s))
        values, ids = f.new(shape, dtype), f.new(shape, "int64")
        del values
        chosen = f.new(shape, "int32")
        del ids, weights, scores, index_scores, wide, keys, q_turned, k_turned, q, k
        return chosen

    def scored(self, f: Tape, q: Tensor, k: Tensor) -> Tensor:
        """``relu(q.float() @ k.float() * scale)``: [B, S, h, S]; autocast takes the product in half precision."""
        b, s, count, width = q.shape
        wide, keys = cast(f, q, "fp32"), cast(f, k, "fp32")
        left, right = to_autocast(f, wide), to_autocast(f, keys)
        # The keys stand for every query: their expanded view of several rows cannot be folded for bmm.
        folded = copy(f, right, (b, s, width, s)) if b > 1 else None
        scores = f.new((b, s, count, s), left.dtype)
        del folded, left, right, wide, keys
        scores = scale(f, scores)
        return f.like(scores)

    def weight_dtype(self, x: Tensor) -> str:
        """dtype of weights_proj, to which its input is cast."""
        weight = getattr(self.weights, "weight", None)
        return str(weight.dtype) if isinstance(weight, Tensor) else x.dtype

    def turned(self, f: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The first columns of each head, rotated."""
        return rotate(f, Tensor((*x.shape[:-1], self.rope), x.dtype, x.storage), cos, sin, SHAPE)

    def joined(self, f: Tape, turned: Tensor, x: Tensor, rest: int) -> Tensor:
        """Rotated columns, and the rest as they are."""
        return cat(f, turned, cast(f, Tensor((*x.shape[:-1], rest), x.dtype, x.storage), turned.dtype))
