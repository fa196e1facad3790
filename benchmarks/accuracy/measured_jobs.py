"""Published runs turned into jobs."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.accuracy.measured_adapters import KINDS, PEFT, lora_of, quantization_of
from benchmarks.accuracy.measured_models import architecture_of
from benchmarks.accuracy.measured_rows import OVERFULL, Row, whole
from benchmarks.accuracy.measured_versions import versions_of
from benchmarks.accuracy.skipped import MOST_TOKENS, Inexpressible
from memlint.job import (
    Checkpointing,
    Hardware,
    Parallelism,
    Precision,
    Training,
    TrainingJob,
    replace_fields,
)
from memlint.models.architecture import Architecture
from memlint.models.traits import MASK_PER_LAYER
from memlint.records import replace

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


WORDS: dict[str, tuple[str, ...]] = {
    "attention": ("flash", "eager", "sdpa", "flex", "xformers", "unknown"),
    "compute_dtype": ("bf16", "fp16", "fp32", "fp16/bf16"),
    "fused_ce": ("none", "chunked", "liger", "unknown"),
    "compile": ("yes", "no", "unknown"),
    "cpu_offload": ("yes", "no"),
    "oom": ("yes", "no"),
}
"""What these columns may say; an empty cell is unknown. Another word is a setting that no job has."""
MOST_ACCUMULATION = 10**6
"""Most micro batches of a step that a job may have (schemas/job.schema.json)."""


def _attention(row: Row) -> str:
    if row["attention"] in ("flash", "eager"):
        return row["attention"]
    # "flash attention off": Qwen's code then multiplies scores out itself (QWenAttention._attn).
    return "eager" if "flash attention off" in row["notes"] else "sdpa"


def target_name(row: Row) -> str | None:
    """The declared target of a row; None when no single GPU is named."""
    name = row["gpu"]
    lower = name.lower()
    if not name or "," in name or "..." in name:
        return None
    size = re.fullmatch(r"(\d+)gb class.*", lower)
    return GPUS.get(lower) or (f"{size.group(1)}GB" if size else name)


METRICS = ("max_memory_allocated", "active", "max_memory_reserved", "nvidia_smi", "unspecified_reported")
"""What a figure may be (../shared/measured/README.md)."""


def job_of(row: Row) -> TrainingJob:
    """Turn a row into a job. Raises Inexpressible with the reason when it says too little or too much."""
    if row.gpus != 1:
        raise Inexpressible("several GPUs" if row.gpus else f"num_gpus `{row['num_gpus'][:20]}` is no count")
    if row[OVERFULL]:
        raise Inexpressible("more cells than the file has columns")
    for name in ("seq_len", "micro_batch"):
        if not row[name].isdecimal():
            raise Inexpressible("length or micro batch is not stated")
        if not 0 < (whole(row[name]) or 0) <= MOST_TOKENS:
            raise Inexpressible(f"{name} {row[name][:20]} is out of bounds")
    if row["measured_gib"] and row.measured_bytes is None:
        raise Inexpressible(f"measured_gib `{row['measured_gib'][:20]}` is no size")
    if row["measured_gib"] and row["metric"] not in METRICS:
        raise Inexpressible(f"metric `{row['metric']}`")
    if not row["model"]:
        raise Inexpressible("the model is not named")
    architecture = architecture_of(row["model"], row["params_b"])
    if architecture is None:
        raise Inexpressible(f"the shape of {row['model']} is not known")
    framework = row.framework
    if framework == "unsloth":
        raise Inexpressible("unsloth replaces the model's forward and backward by kernels of its own")
    for name, words in WORDS.items():
        if row[name] and row[name] not in words:
            raise Inexpressible(f"{name} `{row[name][:40]}`")
    if framework == "qwen-finetune" and architecture.num_hidden_layers < 80:
        # These rows were printed with Qwen's first code; 72B came after its masks were gone.
        architecture = replace(architecture, traits=architecture.traits | {MASK_PER_LAYER})
    method = KINDS.get(row["method"], row["method"])
    if method not in ("full", "lora", "qlora", "dora", "adapter", "adapter_v2", *KINDS.values()):
        raise Inexpressible(f"method {method}")
    quantization = quantization_of(row)
    if method == "qlora" and quantization is None:
        raise Inexpressible(f"qlora over weights in `{row['param_dtype'][:40]}`")
    return TrainingJob(
        model=row["model"],
        architecture=architecture,
        training=Training(
            objective=_objective(row),
            method="lora" if method == "dora" else method,
            lora=lora_of(row, architecture.hidden_size) if method in ("lora", "qlora", "dora", *PEFT) else None,
            virtual_tokens=_virtual_tokens(row, architecture),
            quantization=quantization,
            micro_batch_size=int(row["micro_batch"]),
            sequence_length=int(row["seq_len"]),
            packing="packed" in row["packing_or_real_len"],
            padding=_padding(row),
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
        versions=versions_of(row),
    )


def _padding(row: Row) -> bool:
    """Whether batches carry a mask: transformers' tokenizers give one with what they pad (litgpt and torchtune do not)."""
    return row.framework == "peft" and "padded to the longest" in row["packing_or_real_len"]


