"""Adapters and quantised bases of published runs."""

from __future__ import annotations

import re

from benchmarks.accuracy.measured_rows import Row, whole
from benchmarks.accuracy.skipped import Inexpressible
from memlint.job import Lora, Quantization

PEFT = (
    "ia3", "oft", "boft", "vera", "loha", "miss", "bone", "hra", "road", "fourierft", "c3a", "shira", "hira", "randlora",
    "vblora", "delora",
)  # fmt: skip
"""Kinds of PEFT's comparison. LoKr's `factor4` has no field of the job, AdaLoRA's rows do not state ``init_r``."""
KINDS = {
    "prompt_tuning": "prompt",
    "prefix_tuning": "prefix",
    "p_tuning": "p-tuning",
    "ln_tuning": "ln-tuning",
    **{kind: kind for kind in PEFT},
}
"""method of a row -> of a job."""

TARGETS = {
    "w1": ("gate_proj",),
    "w2": ("up_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "output_proj": ("o_proj",),
}
"""Module names of code that came with a checkpoint -> names of the shape that stands for it."""
EXPRESSION = re.compile(r"[(\[|*]")
"""What no module name holds, but the regular expressions do that PEFT takes instead of names."""
MOST_RANK = 65536
"""Highest rank that a job may have (schemas/job.schema.json)."""
PLAIN = r"(bf16|fp16|fp32|fp16/bf16|16-bit( \(AUTO.*\))?)?"
"""``param_dtype`` of weights that are not quantised; an empty cell is taken as plain."""


def lora_of(row: Row, hidden_size: int) -> Lora:
    """The adapter of a row: rank, targets by the names of the shape that stands for the model, dtype and dropout.

    Raises Inexpressible for a rank that is none, and for an OFT row that does not state its number of blocks.
    """
    framework = row.framework
    words = _words(row["lora_targets"])
    saved: tuple[str, ...] = ()
    if "emb" in words:
        words = [w for w in words if w not in ("emb", "lm_head")]
        saved = ("embed_tokens", "lm_head")
    targets: str | tuple[str, ...]
    if words and EXPRESSION.search(words[0]):
        targets = words[0]
    elif words in (["all-linear"], []):
        targets = "all-linear" if words else "default"
        if framework == "torchtune":
            targets = ("q_proj", "v_proj", "output_proj", "mlp")
    elif framework in ("litgpt", "torchtune"):
        targets = tuple(words)
    else:
        expanded: list[str] = []
        for word in words:
            # c_proj is both the attention's and the feed-forward's output in Qwen's code.
            both = ("o_proj", "down_proj") if word == "c_proj" else TARGETS.get(word.lower(), (word,))
            expanded.extend(both)
        targets = tuple(expanded)
    half = framework in ("litgpt", "torchtune")
    rank = whole(row["lora_rank"] or "0")
    if rank is None or rank > MOST_RANK or (row["lora_rank"] and not rank):
        raise Inexpressible(f"lora_rank `{row['lora_rank'][:20]}`")
    if row["method"] == "oft" and not 0 < rank <= hidden_size:
        raise Inexpressible("OFT's number of blocks is not stated")
    return Lora(
        rank=rank or 8,
        targets=targets,
        dropout=_dropout(row) if row["method"] not in KINDS else 0.0,
        dora=row["method"] == "dora",
        block_size=hidden_size // rank if row["method"] == "oft" else None,
        modules_to_save=saved,
        dtype="bf16" if half else "fp32",
    )


def _words(targets: str) -> list[str]:
    """Names joined by ``+``; a regular expression, which has a ``+`` of its own, stays whole."""
    if targets.startswith("framework default"):
        # ms-swift 2.x llm/utils/model.py LoRATM: the fused product, whatever a model calls it, or the three in its place.
        return ["c_attn", "query_key_value", "W_pack", "q_proj", "k_proj", "v_proj"]
    return [targets] if EXPRESSION.search(targets) else [word for word in targets.split("+") if word]


def _dropout(row: Row) -> float:
    # config_hub/finetune of litgpt and its scripts: 0.05; torchtune's recipes and axolotl's examples: 0.0 and 0.05;
    # Qwen's finetune.py, ms-swift and LLaMA-Factory defaults: 0.05, 0.05, 0.0.
    if "method_comparison" in row["framework"]:
        return 0.0  # lora_dropout of its experiments/lora/*/adapter_config.json
    return {"torchtune": 0.0, "llamafactory": 0.0, "unsloth": 0.0}.get(row.framework, 0.05)


def quantization_of(row: Row) -> Quantization | None:
    """The quantised base that a row's ``param_dtype`` names; None for a plain one.

    Raises Inexpressible for another form of storage.
    """
    stored = row["param_dtype"].lower()
    if "gptq" in stored or "awq" in stored:
        bits = 8 if "int8" in stored else 4
        return Quantization(type="gptq", bits=bits, kbit_preparation=False)
    if "bnb" in stored or "nf4" in stored or "4-bit" in stored:
        if "int8" in stored:
            return Quantization(type="int8", bits=8)
        # ms-swift 1.6 llm/utils/argument.py: bnb_4bit_use_double_quant = True; axolotl's loader sets it too.
        double = "dq" in stored or (row.framework != "litgpt" and "nf4" in stored)
        double = double or row.framework in ("axolotl", "ms-swift")
        # peft's scripts and Qwen's finetune.py prepare a 4-bit model; so did axolotl, which casts norms and embeddings
        # back since August 2023 (src/axolotl/utils/models.py load_model; then for flash attention alone). LLaMA-Factory
        # and ms-swift 1.6 prepare nothing, litgpt and torchtune have code of their own.
        early = row.framework == "axolotl" and row.date < "2023-08"
        prepared = early or (
            row.framework in ("peft", "hf-trainer", "qwen-finetune") and "no k-bit preparation" not in row["notes"]
        )
        experts = "loaded"
        if row.framework == "axolotl":
            # Its examples of mixtures say `quantize_moe_experts`, or `llama4_linearized_experts`.
            experts = "linear" if "linearized" in row["model"].lower() else "fused"
        return Quantization(type="nf4", bits=4, double_quant=double, kbit_preparation=prepared, experts=experts)
    if not re.fullmatch(PLAIN, stored, re.IGNORECASE):
        raise Inexpressible(f"param_dtype `{row['param_dtype'][:40]}`")
    return None
