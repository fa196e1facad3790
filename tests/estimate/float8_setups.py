"""Small jobs in float8, and what their steps take in torchao's own code.

``python tests/estimate/float8_setups.py`` traces them anew and writes ``float8_points.jsonl`` (needs torchao 0.18).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", ".."))

from memlint.job import Lora, TrainingJob, replace_fields  # noqa: E402
from memlint.models.architecture import Architecture  # noqa: E402
from memlint.models.config import read_config  # noqa: E402

POINTS = os.path.join(HERE, "float8_points.jsonl")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
QWEN = {**LLAMA, "model_type": "qwen2"}
EXPERTS = {
    **LLAMA,
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 256,
}
GPTJ = {"model_type": "gptj", "n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 64, "rotary_dim": 32}
PURE = {"training.precision.weights": "bf16", "training.precision.autocast": None}
CHECKPOINTED = {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": False}
AXOLOTL, LLAMA_FACTORY = {"framework": "axolotl"}, {"framework": "llama-factory"}
LORA = {"training.method": "lora"}
SETUPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "accelerate, which pads": (LLAMA, PURE),
    "autocast, which does not cast these weights": (QWEN, {}),
    "tokens that do not divide by 16": (LLAMA, {**PURE, "training.sequence_length": 101}),
    "axolotl": (LLAMA, {**PURE, **AXOLOTL}),
    "LLaMA-Factory, by rows": (LLAMA, {**PURE, **LLAMA_FACTORY}),
    "LLaMA-Factory under autocast": (LLAMA, LLAMA_FACTORY),
    "the weight's gradient in bf16": (
        LLAMA,
        {**PURE, **AXOLOTL, "training.precision.fp8_recipe": "rowwise_with_gw_hp"},
    ),
    "checkpointed": (LLAMA, {**PURE, **CHECKPOINTED}),
    "an adapter of 16": (LLAMA, {**PURE, **LORA, "training.lora": Lora(rank=16, dropout=0.05)}),
    "an adapter too small": (LLAMA, {**LORA, "training.lora": Lora(rank=8)}),
    "an adapter, checkpointed": (QWEN, {**PURE, **LORA, **CHECKPOINTED, "training.lora": Lora(rank=16)}),
    "experts": (EXPERTS, {**PURE, **AXOLOTL, **CHECKPOINTED}),
    "recomputed until its last save, which comes late": (GPTJ, {**PURE, **CHECKPOINTED, "training.optimizer": "sgd"}),
    "logits that outweigh the layers": ({**LLAMA, "vocab_size": 8192}, PURE),
}


def job_of(name: str) -> TrainingJob:
    """The job of one of the SETUPS."""
    config, changes = SETUPS[name]
    architecture = read_config(config)
    assert isinstance(architecture, Architecture)
    start = TrainingJob(model="a small model", architecture=architecture)
    base = {"training.sequence_length": 128, "training.micro_batch_size": 2, "training.precision.fp8": True}
    return replace_fields(start, {**base, **changes})


def traced(name: str) -> dict[str, int]:
    """Peak bytes of every phase of its step, in torchao's code."""
    from memlint.measure.trace.from_job import settings_of
    from memlint.measure.trace.run import trace

    peaks = trace(SETUPS[name][0], settings_of(job_of(name), 1), every_layer=True).phase_peaks
    return {phase: peaks[phase] for phase in ("forward", "backward", "optimizer")}


def main() -> None:
    """Trace every setup."""
    lines = [json.dumps({"setup": name, "peaks": traced(name)}) for name in SETUPS]
    with open(POINTS, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
