"""What a trace runs: one training step's settings, independent of any config format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """A PEFT LoRA adapter (names as in peft.LoraConfig)."""

    rank: int = 16
    targets: str | tuple[str, ...] | None = "all-linear"
    """None: PEFT's table for the model type."""
    dropout: float = 0.0
    dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    dtype: str = "fp32"
    """fp32: PEFT's autocast_adapter_dtype; otherwise as the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Settings of the step. Data types are fp32, bf16 or fp16."""

    head: str = "causal"
    """causal, mlm, seqcls, tokcls, seq2seq."""
    batch: int = 1
    seq: int = 2048
    target_seq: int | None = None
    padding: bool = False
    """The batch carries an attention mask with padded positions."""
    weights: str = "bf16"
    trainable_weights: str | None = None
    """dtype that trainable parameters are cast to after loading; None: as ``weights``."""
    autocast: str | None = None
    checkpointing: str = "none"
    """none, nonreentrant, reentrant."""
    attention: str = "sdpa"
    optimizer: str = "adamw"
    max_grad_norm: float | None = 1.0
    accumulation: int = 1
    """Above 1 the step's last micro batch is followed, with gradients alive from the one before it."""
    lora: LoraSettings | None = None
    four_bit: bool = False
    """NF4 base weights as bitsandbytes stores them (simulated)."""
    double_quant: bool = True
    freeze: tuple[str, ...] = ()
    """Name fragments of parameters that do not train."""
    shards: int = 1
    """FSDP2 over this many ranks."""
    reshard_after_forward: bool = True
    steps: int = 2
