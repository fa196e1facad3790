"""GPT-NeoX (Pythia) and Phi: rotary positions on part of each head, attention and MLP side by side.

Sources: transformers 5.24 models/{gpt_neox,phi}/modeling_*.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of, rotate_apart, rotate_pairs
from memlint.estimate.families.rotary import partial_rotary, rotary_tables
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture


class NeoxAttention:
    """GPTNeoXAttention: query, key and value interleaved by head in one projection."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.width = h // self.heads
        bias = bool(a.get("attention_bias", True))
        self.query_key_value = b.linear(f"{name}.query_key_value", h, 3 * h, bias)
        self.dense = b.linear(f"{name}.dense", h, h, bias)
        self.dropout = float(a.get("attention_dropout", 0.0))

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        part = (x.shape[0], self.heads, x.shape[1], self.width)
        qkv = heads_of(self.query_key_value(f, x), self.heads, 3 * self.width)
        q, k, v = split(f, qkv, part, part, part)
        q, k = rotate_pairs(f, q, k, *env.state["rope"])
        out, weights = attend(f, env, q, k, v, env.state["mask:causal"], self.dropout, dense=True)
        out = self.dense(f, out)
        return out, weights


class PhiAttention:
    """PhiAttention: separate projections, optionally a norm on each head of query and key."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h = a.hidden_size
        self.heads = int(a.get("num_attention_heads"))
        self.kv_heads = int(a.get("num_key_value_heads", self.heads))
        self.width = int(a.get("head_dim", h // self.heads))
        self.q_proj = b.linear(f"{name}.q_proj", h, self.heads * self.width, True)
        self.k_proj = b.linear(f"{name}.k_proj", h, self.kv_heads * self.width, True)
        self.v_proj = b.linear(f"{name}.v_proj", h, self.kv_heads * self.width, True)
        self.dense = b.linear(f"{name}.dense", self.heads * self.width, h, True)
        self.norms = None
        if a.get("qk_layernorm"):
            self.norms = [LayerNorm(b, f"{name}.{n}", h // self.heads) for n in ("q_layernorm", "k_layernorm")]
        self.dropout = float(a.get("attention_dropout", 0.0))

    def __call__(self, f: Tape, env: Env, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [B, S, H] -> [B, S, H], attention weights."""
        q = heads_of(self.q_proj(f, x), self.heads, self.width)
        k = heads_of(self.k_proj(f, x), self.kv_heads, self.width)
        v = heads_of(self.v_proj(f, x), self.kv_heads, self.width)
        if self.norms is not None:
            q = self.norms[0](f, q)
            k = self.norms[1](f, k)
        q, k, held = rotate_apart(f, q, k, *env.state["rope"])
        out, weights = attend(f, env, q, k, v, env.state["mask:causal"], self.dropout, dense=True)
        out = self.dense(f, out)
        del held
        return out, weights


class Mlp:
    """Two projections around an activation, both with bias."""

    def __init__(self, a: Architecture, b: Build, name: str, names: tuple[str, str]) -> None:
        width = int(a.get("intermediate_size"))
        self.act = str(a.get("hidden_act", "gelu"))
        self.up = b.linear(f"{name}.{names[0]}", a.hidden_size, width, True)
        self.down = b.linear(f"{name}.{names[1]}", width, a.hidden_size, True)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        x = self.up(f, x)
        x = activate(f, x, self.act)
        result: Tensor = self.down(f, x)
        return result


class NeoxBlock:
    """GPTNeoXLayer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"gpt_neox.layers.{index}"
        self.env = env
        self.parallel = bool(a.get("use_parallel_residual", True))
        self.dropout = float(a.get("hidden_dropout", 0.0))
        self.input_layernorm = LayerNorm(b, f"{name}.input_layernorm", a.hidden_size)
        self.post_attention_layernorm = LayerNorm(b, f"{name}.post_attention_layernorm", a.hidden_size)
        self.attention = NeoxAttention(a, b, f"{name}.attention")
        self.mlp = Mlp(a, b, f"{name}.mlp", ("dense_h_to_4h", "dense_4h_to_h"))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended, _ = self.attention(f, self.env, self.input_layernorm(f, x))
        attended = dropout(f, attended, self.dropout)
        if self.parallel:
            fed = self.mlp(f, self.post_attention_layernorm(f, x))
            fed = dropout(f, fed, self.dropout)
            return add(f, add(f, fed, attended), x)
        attended = add(f, attended, x)
        fed = self.mlp(f, self.post_attention_layernorm(f, attended))
        fed = dropout(f, fed, self.dropout)
        return add(f, fed, attended)


class PhiBlock:
    """PhiDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"model.layers.{index}"
        self.env = env
        self.dropout = float(a.get("resid_pdrop", 0.0))
        self.input_layernorm = LayerNorm(b, f"{name}.input_layernorm", a.hidden_size)
        self.self_attn = PhiAttention(a, b, f"{name}.self_attn")
        self.mlp = Mlp(a, b, f"{name}.mlp", ("fc1", "fc2"))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        x = self.input_layernorm(f, x)
        attended, _ = self.self_attn(f, self.env, x)
        attended = dropout(f, attended, self.dropout)
        fed = dropout(f, self.mlp(f, x), self.dropout)
        return add(f, add(f, attended, fed), residual)


class Model:
    """GPTNeoXModel and PhiModel: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.env = env
        h = a.hidden_size
        phi = a.model_type == "phi"
        block = PhiBlock if phi else NeoxBlock
        root = "model" if phi else "gpt_neox"
        self.head_bias = phi
        self.embed = b.embedding(
            f"{root}.{'embed_tokens' if phi else 'embed_in'}", b.training.vocab_size or a.vocab_size, h, entry=True
        )
        self.dropout = float(a.get("embd_pdrop" if phi else "hidden_dropout", 0.0))
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, i: block(a, build, i, env))
        self.norm = LayerNorm(b, f"{root}.{'final_layernorm' if phi else 'final_layer_norm'}", h)
        self.rotary = int(int(a.get("head_dim", h // int(a.get("num_attention_heads")))) * partial_rotary(a))
        b.buffer(self.rotary // 2 * 4)
        b.buffer(self.rotary // 2 * 4)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        x = self.embed(f, batch.ids)
        env.state["mask:causal"] = env.mask(f, batch.rows, batch.length, x.dtype)
        embeds = x
        x = dropout(f, x, self.dropout)
        env.number(f, batch.length)
        env.state["rope"] = rotary_tables(f, batch.length, self.rotary, x.dtype)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        del embeds
        return x
