"""torchtune: its own decoder, chunked head and loss, and what torch.compile keeps of a layer.

Sources: torchtune 0.4.0 modules/transformer.py, attention.py, rms_norm.py, position_embeddings.py, feed_forward.py,
loss/ce_chunked_output_loss.py, peft/lora.py, recipes/full_finetune_single_device.py; torchao 0.5 dtypes/nf4tensor.py.
"""

from __future__ import annotations

from memlint.estimate.build import Build, Embedding
from memlint.estimate.engine.pool import INPUTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.torchtune_compiled import CompiledBlock, compiled_cross_entropy
from memlint.estimate.families.torchtune_layers import Maker, flex_attention, rope
from memlint.estimate.ops.basic import activation, add, cast, copy, expand_copy, mean_last, mul, rsqrt, shift, square
from memlint.estimate.ops.linear import Weight, embedding, linear
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.records import replace

TYPES = ("llama", "mistral", "qwen2")
"""Model types whose torchtune builders make TransformerSelfAttentionLayer with RMSNorm and a gated MLP."""
CHUNKS = 8
"""num_output_chunks of CEWithChunkedOutputLoss."""


class Norm:
    """RMSNorm: fp32 inside, the scale applied to the cast result."""

    def __init__(self, b: Build, name: str, width: int) -> None:
        self.weight = b.parameter(f"{name}.scale", width)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., H] -> the same shape."""
        x_fp32 = cast(f, x, "fp32")
        x_normed = cast(f, mul(f, x_fp32, rsqrt(f, shift(f, mean_last(f, square(f, x_fp32))))), x.dtype)
        return mul(f, x_normed, self.weight)


class Attention:
    """MultiHeadAttention."""

    def __init__(self, a: Architecture, maker: Maker, name: str, env: Env) -> None:
        h = a.hidden_size
        self.env = env
        self.heads = int(a.get("num_attention_heads"))
        self.kv = int(a.get("num_key_value_heads", self.heads))
        self.width = int(a.get("head_dim") or h // self.heads)
        bias = a.model_type == "qwen2"
        self.q = maker.linear(f"{name}.q_proj", h, self.heads * self.width, bias)
        self.k = maker.linear(f"{name}.k_proj", h, self.kv * self.width, bias)
        self.v = maker.linear(f"{name}.v_proj", h, self.kv * self.width, bias)
        self.o = maker.linear(f"{name}.output_proj", self.heads * self.width, h)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        b, s, _ = x.shape
        packed = self.env.state["packed"]
        q = rope(f, self.q(f, x).view(b, self.heads, s, self.width), packed)
        k = self.k(f, x).view(b, self.kv, s, self.width)
        v = self.v(f, x).view(b, self.kv, s, self.width)
        k = rope(f, k, packed)
        if self.kv != self.heads:
            whole = (b, self.heads, s, self.width)
            k, v = expand_copy(f, k, whole), expand_copy(f, v, whole)
        output = flex_attention(f, q, k, v)
        out: Tensor = self.o(f, output.view(b, s, self.heads * self.width))
        return out


class Block:
    """TransformerSelfAttentionLayer, run eagerly."""

    def __init__(self, a: Architecture, b: Build, maker: Maker, index: int, env: Env) -> None:
        name = f"layers.{index}"
        h, width = a.hidden_size, int(a.get("intermediate_size"))
        self.norms = [Norm(b, f"{name}.{part}", h) for part in ("sa_norm", "mlp_norm")]
        self.attn = Attention(a, maker, f"{name}.attn", env)
        self.w1 = maker.linear(f"{name}.mlp.w1", h, width)
        self.w2 = maker.linear(f"{name}.mlp.w2", width, h)
        self.w3 = maker.linear(f"{name}.mlp.w3", h, width)

    def mlp(self, f: Tape, x: Tensor) -> Tensor:
        """FeedForward."""
        h = activation(f, self.w1(f, x), "silu")
        h = mul(f, h, self.w3(f, x))
        out: Tensor = self.w2(f, h)
        return out

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        h = self.norms[0](f, x)
        attn_out = self.attn(f, h)
        h = add(f, attn_out, x)
        mlp_out = self.mlp(f, self.norms[1](f, h))
        return add(f, h, mlp_out)


def _once(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def gathered(f: Tape, weight: Weight) -> Tensor:
    """A weight that several operations use: their gradients meet in AccumulateGrad's input buffer, which runs once."""
    if not weight.trainable:
        return weight
    return f.record(Tensor(weight.shape, weight.dtype, None), _once, (weight,))


