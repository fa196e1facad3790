"""The simulation against traces of the real code over a grid of model types and setups.

    python -m benchmarks.accuracy.grid [--types llama,qwen3] [--limit N] [--output FILE] [--worst N]

Each point builds the real transformers model on fake tensors and runs two steps, which takes a second or two; the
whole grid takes minutes. Results go to a JSON-lines file that ``python -m benchmarks.accuracy --grid FILE`` turns into
tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from memlint.estimate.simulate import run_step
from memlint.job import Lora, Precision, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

TINY: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
}
_KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
_LOCAL: dict[str, Any] = {"head_dim": 64, "sliding_window": 256, "layer_types": _KINDS}
_WINDOWS: dict[str, Any] = {"sliding_window": 256, "layer_types": _KINDS}
_DELTA: dict[str, Any] = {
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
    },
}
_MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_LLAMAS = ("llama", "qwen2", "qwen3", "granite", "cohere", "stablelm", "starcoder2", "olmo", "olmo2")
_GPT = {"hidden_size": 512, "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 8192}
TYPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_LLAMAS, TINY),
    "mistral": {**TINY, "sliding_window": None},
    "ministral3": {**TINY, "head_dim": 64},
    "gemma": {**TINY, "head_dim": 64},
    "gemma2": {**TINY, **_LOCAL},
    "gemma3_text": {**TINY, **_LOCAL},
    "phi3": {**TINY, "pad_token_id": 0, "sliding_window": None},
    "smollm3": {**TINY, "pad_token_id": 0},
    "olmo3": {**TINY, **_WINDOWS},
    "cohere2": {**TINY, **_WINDOWS},
    "exaone4": {**TINY, **_WINDOWS, "sliding_window_pattern": 2},
    "glm": {**TINY, "head_dim": 64, "pad_token_id": 0},
    "glm4": {**TINY, "head_dim": 64, "pad_token_id": 0},
    "nemotron": TINY,
    "seed_oss": {**TINY, "head_dim": 64},
    "arcee": TINY,
    "hunyuan_v1_dense": {**TINY, "head_dim": 64},
    "ernie4_5": {**TINY, "head_dim": 64},
    "helium": {**TINY, "head_dim": 64},
    "bitnet": {**TINY, "pad_token_id": 0},
    "apertus": {**TINY, "pad_token_id": 0},
    "gpt2": {"n_embd": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192},
    "gpt_neox": {**_GPT, "intermediate_size": 2048},
    "gptj": {"n_embd": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192, "rotary_dim": 32},
    "opt": {**_GPT, "ffn_dim": 2048, "word_embed_proj_dim": 512, "max_position_embeddings": 2048},
    "bloom": {"hidden_size": 512, "n_layer": 5, "n_head": 8, "vocab_size": 8192},
    "falcon": {**_GPT, "bias": False, "alibi": False, "multi_query": True, "parallel_attn": True},
    "phi": {**_GPT, "intermediate_size": 2048},
    "mixtral": {**TINY, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2_moe": {**TINY, **_MOE, "shared_expert_intermediate_size": 512},
    "qwen3_moe": {**TINY, **_MOE},
    "qwen3_5_text": {**TINY, **_DELTA},
    "lfm2": {**TINY, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {**TINY, **_MOE, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"]},
}
HALF = Precision(weights="bf16", autocast=None)
SINGLE = Precision(weights="fp32", autocast=None)
AUTOCAST = Precision(weights="fp32", autocast="bf16")
SETUPS: dict[str, dict[str, Any]] = {
    "bf16": {"training.precision": HALF},
    "bf16 eager": {"training.precision": HALF, "training.attention": "eager"},
    "bf16 checkpointing": {"training.precision": HALF, "training.checkpointing.mode": "full"},
    "bf16 reentrant eager": {
        "training.precision": HALF,
        "training.attention": "eager",
        "training.checkpointing.mode": "full",
        "training.checkpointing.reentrant": True,
    },
    "bf16 padding": {"training.precision": HALF, "training.padding": True},
    "bf16 accumulation": {"training.precision": HALF, "training.gradient_accumulation_steps": 2},
    "bf16 adamw short": {"training.precision": HALF, "training.optimizer": "adamw", "training.sequence_length": 64},
    "bf16 8-bit short": {
        "training.precision": HALF,
        "training.optimizer": "adamw-8bit",
        "training.sequence_length": 64,
    },
    "fp32": {"training.precision": SINGLE},
    "fp32 checkpointing": {"training.precision": SINGLE, "training.checkpointing.mode": "full"},
    "autocast": {"training.precision": AUTOCAST},
    "autocast eager": {"training.precision": AUTOCAST, "training.attention": "eager"},
    "autocast checkpointing": {"training.precision": AUTOCAST, "training.checkpointing.mode": "full"},
    "lora": {"training.precision": HALF, "training.method": "lora", "training.lora": Lora()},
    "lora dropout autocast": {
        "training.precision": AUTOCAST,
        "training.method": "lora",
        "training.lora": Lora(rank=8, dropout=0.05),
    },
    "lora checkpointing": {
        "training.precision": HALF,
        "training.method": "lora",
        "training.lora": Lora(),
        "training.checkpointing.mode": "full",
    },
}
EAGER_ONLY = ("gemma2",)


def points(types: list[str] | None) -> Iterator[tuple[str, str, TrainingJob, dict[str, Any]]]:
    """Every (type, setup, job, HF config) of the grid."""
    for kind, fields in TYPES.items():
        if types and kind not in types:
            continue
        config = {"model_type": kind, **fields}
        architecture = read_config(config)
        assert isinstance(architecture, Architecture), architecture
        for name, changes in SETUPS.items():
            for batch in (1, 2):
                start = TrainingJob(
                    model=kind,
                    architecture=architecture,
                    training=Training(
                        micro_batch_size=batch,
                        sequence_length=512,
                        optimizer="sgd",
                        attention="eager" if kind in EAGER_ONLY else "sdpa",
                    ),
                )
                yield kind, f"{name} b{batch}", replace_fields(start, changes), config


def settings_of(job: TrainingJob) -> Any:
    """The trace settings of a job."""
    from memlint.measure.trace.settings import LoraSettings, TraceSettings

    training = job.training
    lora = training.lora
    mode = training.checkpointing.mode
    return TraceSettings(
        batch=training.micro_batch_size,
        seq=training.sequence_length,
        padding=training.padding,
        weights=training.precision.weights,
        autocast=training.precision.autocast,
        checkpointing="none" if mode == "none" else "reentrant" if training.checkpointing.reentrant else "nonreentrant",
        attention=training.attention,
        optimizer=training.optimizer,
        accumulation=training.gradient_accumulation_steps,
        lora=None if lora is None else LoraSettings(rank=lora.rank, dropout=lora.dropout),
    )


def compare(kind: str, setup: str, job: TrainingJob, config: dict[str, Any]) -> dict[str, Any]:
    """Trace and simulate one point."""
    from memlint.measure.trace.run import trace

    traced = trace(config, settings_of(job))
    step = run_step(job, (8, 0))
    peak = max(step.timeline, key=lambda phase: phase.peak_bytes)
    saved = traced.fwd_end_bytes - traced.static_before_fwd_bytes
    return {
        "type": kind,
        "setup": setup,
        "traced": traced.peak_bytes,
        "simulated": peak.peak_bytes,
        "error": peak.peak_bytes / traced.peak_bytes - 1,
        "traced_phase": traced.peak_phase,
        "phase": peak.phase,
        "forward_end_error": step.forward_end_bytes / saved - 1,
        "parameters": sum(r.count * r.numel for r in step.build.records if r.base) - traced.parameters,
    }


def main() -> int:
    """Run the grid and print a line a point and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--types", type=lambda text: text.split(","))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--every", type=int, default=1, help="only every N-th point")
    parser.add_argument("--output", help="JSON-lines file of all points")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for number, point in enumerate(points(options.types)):
        if number % options.every or (options.limit is not None and len(rows) >= options.limit):
            continue
        try:
            row = compare(*point)
        except Exception as problem:  # a point that cannot be traced is reported, not hidden
            print(f"{point[0]:14} {point[1]:28} not traced: {type(problem).__name__}: {str(problem)[:80]}", flush=True)
            continue
        rows.append(row)
        print(
            f"{row['type']:14} {row['setup']:28} {row['error']:+8.3%} {row['phase']}/{row['traced_phase']} "
            f"forward end {row['forward_end_error']:+.3%} parameters {row['parameters']:+d}",
            flush=True,
        )
    if options.output:
        with open(options.output, "w", encoding="utf-8") as handle:
            handle.writelines(json.dumps(row) + "\n" for row in rows)
    if rows:
        errors = [abs(row["error"]) for row in rows]
        phases = sum(row["phase"] == row["traced_phase"] for row in rows)
        print(
            f"{len(rows)} points: median error {statistics.median(errors):.4%}, worst {max(errors):.3%}, "
            f"phase right in {phases / len(rows):.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
