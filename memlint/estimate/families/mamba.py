"""Pure state-space language models: mamba, falcon_mamba and mamba2.

Source: transformers 5.24 models/{mamba,falcon_mamba,mamba2}/modeling_*.py. Residuals are fp32 by default, so is the
stream between the layers; logits are made fp32 by the model itself.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported, required
from memlint.estimate.families.decoder import DecoderModel
from memlint.estimate.families.mamba_mixer import Mixer
from memlint.estimate.families.norms import Norm
from memlint.estimate.heads import CausalHead
from memlint.estimate.ops.basic import add, cast
from memlint.estimate.stack import Stack
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture


class Block:
    """MambaBlock: norm, mixer, residual in fp32 when the config says so."""

    def __init__(self, a: Architecture, b: Build, index: int, env: Env) -> None:
        name = f"backbone.layers.{index}"
        self.env = env
        self.fp32 = bool(a.get("residual_in_fp32", True))
        self.norm = Norm(b, f"{name}.norm", a.hidden_size, "llama")
        self.mixer = make_mixer(a, b, f"{name}.mixer")

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        residual = x
        assert self.norm.weight is not None
        x = self.norm(f, self.env, cast(f, x, self.norm.weight.dtype))
        if self.fp32:
            residual = cast(f, residual, "fp32")
        x = self.mixer(f, self.env, x)
        return add(f, residual, x)


def make_mixer(a: Architecture, b: Build, name: str) -> Any:
    """The mixer of a model type."""
    if a.model_type == "rwkv":
        raise Unsupported("no memory model for `rwkv` yet: its attention runs in a kernel of its own")
    if a.model_type == "mamba2":
        from memlint.estimate.families.mamba2_mixer import mamba2_mixer

        return mamba2_mixer(a, b, name)
    return Mixer(
        a,
        b,
        name,
        inner=int(a.get("intermediate_size") or a.get("expand", 2) * a.hidden_size),
        state=int(a.get("state_size", 16)),
        rank=required(a, "time_step_rank"),
        kernel=int(a.get("conv_kernel", 4)),
        conv_bias=bool(a.get("use_conv_bias", True)),
        bias=bool(a.get("use_bias", False)),
        norms="plain" if a.model_type == "falcon_mamba" else "none",
    )


class Body:
    """Embedding, blocks and final norm."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        rows = b.training.vocab_size or a.vocab_size
        self.env = env
        self.embed = b.embedding("backbone.embeddings", rows, a.hidden_size, entry=True)
        self.layers = Stack(b, ["block"] * a.num_hidden_layers, lambda build, kind, index: Block(a, build, index, env))
        self.norm = Norm(b, "backbone.norm_f", a.hidden_size, "llama")

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """ids [B, S] -> hidden states [B, S, H]."""
        x = self.embed(f, batch.ids)
        x = self.layers(f, self.env, x)
        x = self.norm(f, self.env, x)
        self.env.release()
        return x


class Head(CausalHead):
    """``lm_head(hidden.to(weight.dtype)).float()``."""

    def logits(self, f: Tape, hidden: Tensor) -> Tensor | None:
        """Logits [B, S, V] in fp32."""
        weight = getattr(self.head, "weight", None)
        if weight is not None and hasattr(weight, "dtype"):
            hidden = cast(f, hidden, weight.dtype)
        logits = super().logits(f, hidden)
        return None if logits is None else cast(f, logits, "fp32")


class FloatLogits(DecoderModel):
    """A body whose head makes its logits fp32 itself (mamba, mamba2, nemotron_h)."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Any) -> None:
        super().__init__(job, build, env, body)
        if type(self.head) is CausalHead:
            self.head.__class__ = Head


class MambaModel(FloatLogits):
    """Body and head."""

    def __init__(self, job: TrainingJob, build: Build, env: Env) -> None:
        super().__init__(job, build, env, Body)