def _virtual_tokens(row: Row, architecture: Architecture) -> int:
    """Tokens of a trained prompt, from the row's count of what trains."""
    stated = re.search(r"trainable (\d{1,12})(?!\d)", row["notes"])
    width = architecture.hidden_size
    if row["method"] == "prefix_tuning":
        heads = architecture.get("num_attention_heads", 1)
        size = architecture.get("num_key_value_heads", heads) * (architecture.get("head_dim") or width // heads)
        width = 2 * architecture.num_hidden_layers * size
    if stated is None or row["method"] not in KINDS:
        return 20
    # P-tuning's encoder trains three layers as wide as the model beside its tokens.
    encoder = 3 * (width * width + width) if row["method"] == "p_tuning" else 0
    return max(1, (int(stated.group(1)) - encoder) // width)


def _accumulation(row: Row) -> int:
    """Micro batches a step; some sources give the global batch instead (``global batch 16``)."""
    stated = row["grad_accum"] or "1"
    count = whole(stated)
    if count is None:
        batch = whole(stated.removeprefix("global batch ")) or 0
        count = max(1, batch // int(row["micro_batch"])) if batch else 0
    if not 0 < count <= MOST_ACCUMULATION:
        raise Inexpressible(f"accumulation {stated[:40]}")
    return count


def _lengths(row: Row) -> dict[str, Any]:
    """What is known of the samples' lengths; only where the figure is of reserved memory, or may be.

    ms-swift's Benchmark page gives its data set's tokens, 3234.4 +- 2547.5, and sets no truncation_strategy. Its
    default is ``delete`` (swift/llm/utils/argument.py, 1.6.0): longer samples are left out, and so the lengths vary.
    The page's throughputs agree: 4.31 samples/s at a cap of 2048 against 7.43 at 512.
    """
    if row.framework in ("litgpt", "torchtune"):
        return {}
    stated = re.search(r"token mean (\d{1,8}) \(sd (\d{1,8})\)", row["packing_or_real_len"])
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
    reentrant = not own and not versions_of(row)["transformers"].startswith("5")
    # axolotl asks for it by itself (0.19 utils/config/__init__.py normalize_config, for all but preference training).
    reentrant = reentrant or row.framework == "axolotl"
    return Checkpointing(mode="none" if mode == "none" else "full", reentrant=reentrant, offload=mode == "offload")


def _loss(row: Row) -> str:
    if row.framework in ("litgpt", "torchtune"):
        return "chunked" if row["fused_ce"] == "chunked" else "standard"
    if "cut cross entropy" in row["notes"]:
        return "cut-cross-entropy"
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
    if "amp=False" in row["notes"]:
        return Precision(weights=compute, autocast=None)  # use_amp of PEFT's method_comparison
    return Precision(weights=compute, autocast=compute, grad_scaler=compute == "fp16")