class Model:
    """TransformerDecoder with the single-device recipes' step around it."""

    def __init__(self, job: TrainingJob, b: Build, env: Env) -> None:
        a = job.architecture
        assert a is not None
        training = job.training
        self.job, self.build, self.env = job, b, env
        maker = Maker(b)
        rows = training.vocab_size or a.vocab_size
        self.rows = rows
        self.embed: Embedding = b.embedding("tok_embeddings", rows, a.hidden_size)
        make = CompiledBlock if training.compile else Block
        self.layers = Stack(
            b, ["block"] * a.num_hidden_layers, lambda build, kind, index: make(a, build, maker, index, env)
        )
        self.norm = Norm(b, "norm", a.hidden_size)
        self.output: Weight = (
            self.embed.weight if a.tie_word_embeddings else b.parameter("output.weight", rows, a.hidden_size)
        )
        width = int(a.get("head_dim") or a.hidden_size // int(a.get("num_attention_heads")))
        # One rotary module serves all layers; its cache holds cos and sin for max_seq_len, 131,072 for Llama 3.1 on.
        b.buffer(int(a.get("max_position_embeddings", 8192)) * width * 4)

    def batch(self, f: Tape) -> Batch:
        """tokens and labels [B, S] int64; packed rows also carry input_pos."""
        training = self.job.training
        shape = (training.micro_batch_size, training.sequence_length)
        f.one_kernel_silu = True
        position = f.new(shape, "int64", INPUTS) if training.packing else None
        return Batch(ids=f.new(shape, "int64", INPUTS), labels=f.new(shape, "int64", INPUTS), mask=position)

    def forward(self, f: Tape, batch: Batch) -> list[Tensor]:
        """Logits, in eight pieces of the sequence when the loss is chunked, else whole and in fp32."""
        env = self.env
        env.state["packed"] = self.job.training.packing
        output = gathered(f, self.output)
        x = embedding(f, output, batch.ids) if self.output is self.embed.weight else self.embed(f, batch.ids)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        f.component = LOGITS
        if self.job.training.loss == "standard":
            logits = [cast(f, linear(f, x, output), "fp32")]
        else:
            b, s, h = x.shape
            size = -(-s // CHUNKS)
            shapes = [(b, min(size, s - start), h) for start in range(0, s, size)]
            logits = []
            for part in split(f, x, *shapes):
                # A piece of several sequences is strided: matmul copies it to fold them when the weight trains.
                piece = copy(f, part) if b > 1 and self.output.trainable else part
                logits.append(linear(f, piece, output))
        f.component = TEMPORARIES
        env.release()
        if self.build.sharding.fully is not None:
            self.build.sharding.fully.end_forward()
        return logits

    def loss(self, f: Tape, output: list[Tensor], batch: Batch) -> Tensor:
        """The recipes' loss step: every piece upcast in turn; the recipe then deletes the logits."""
        assert batch.labels is not None
        f.component = LOGITS
        labels = f.new(batch.labels.shape, "int64")
        compiled = self.job.training.compile
        total: Tensor | None = None
        while output:
            piece = output.pop(0)
            part = compiled_cross_entropy(f, piece) if compiled else cross_entropy(f, cast(f, piece, "fp32"), labels)
            del piece
            total = part if total is None else add(f, total, part)
        assert total is not None
        return total

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves


def build(job: TrainingJob, b: Build, env: Env) -> Model | None:
    """Build torchtune's model of a job; None for a model or recipe that is not modelled here."""
    training, a = job.training, job.architecture
    assert a is not None
    if training.objective != "causal-lm" or a.model_type not in TYPES:
        return None
    if training.method not in ("full", "lora", "qlora"):
        return None
    if training.quantization is not None:
        # No k-bit preparation of PEFT's: norms, embedding and head stay in half precision.
        b.training = replace(training, quantization=replace(training.quantization, kbit_preparation=False))
    return Model(job, b, env)
