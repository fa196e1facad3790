"""Published runs turned into jobs, with the versions of that day's libraries."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.accuracy.measured_models import architecture_of
from benchmarks.accuracy.measured_rows import Row
from memlint.job import (
    Checkpointing,
    Hardware,
    Lora,
    Parallelism,
    Precision,
    Quantization,
    Training,
    TrainingJob,
    replace_fields,
)
from memlint.models.architecture import Architecture
from memlint.models.traits import MASK_PER_LAYER
from memlint.records import replace


class Inexpressible(Exception):
    """The row cannot be said as a job; the text says why."""


TRANSFORMERS = (
    ("2021-12", "4.15"), ("2022-01", "4.16"), ("2022-12", "4.25"), ("2023-04", "4.28"), ("2023-06", "4.30"),
    ("2023-07", "4.31"), ("2023-09", "4.33"), ("2023-10", "4.34"), ("2023-11", "4.35"), ("2023-12", "4.36"),
    ("2024-01", "4.37"), ("2024-02", "4.38"), ("2024-03", "4.39"), ("2024-04", "4.40"), ("2024-05", "4.41"),
    ("2024-06", "4.42"), ("2024-07", "4.43"), ("2024-08", "4.44"), ("2024-09", "4.45"), ("2024-10", "4.46"),
    ("2024-12", "4.47"), ("2025-01", "4.48"), ("2025-02", "4.49"), ("2025-03", "4.50"), ("2025-04", "4.51"),
    ("2025-05", "4.52"), ("2025-06", "4.53"), ("2025-07", "4.54"), ("2025-08", "4.56"), ("2025-10", "4.57"),
    ("2026-01", "5.0"), ("2026-02", "5.2"), ("2026-03", "5.4"), ("2026-04", "5.6"),
)  # fmt: skip
"""Month of release on PyPI -> minor version of transformers."""

OPTIMIZERS = {
    "adamw": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw-fused",
    "deepspeed adamw": "adamw-fused",
    "adamw(fused)": "adamw-fused",
    "adamw (trainer default of the time)": "adamw-for-loop",
    "bnb.pagedadamw": "paged-adamw",
    "bnb.pagedadamw8bit": "paged-adamw-8bit",
    "paged_adamw_32bit": "paged-adamw",
    "paged_adamw_8bit": "paged-adamw-8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "bnb.adamw8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "torchao.adamw8bit": "adamw-8bit",
    "adamw_torch_4bit": "adamw-4bit",
    "muon": "muon",
}

GPUS = {
    "a100": "A100-80GB",
    "a100-sxm4-80gb": "A100-80GB",
    "a100-sxm4-40gb": "A100-40GB",
    "nvidia l40s": "L40S",
    "h100-80gb hbm3": "H100-80GB",
    "v100-sxm2-16gb": "V100-16GB",
    "rtx 5090 (31.36 gib)": "RTX 5090",
    "3090": "RTX 3090",
    "a800-80gb": "A800-80GB",
    "24gb class (rtx 4090 named for the time)": "RTX 4090",
}
"""Published GPU name, lower case -> target; other names are tried as they are."""


def _attention(row: Row) -> str:
    if row["attention"] in ("flash", "eager"):
        return row["attention"]
    # "flash attention off": Qwen's code then multiplies scores out itself (QWenAttention._attn).
    return "eager" if "flash attention off" in row["notes"] else "sdpa"


def transformers_version(month: str) -> str:
    """The newest minor version of transformers released by a month (``2024-01``)."""
    chosen = TRANSFORMERS[0][1]
    for released, version in TRANSFORMERS:
        if released <= month:
            chosen = version
    return chosen


def target_name(row: Row) -> str | None:
    """The declared target of a row; None when no single GPU is named."""
    name = row["gpu"]
    lower = name.lower()
    if not name or "," in name or "..." in name:
        return None
    size = re.fullmatch(r"(\d+)gb class.*", lower)
    return GPUS.get(lower) or (f"{size.group(1)}GB" if size else name)


PEFT = ("ia3", "oft", "boft", "vera", "loha")
"""Kinds of PEFT's comparison. LoKr's `factor4` has no field of the job, AdaLoRA's rows do not state ``init_r``."""
KINDS = {"prompt_tuning": "prompt", "prefix_tuning": "prefix", **{kind: kind for kind in PEFT}}
"""method of a row -> of a job."""


