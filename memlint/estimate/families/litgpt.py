"""litgpt: its own GPT class, chunked head and loss, and its training loop's lifetimes.

Sources: litgpt 0.4.0 (and 0.5.0, lit-gpt of October 2023 where they differ) model.py, lora.py, adapter.py, utils.py
chunked_cross_entropy, finetune/lora.py fit(), finetune/full.py fit(); lightning 2.2 fabric.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.build import Build, Embedding
from memlint.estimate.engine.pool import INPUTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Leaf, Node, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.litgpt_attention import Attention, Norm
from memlint.estimate.families.litgpt_config import GATED, OTHERS, Config, config_of
from memlint.estimate.families.litgpt_layers import Maker
from memlint.estimate.ops.basic import activation, add, cast, copy, mul, saving_output, scale, slice_of
from memlint.estimate.ops.linear import Weight, embedding
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.ops.norm import layer_norm
from memlint.estimate.ops.views import split
from memlint.estimate.stack import Stack
from memlint.job import TrainingJob
from memlint.records import replace

CHUNK = 128
"""lm_head_chunk_size of finetune/lora.py, and chunk_size of chunked_cross_entropy."""
START = 2
"""adapter_start_layer (litgpt/adapter.py)."""


class Mlp:
    """GptNeoxMLP, LLaMAMLP or GemmaMLP."""

    def __init__(self, c: Config, maker: Maker, name: str) -> None:
        h, i = c.n_embd, c.intermediate_size
        self.gated = c.gated
        self.act = "gelu" if c.unit_offset else "silu"
        if c.gated:
            self.fc_1 = maker.linear(f"{name}.fc_1", h, i, c.bias, "mlp")
            self.fc_2 = maker.linear(f"{name}.fc_2", h, i, c.bias, "mlp")
        else:
            self.fc = maker.linear(f"{name}.fc", h, i, c.bias, "mlp")
        self.proj = maker.linear(f"{name}.proj", i, h, c.bias, "mlp")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        if self.gated:
            x_fc_1 = self.fc_1(f, x)
            x_fc_2 = self.fc_2(f, x)
            x = mul(f, activation(f, x_fc_1, self.act), x_fc_2)
        else:
            x = self.fc(f, x)
            x = activation(f, x)
        out: Tensor = self.proj(f, x)
        return out


class Block:
    """One layer."""

    def __init__(self, b: Build, c: Config, maker: Maker, kind: str, index: int, env: Env) -> None:
        name = f"transformer.h.{index}"
        self.config = c
        self.norm_1 = Norm(b, c, f"{name}.norm_1")
        self.attn = Attention(b, c, maker, f"{name}.attn", kind, env)
        self.norm_2 = None if c.shared_attention_norm else Norm(b, c, f"{name}.norm_2")
        self.post_attention = Norm(b, c, f"{name}.post_attention_norm") if c.post_norms else None
        self.post_mlp = Norm(b, c, f"{name}.post_mlp_norm") if c.post_norms else None
        self.mlp = Mlp(c, maker, f"{name}.mlp")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]."""
        x_normed = self.norm_1(f, x)
        attention_output = self.attn(f, x_normed)
        if self.post_attention is not None:
            attention_output = self.post_attention(f, attention_output)
        if self.config.parallel_residual:
            if self.norm_2 is not None:
                x_normed = self.norm_2(f, x)
            return add(f, add(f, self.mlp(f, x_normed), attention_output), x)
        x = add(f, attention_output, x)
        assert self.norm_2 is not None
        out = self.mlp(f, self.norm_2(f, x))
        if self.post_mlp is not None:
            out = self.post_mlp(f, out)
        return add(f, out, x)


def _join_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    return tuple([f.new((), grad.dtype) for _ in node.edges])


def joined(f: Tape, losses: Sequence[Tensor]) -> Tensor:
    """``torch.cat(loss_chunks).sum() / elements``."""
    out = f.new((), losses[0].dtype, TEMPORARIES)
    return f.record(out, _join_backward, tuple(losses))


