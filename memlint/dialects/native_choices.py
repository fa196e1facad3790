"""The words that the native job file knows for what is trained, how, and with which optimizer."""

from __future__ import annotations

from memlint.dialects.values import words

OBJECTIVES = (
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "token-classification",
    "contrastive",
    "dpo",
    "orpo",
    "cpo",
    "kto",
    "reward",
    "grpo",
    "ppo",
    "ipo",
    "simpo",
    "rloo",
)
SAME_STEP = {"ipo": "dpo", "simpo": "dpo", "rloo": "grpo"}
"""Names people write -> the objective whose step holds the same: they differ in what is done to a number a row.

TRL 1.16: ``loss_type: ipo`` of trainer/dpo_trainer.py; ``loss_type: simpo`` of experimental/cpo, which has no cross
entropy (``cpo_alpha: 0``) and no reference; trainer/rloo_trainer.py beside grpo_trainer.py.
"""
REFERENCE_FREE = ("simpo", "orpo", "cpo", "reward")
"""Objectives whose loss has no reference model."""
METHODS = tuple(
    sorted(
        words(
            """full lora qlora freeze adalora boft bone c3a delora fourierft hira hra ia3 ln-tuning loha lokr miss oft
            p-tuning prefix prompt poly randlora road shira trainable-tokens vblora vera xlora"""
        )
    )
)
OPTIMIZERS = tuple(
    sorted(
        words(
            """adagrad adagrad-8bit adafactor adalomo adam adam-8bit adamax adamw adamw-4bit adamw-8bit
            adamw-anyprecision adamw-bnb adamw-for-loop adamw-foreach adamw-fp8 adamw-fused adamw-optimi ademamix
            ademamix-8bit adopt apollo came dion flash-adamw galore-adafactor galore-adamw galore-adamw-8bit
            grokadamw lion lion-8bit lion-bnb lomo muon nadam paged-adamw paged-adamw-8bit paged-ademamix
            paged-ademamix-8bit paged-lion paged-lion-8bit q-galore-adamw-8bit radam rmsprop rmsprop-8bit
            rmsprop-bnb schedule-free-adamw schedule-free-radam schedule-free-sgd sgd sgd-8bit sgd-foreach
            sgd-momentum signum stable-adamw"""
        )
    )
)
PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16")
CHECKPOINTING = ("none", "full", "selective", "offload")
STRATEGIES = ("none", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "fsdp1", "fsdp2", "hsdp", "device-map")
FP8_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp", "transformer-engine")
"""How products in float8 scale their operands, by torchao's names, and the other library."""
