"""Zamba2: Mamba-2 layers, some of them behind a transformer block whose weights several layers share.

Source: transformers 5.24 models/zamba2/modeling_zamba2.py. The shared blocks are tied parameter by parameter, so each
layer has modules, and PEFT adapters, of its own over the same weights.

Under checkpointing a Mamba layer lies in a checkpoint of its own inside that of the hybrid layer, which gives it what
the shared transformer made by keyword (engine/nested.py). Under autocast the layers share the half copies of the shared
weights, at which their gradients gather (engine/casts.py).
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.adapters import LoraLinear, matches
from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import kinds_of_layers
from memlint.estimate.families.body import Body
from memlint.estimate.families.mamba2_mixer import Mixer2, Sizes
from memlint.estimate.families.norms import Norm
from memlint.estimate.families.rotary import rotate_both
from memlint.estimate.families.shapes import Shape
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, cat, copy, mul
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

SHAPE = Shape(qkv_bias=False, o_bias=False, mlp_bias=False)
Kind = tuple[str, int, int]
"""linear_attention or hybrid, the shared block, and the layer itself where its block's others find what it made."""


def mixer(a: Architecture, b: Build, name: str) -> Mixer2:
    """Zamba2MambaMixer."""
    inner, heads = int(a.get("mamba_expand", 2) * a.hidden_size), int(a.get("n_mamba_heads"))
    bias, groups = bool(a.get("add_bias_linear", False)), int(a.get("mamba_ngroups", 1))
    sizes = Sizes(
        inner=inner,
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=int(a.get("mamba_d_state", 64)),
        kernel=int(a.get("mamba_d_conv", 4)),
        chunk=int(a.get("chunk_size", 256)),
        conv_bias=True,
        bias=bias,
        out_bias=bias,
        norm_groups=groups,
    )
    return Mixer2(a, b, name, sizes)