class Model:
    """GPT with litgpt's finetuning step around it."""

    def __init__(self, job: TrainingJob, b: Build, env: Env) -> None:
        c = self.config = config_of(job)
        self.job, self.build, self.env = job, b, env
        self.maker = Maker(b, c)
        self.lm_head = self.maker.linear("lm_head", c.n_embd, c.padded_vocab_size, c.lm_head_bias, "head")
        self.wte = b.embedding("transformer.wte", c.padded_vocab_size, c.n_embd)
        self.layers = Stack(b, self.kinds(), lambda build, kind, index: Block(build, c, self.maker, kind, index, env))
        self.ln_f = Norm(b, c, "transformer.ln_f")
        self.stable: tuple[Weight, Weight] | None = None
        if c.stable_embedding:
            self._stabilise(b)
        for _ in range(2):
            b.buffer(job.training.sequence_length * c.rope_n_elem * 4)
        self.logits: list[Tensor] = []
        self.stale: list[Tensor] = []
        self.graph: list[Tensor] = []

    def kinds(self) -> list[str]:
        """Layers that differ: adapter layers from the third on, Gemma 2's every other sliding one."""
        layers = range(self.config.n_layer)
        if self.job.training.method in ("adapter", "adapter_v2"):
            return ["adapter" if i >= START else "plain" for i in layers]
        return ["sliding" if self.config.sliding_window and i % 2 == 0 else "plain" for i in layers]

    def _stabilise(self, b: Build) -> None:
        # finetune/lora.py of 0.5: the new embedding and its norm require gradients but belong to no optimizer, whose
        # zero_grad would clear them: the gradients stay.
        weight = self.wte.weight
        held = Weight(weight.name, weight.shape, weight.dtype, True, weight.dtype)
        assert isinstance(held.node, Leaf)
        held.node.grad = True
        self.wte = Embedding(held)
        b.buffer(prod(weight.shape) * 2)
        c = self.config
        norm = Weight("transformer.wte.norm.weight", (c.n_embd,), weight.dtype, True, None)
        bias = Weight("transformer.wte.norm.bias", (c.n_embd,), weight.dtype, True, None)
        for part in (norm, bias):
            assert isinstance(part.node, Leaf)
            part.node.grad = True
            b.buffer(4 * c.n_embd)
        self.stable = norm, bias

    def batch(self, f: Tape) -> Batch:
        """input_ids and labels [B, T] int64; and what the loop's variables still hold of the micro batch before."""
        training, c = self.job.training, self.config
        shape = (training.micro_batch_size, training.sequence_length)
        f.one_kernel_silu = True
        batch = Batch(ids=f.new(shape, "int64", INPUTS), labels=f.new(shape, "int64", INPUTS))
        # `logits` is assigned again only when the next forward has returned; `loss`, and with it the old graph with its
        # Python nodes' ctx.tensors, only when the next loss is there.
        if training.longest_once:
            return batch
        self.stale = [f.new((shape[0], n, c.padded_vocab_size), "fp32", LOGITS) for n in self.chunks()]
        if self.maker.kept is not None:
            self.graph = self._old_graph(f)
        return batch

    def chunks(self) -> list[int]:
        """Tokens of each piece that lm_head is applied to."""
        length = self.job.training.sequence_length
        if self.job.training.method == "full":
            return [length]
        return [min(CHUNK, length - start) for start in range(0, length, CHUNK)]

    def _old_graph(self, f: Tape) -> list[Tensor]:
        c, training = self.config, self.job.training
        dtype = training.precision.weights
        tokens = (training.micro_batch_size, training.sequence_length)
        widths = [c.n_embd, c.n_head * c.head_size, c.intermediate_size]
        if not c.shared_attention_norm:
            widths.append(c.n_embd)
        first = START if training.method == "adapter" else 0
        held = [f.new((*tokens, width), dtype, LOGITS) for _ in range(first, c.n_layer) for width in widths]
        if self.stable is None and training.method != "adapter_v2":
            # Nothing trainable stands before the first projection, whose input needs no gradient and is not kept.
            held.pop(0)
        return [*held, f.new((*tokens, c.n_embd), dtype, LOGITS)]

    def forward(self, f: Tape, batch: Batch) -> list[Tensor]:
        """_FabricModule.forward: the model's logits in pieces, each cast to fp32 by the plugin's convert_output."""
        c, env = self.config, self.env
        length = batch.length
        env.state["rope"] = (
            Tensor((1, 1, length, c.rope_n_elem), "fp32", None),
            Tensor((1, 1, length, c.rope_n_elem), "fp32", None),
        )
        x = embedding(f, self.wte.weight, batch.ids)
        if self.stable is not None:
            x = layer_norm(f, x, *self.stable)
        if c.scale_embeddings:
            x = scale(f, x)
        x = self.layers(f, env, x)
        x = self.ln_f(f, x)
        f.component = LOGITS
        logits = self.head(f, x)
        del x
        out = [cast(f, part, "fp32") for part in logits]
        f.component = TEMPORARIES
        env.release()
        self.stale = []
        return out

    def head(self, f: Tape, x: Tensor) -> list[Tensor]:
        """lm_head over pieces of 128 tokens, or (full finetuning) over all of them."""
        chunks = self.chunks()
        shapes = [(x.shape[0], n, x.shape[2]) for n in chunks]
        parts = [x] if len(chunks) == 1 else list(split(f, x, *shapes))
        del x
        logits = []
        for part in parts:
            piece = self.lm_head(f, part)
            if self.config.final_softcap and (len(parts) == 1 or self.config.softcaps_chunks):
                piece = scale(f, saving_output(f, scale(f, piece)))
            logits.append(piece)
        return logits

    def loss(self, f: Tape, output: list[Tensor], batch: Batch) -> Tensor:
        """chunked_cross_entropy; the loop's ``logits`` stay alive."""
        assert batch.labels is not None
        self.logits = output
        f.component = LOGITS
        last = output[-1]
        rows, n, width = last.shape
        shifted = slice_of(f, last, (rows, n - 1, width))
        if rows > 1:
            shifted = copy(f, shifted)
        pieces = [*output[:-1], shifted]
        if self.job.training.method == "full":
            total = rows * (n - 1)
            flat = shifted.view(total, width)
            sizes = [min(CHUNK, total - start) for start in range(0, total, CHUNK)]
            pieces = list(split(f, flat, *[(size, width) for size in sizes]))
        losses = [cross_entropy(f, piece, batch.labels) for piece in pieces]
        self.graph = []
        return joined(f, losses)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves


def build(job: TrainingJob, b: Build, env: Env) -> Model | None:
    """Build litgpt's model of a job; None for what its GPT class does not run, or is not modelled here."""
    training, a = job.training, job.architecture
    assert a is not None
    if training.objective != "causal-lm" or a.model_type not in GATED + OTHERS:
        return None
    if training.method not in ("full", "lora", "qlora", "adapter", "adapter_v2"):
        return None
    if training.quantization is not None:
        # No k-bit preparation of PEFT's: norms, embedding and head stay in half precision.
        b.training = replace(training, quantization=replace(training.quantization, kbit_preparation=False))
    return Model(job, b, env)