def job_of(row: Row) -> TrainingJob:
    """Turn a row into a job. Raises Inexpressible with the reason when it says too little or too much."""
    if row.gpus != 1:
        raise Inexpressible("several GPUs")
    if not row["seq_len"].isdigit() or not row["micro_batch"].isdigit():
        raise Inexpressible("length or micro batch is not stated")
    architecture = architecture_of(row["model"], row["params_b"])
    if architecture is None:
        raise Inexpressible(f"the shape of {row['model']} is not known")
    framework = row.framework
    if framework == "unsloth":
        raise Inexpressible("unsloth replaces the model's forward and backward by kernels of its own")
    if framework == "qwen-finetune" and architecture.num_hidden_layers < 80:
        # These rows were printed with Qwen's first code; 72B came after its masks were gone.
        architecture = replace(architecture, traits=architecture.traits | {MASK_PER_LAYER})
    method = KINDS.get(row["method"], row["method"])
    if method not in ("full", "lora", "qlora", "dora", "adapter", "adapter_v2", *KINDS.values()):
        raise Inexpressible(f"method {method}")
    return TrainingJob(
        model=row["model"],
        architecture=architecture,
        training=Training(
            objective=_objective(row),
            method="lora" if method == "dora" else method,
            lora=_lora(row, architecture.hidden_size) if method in ("lora", "qlora", "dora", *PEFT) else None,
            virtual_tokens=_virtual_tokens(row, architecture),
            quantization=_quantization(row),
            micro_batch_size=int(row["micro_batch"]),
            sequence_length=int(row["seq_len"]),
            packing="packed" in row["packing_or_real_len"],
            **_lengths(row),
            longest_once="longest" in row["packing_or_real_len"] and "cap" not in row["packing_or_real_len"],
            gradient_accumulation_steps=_accumulation(row),
            precision=_precision(row),
            optimizer=_optimizer(row),
            optimizer_in_backward="optimizer step in backward" in row["notes"] or "fused into backward" in row["notes"],
            max_grad_norm=None if framework in ("litgpt", "torchtune") else 1.0,
            checkpointing=_checkpointing(row),
            attention=_attention(row),
            loss=_loss(row),
            compile=row["compile"] == "yes",
        ),
        parallelism=_parallelism(row),
        hardware=Hardware(target=target_name(row)),
        framework=framework,
        versions=_versions(row),
    )