class MambaLayer:
    """Zamba2MambaDecoderLayer."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        self.env = env
        self.mamba = mixer(a, b, f"{name}.mamba")
        self.norm = Norm(b, f"{name}.input_layernorm", a.hidden_size, "llama")

    def __call__(self, f: Tape, x: Tensor, transformed: Tensor | None = None) -> Tensor:
        """x [B, S, H], and what the shared transformer made of it -> [B, S, H]."""
        residual = x
        if transformed is not None:
            x = add(f, x, transformed)
        x = self.norm(f, self.env, x)
        x = self.mamba(f, self.env, x)
        return add(f, residual, x)


class Shared:
    """The weights of one Zamba2AttentionDecoderLayer, with small adapters for each layer that shares them."""

    def __init__(self, a: Architecture, b: Build, name: str, users: list[int]) -> None:
        h, width = a.hidden_size, int(a.get("intermediate_size") or 4 * a.hidden_size)
        heads, kv = int(a.get("num_attention_heads")), int(a.get("num_key_value_heads"))
        dim, bias = 2 * h // heads, bool(a.get("add_bias_linear", False))
        lora, b.lora = b.lora, None
        self.sizes = {
            "self_attn.q_proj": (2 * h, heads * dim, False),
            "self_attn.k_proj": (2 * h, kv * dim, False),
            "self_attn.v_proj": (2 * h, kv * dim, False),
            "self_attn.o_proj": (heads * dim, h, False),
            "feed_forward.gate_up_proj": (h, 2 * width, bias),
            "feed_forward.down_proj": (width, h, bias),
        }
        rank = int(a.get("adapter_rank", 128))
        lists = {"feed_forward.gate_up_proj_adapter_list": (h, 2 * width)}
        if a.get("use_shared_attention_adapter", False):
            lists |= {f"self_attn.linear_{n}_adapter_list": (2 * h, 2 * h) for n in "qkv"}
        self.users, self.lists = users, tuple(lists)
        for part, (inputs, outputs) in lists.items():
            for user in users:
                self.sizes[f"{part}.{user}.0"] = (inputs, rank, False)
                self.sizes[f"{part}.{user}.1"] = (rank, outputs, False)
        self.linears = {part: b.linear(f"{name}.{part}", *size) for part, size in self.sizes.items()}
        b.lora = lora
        self.norms = [
            Norm(b, f"{name}.input_layernorm", 2 * h, "llama"),
            Norm(b, f"{name}.pre_ff_layernorm", h, "llama"),
        ]

    def adapted(self, a: Architecture, b: Build, name: str, user: int) -> dict[str, Any]:
        """The linear layers as the layer ``name`` has them; PEFT adapts the lists of its fellows too, to no use."""
        if b.lora is None:
            return self.linears
        found = dict(self.linears)
        for part, base in self.linears.items():
            if matches(b.lora.targets, f"{name}.{part}", a):
                b.idle = "_list." in part and f"_list.{user}." not in part
                found[part] = LoraLinear.build(b, f"{name}.{part}", base, *self.sizes[part][:2], b.lora)
        b.idle = False
        return found


class HybridLayer:
    """Zamba2HybridLayer: the shared transformer, a projection of its own, and a Mamba layer."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env, shared: Shared, user: int) -> None:
        h, name = a.hidden_size, f"model.layers.{index}"
        at = f"{name}.shared_transformer"
        self.env, self.index, self.norms = env, index, shared.norms
        self.user, self.lists = user, shared.lists
        self.linears = shared.adapted(a, b, at, user)
        self.heads, self.kv = int(a.get("num_attention_heads")), int(a.get("num_key_value_heads"))
        self.dim, self.act = 2 * h // self.heads, str(a.get("hidden_act") or "gelu")
        self.dropout = float(a.get("attention_dropout", 0.0))
        self.rotary = bool(a.get("use_mem_rope", False))
        self.linear = b.linear(f"{name}.linear", h, h)
        self.mamba = MambaLayer(a, b, f"{name}.mamba_decoder", env)

    def adapter(self, f: Tape, part: str, x: Tensor) -> Tensor:
        """The Sequential of two projections that this layer adds to a shared one."""
        first, second = (self.linears[f"{part}.{self.user}.{place}"] for place in (0, 1))
        result: Tensor = second(f, first(f, x))
        return result

    def attend(self, f: Tape, x: Tensor) -> Tensor:
        """Zamba2Attention."""
        b, s, _ = x.shape
        states = [self.linears[f"self_attn.{n}_proj"](f, x) for n in "qkv"]
        for place, n in enumerate("qkv"):
            if f"self_attn.linear_{n}_adapter_list" in self.lists:
                states[place] = add(f, states[place], self.adapter(f, f"self_attn.linear_{n}_adapter_list", x))
        q = states[0].view(b, self.heads, s, self.dim)
        k, v = (t.view(b, self.kv, s, self.dim) for t in states[1:])
        del states
        if self.rotary:
            q, k = rotate_both(f, q, k, self.env.state["rope"], SHAPE)
        out = self.env.attend(f, q, k, v, self.env.state["masks"]["full"], self.dropout)
        result: Tensor = self.linears["self_attn.o_proj"](f, out)
        return result

    def feed(self, f: Tape, x: Tensor) -> Tensor:
        """Zamba2MLP."""
        both = self.linears["feed_forward.gate_up_proj"](f, x)
        both = add(f, both, self.adapter(f, "feed_forward.gate_up_proj_adapter_list", x))
        half = (*both.shape[:-1], both.shape[-1] // 2)
        gate, up = split(f, both, half, half)
        hidden = mul(f, activate(f, gate, self.act), up)
        result: Tensor = self.linears["feed_forward.down_proj"](f, hidden)
        return result

    def transform(self, f: Tape, x: Tensor, original: Tensor) -> Tensor:
        """Zamba2AttentionDecoderLayer: no residual."""
        x = cat(f, x, original)
        x = self.norms[0](f, self.env, x)
        x = self.attend(f, x)
        x = self.norms[1](f, self.env, x)
        x = self.feed(f, x)
        self.env.weights = None
        return x

    def __call__(self, f: Tape, x: Tensor, original: Tensor) -> Tensor:
        """x [B, S, H], the embeddings [B, S, H] -> [B, S, H]."""
        transformed = self.transform(f, x, original)
        transformed = self.linear(f, transformed)
        # The Mamba layer in it is a checkpointed layer of its own, which gets this by keyword.
        return self.env.call(f, self.mamba, self.index, x, keywords=(transformed,))


class Model(Body):
    """Zamba2Model: ids [B, S] -> hidden states [B, S, H]."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        super().__init__(a, b, env, SHAPE)
        names = kinds_of_layers(a, "layers_block_type")
        places = [index for index, name in enumerate(names) if name == "hybrid"]
        count = int(a.get("num_mem_blocks", 1))
        blocks = [
            Shared(a, b, f"model.layers.{place}.shared_transformer", list(range(number, len(places), count)))
            for number, place in enumerate(places[:count])
        ]
        # The first layer of a block makes autocast's copies of its weights; in backward the last two make the gradients
        # to which the others add.
        ends = {place for block in range(count) for place in (*places[block::count][:1], *places[block::count][-2:])}
        kinds: list[Kind] = [("linear_attention", 0, -1)] * len(names)
        for number, place in enumerate(places):
            kinds[place] = ("hybrid", number % count, place if place in ends else -1)

        def make(build: Build, kind: Kind, index: int) -> Any:
            if kind[0] == "hybrid":
                return HybridLayer(a, build, index, env, blocks[kind[1]], places.index(index))
            layer = MambaLayer(a, build, f"model.layers.{index}", env)
            return lambda f, x, original: layer(f, x)

        self.kinds = ["full"]
        # Under FSDP2 the shared weights' gradients are held one use after another: every layer runs.
        self.layers = Stack(b, kinds, make, full=b.sharding.fully is not None)
        self.norm = Norm(b, "model.final_layernorm", a.hidden_size, "llama")
        self.rotary = 2 * a.hidden_size // int(a.get("num_attention_heads")) if a.get("use_mem_rope", False) else 0
        for _ in range(2 if self.rotary else 0):
            b.buffer(self.rotary // 2 * 4)

    def share(self, f: Tape, x: Tensor) -> None:
        """The mask, and rotary tables where positions are used at all."""
        if self.rotary:
            super().share(f, x)
        else:
            self.env.state["masks"] = {"full": self.env.mask(f, x.shape[0], x.shape[1], x.dtype)}

    def body(self, f: Tape, x: Tensor, batch: Batch) -> Tensor:
        """Layers and final norm over embedded inputs x [B, S, H]."""
        original = copy(f, x)
        self.share(f, x)
        x = self.layers(f, self.env, x, original)
        x = self.norm(f, self.env, x)
        self.env.release()
        return x
