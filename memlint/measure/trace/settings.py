"""What a trace runs: one training step's settings, independent of any config format."""

from __future__ import annotations

from dataclasses import dataclass

from memlint.estimate.float8 import Float8

CAPABILITY = (8, 0)
"""Compute capability of the GPU whose choices a trace takes: an A100's (:mod:`.cuda_choices`)."""
DEFAULT_SKIP = ("lm_head",)
"""The job's default: what transformers leaves unquantised by itself (quantizers/base.py get_keys_to_not_convert)."""


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
    spared: tuple[str, ...] = ()
    """Name fragments of frozen parts, which LLaMA-Factory keeps adapters from (model/model_utils/misc.py)."""


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
    checkpoint_every: int = 1
    attention: str = "sdpa"
    """eager, sdpa, flash."""
    optimizer: str = "adamw"
    fp32_embedding_states: bool = False
    """An 8-bit optimizer keeps 32-bit states for embeddings, as HF's Trainer asks it to."""
    max_grad_norm: float | None = 1.0
    accumulation: int = 1
    """Above 1 the step's last micro batch is followed, with gradients alive from the one before it."""
    lora: LoraSettings | None = None
    fp32_modules: tuple[str, ...] = ()
    """Name fragments of parameters kept in fp32."""
    quantised: str | None = None
    """Base weights as bitsandbytes stores them: nf4, fp4 or int8; None: as they are."""
    double_quant: bool = True
    kbit_preparation: bool = True
    skip_quantization: tuple[str, ...] = DEFAULT_SKIP
    """llm_int8_skip_modules."""
    float8: Float8 | None = None
    """Which linear layers are torchao's, and how they scale; None: none are."""
    freeze: tuple[str, ...] = ()
    """Name fragments of parameters that do not train."""
    train_last: int | None = None
    """Only the last layers train (negative: the first ones); None: no such limit."""
    train_only: tuple[str, ...] = ()
    """Name fragments of parameters that train beside ``train_last``; all others are frozen when set."""
    shards: int = 1
    """FSDP2 over this many ranks."""
    reshard_after_forward: bool = True
    steps: int = 2