def _virtual_tokens(row: Row, architecture: Architecture) -> int:
    """Tokens of a trained prompt, from the row's count of what trains."""
    stated = re.search(r"trainable (\d+)", row["notes"])
    width = architecture.hidden_size
    if row["method"] == "prefix_tuning":
        heads = architecture.get("num_attention_heads", 1)
        size = architecture.get("num_key_value_heads", heads) * (architecture.get("head_dim") or width // heads)
        width = 2 * architecture.num_hidden_layers * size
    return max(1, int(stated.group(1)) // width) if stated and row["method"] in KINDS else 20


def _accumulation(row: Row) -> int:
    """Micro batches a step; some sources give the global batch instead (``global batch 16``)."""
    stated = row["grad_accum"] or "1"
    if stated.isdigit():
        return int(stated)
    whole = re.fullmatch(r"global batch (\d+)", stated)
    if whole is None:
        raise Inexpressible(f"accumulation {stated}")
    return max(1, int(whole.group(1)) // int(row["micro_batch"]))


def _lengths(row: Row) -> dict[str, Any]:
    """What is known of the samples' lengths; only where the figure is of reserved memory, or may be.

    ms-swift's Benchmark page gives its data set's tokens, 3234.4 +- 2547.5, and sets no truncation_strategy. Its
    default is ``delete`` (swift/llm/utils/argument.py, 1.6.0): longer samples are left out, and so the lengths vary.
    The page's throughputs agree: 4.31 samples/s at a cap of 2048 against 7.43 at 512.
    """
    if row.framework in ("litgpt", "torchtune"):
        return {}
    stated = re.search(r"token mean (\d+) \(sd (\d+)\)", row["packing_or_real_len"])
    if stated:
        return {
            "length_mean": int(stated.group(1)),
            "length_deviation": int(stated.group(2)),
            "drops_long": row.framework == "ms-swift",
        }
    return {"length_mean": int(row["seq_len"])} if row.length == "exact" else {}


def alternatives(row: Row, job: TrainingJob) -> list[TrainingJob]:
    """The same run under what its source leaves open: adapters in the weights' dtype, as PEFT 0.6 to 0.11 keeps them.

    peft 0.7.1 tuners/lora/layer.py update_layer: ``self.to(weight.device, dtype=weight.dtype)``; 0.5 and 0.12 on: fp32.
    """
    lora = job.training.lora
    if row.framework not in ("qwen-finetune", "peft", "hf-trainer") or lora is None:
        return []
    if not "2023-11" <= row.date < "2024-08":
        return []
    return [replace_fields(job, {"training.lora.dtype": job.training.precision.weights})]


def _objective(row: Row) -> str:
    return "sequence-classification" if "classification" in row["model"] else "causal-lm"


def _optimizer(row: Row) -> str:
    name = row["optimizer"].lower()
    if name and name not in OPTIMIZERS:
        raise Inexpressible(f"optimizer {row['optimizer']}")
    if row.framework == "torchtune" and name == "adamw":
        # 91 of the 95 configs of torchtune 0.4.0 that name torch.optim.AdamW write `fused: True` under it, and a fifth
        # copy of the parameters (foreach) does not go into the published 24.9 GiB of a 3B model.
        return "adamw-fused"
    if row["sharding"].startswith("zero") and name in ("adamw", "adamw_torch"):
        return "adamw-fused"  # DeepSpeed's FusedAdam for "type": "AdamW" (Qwen finetune/ds_config_zero*.json)
    return OPTIMIZERS.get(name, "adamw")


def _checkpointing(row: Row) -> Checkpointing:
    mode = row["activation_checkpointing"]
    if mode not in ("full", "none", "offload"):
        raise Inexpressible("whether activations are checkpointed is not stated")
    # transformers' gradient_checkpointing_enable defaulted to the reentrant form in all of version 4.
    # ms-swift 1.6 replaces checkpoint by its non-reentrant form from torch 2.1 on (llm/utils/model.py,
    # fix_gradient_checkpointing_warning).
    own = row.framework in ("litgpt", "torchtune", "ms-swift")
    reentrant = not own and not _versions(row)["transformers"].startswith("5")
    return Checkpointing(mode="none" if mode == "none" else "full", reentrant=reentrant, offload=mode == "offload")


def _loss(row: Row) -> str:
    if row.framework in ("litgpt", "torchtune"):
        return "chunked" if row["fused_ce"] == "chunked" else "standard"
    return {"chunked": "fused", "liger": "fused"}.get(row["fused_ce"], "standard")


_QWEN_ZERO: dict[str, dict[str, Any]] = {
    "zero2": {"reduce_bucket_elements": 200_000_000, "overlap_comm": True},
    "zero3": {
        "reduce_bucket_elements": -1,
        "prefetch_bucket_elements": -1,
        "persistence_threshold_elements": -1,
        "overlap_comm": True,
    },
}
"""github.com/QwenLM/Qwen finetune/ds_config_zero2.json and ds_config_zero3.json, which its README's runs used."""


def _parallelism(row: Row) -> Parallelism:
    strategy = row["sharding"] or "none"
    if strategy not in ("none", "zero2", "zero3"):
        raise Inexpressible(f"sharding {strategy}")
    found = Parallelism(strategy=strategy, gpus=1, offload="all" if row["cpu_offload"] == "yes" else "none")
    if row.framework == "qwen-finetune":
        return replace(found, **_QWEN_ZERO.get(strategy, {}))
    return found


def _precision(row: Row) -> Precision:
    compute = row["compute_dtype"] if row["compute_dtype"] in ("bf16", "fp16", "fp32") else "bf16"
    stored = row["param_dtype"]
    if stored == "fp32":
        return Precision(weights="fp32", autocast=None if compute == "fp32" else compute)
    if row.framework in ("litgpt", "torchtune"):
        return Precision(weights=compute, autocast=None)
    if row["sharding"].startswith("zero"):
        # DeepSpeed's engine casts the module and keeps fp32 masters of what trains.
        return Precision(weights=compute, autocast=None, gradients=compute, master_weights=True)
    return Precision(weights=compute, autocast=compute, grad_scaler=compute == "fp16")


TARGETS = {
    "c_attn": ("q_proj", "k_proj", "v_proj"),
    "w_pack": ("q_proj", "k_proj", "v_proj"),
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "w1": ("gate_proj",),
    "w2": ("up_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "output_proj": ("o_proj",),
}
"""Module names of code that came with a checkpoint -> names of the shape that stands for it."""


def _lora(row: Row, hidden_size: int) -> Lora:
    framework = row.framework
    words = [w for w in re.split(r"\+", row["lora_targets"]) if w]
    saved: tuple[str, ...] = ()
    if "emb" in words:
        words = [w for w in words if w not in ("emb", "lm_head")]
        saved = ("embed_tokens", "lm_head")
    targets: str | tuple[str, ...]
    if words in (["all-linear"], []):
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
    return Lora(
        rank=int(row["lora_rank"]) if row["lora_rank"].isdigit() else 8,
        targets=targets,
        dropout=_dropout(row) if row["method"] not in KINDS else 0.0,
        dora=row["method"] == "dora",
        block_size=hidden_size // int(row["lora_rank"]) if row["method"] == "oft" else None,
        modules_to_save=saved,
        dtype="bf16" if half else "fp32",
    )


def _dropout(row: Row) -> float:
    # config_hub/finetune of litgpt and its scripts: 0.05; torchtune's recipes and axolotl's examples: 0.0 and 0.05;
    # Qwen's finetune.py, ms-swift and LLaMA-Factory defaults: 0.05, 0.05, 0.0.
    return {"torchtune": 0.0, "llamafactory": 0.0, "unsloth": 0.0}.get(row.framework, 0.05)


def _quantization(row: Row) -> Quantization | None:
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
        # peft's scripts and Qwen's finetune.py prepare a 4-bit model; axolotl casts the embeddings back, LLaMA-Factory
        # and ms-swift 1.6 prepare nothing, litgpt and torchtune have code of their own.
        prepared = row.framework in ("peft", "hf-trainer", "qwen-finetune")
        experts = "loaded"
        if row.framework == "axolotl":
            # Its examples of mixtures say `quantize_moe_experts`, or `llama4_linearized_experts`.
            experts = "linear" if "linearized" in row["model"].lower() else "fused"
        return Quantization(type="nf4", bits=4, double_quant=double, kbit_preparation=prepared, experts=experts)
    return None


PRINTED = {"examples/qwen3.5/": "5.3"}
"""Page of a source -> newest transformers its figures can have run on, where that is older than the page's own date.

axolotl: the table of examples/qwen3.5 came with its pull requests 3442 and 3499 (6 to 20 March 2026), and axolotl
required 5.4 from pull request 3562 on (31 March 2026).
"""


def _versions(row: Row) -> dict[str, str]:
    text = row["framework_version_or_date"]
    printed = [version for page, version in PRINTED.items() if page in row["source"]]
    versions = {"transformers": printed[0] if printed else transformers_version(row.date)}
    torch = re.search(r"torch (\d+\.\d+)", text)
    if torch:
        versions["torch"] = torch.group(1)
    bnb = re.search(r"bnb ([\d.]+\d)", text)
    if bnb:
        versions["bitsandbytes"] = bnb.group(1)
    if row.framework == "litgpt":
        versions["litgpt"] = _litgpt_version(row)
        versions["bitsandbytes"] = "0.41.1" if versions["litgpt"].startswith("2023") else "0.42.0"
    if row.framework == "torchtune":
        versions["torchtune"] = "0.4.0" if row.date >= "2024-11" else "0.3.0"
    return versions


def _litgpt_version(row: Row) -> str:
    """litgpt by the model: config_hub's table gained a model when its release did (CHANGELOG of GitHub releases)."""
    if row.date < "2024-01":
        return row.date.replace("-", ".")
    model = row["model"].lower()
    if "llama-3." in model or "gemma-2-" in model or (model == "gemma-2b" and row["params_b"].startswith("2.6")):
        return "0.4.13"
    return "0.4.0"
