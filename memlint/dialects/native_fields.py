"""The native job file's keys: kind, bounds and choices. The gate (:mod:`.native_gate`) and
``schemas/job.schema.json`` come from here.
"""

from __future__ import annotations

from typing import NamedTuple

from memlint.dialects.native_choices import (
    CHECKPOINTING,
    FP8_RECIPES,
    METHODS,
    OBJECTIVES,
    OPTIMIZERS,
    PRECISIONS,
    STRATEGIES,
)


class Field(NamedTuple):
    """One key: ``kind`` is integer, number, boolean, string, choice or strings; ``nullable`` accepts null."""

    kind: str
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    nullable: bool = False


_HALF = ("fp32", "bf16", "fp16")
_COUNT = 1_000_000
_TOKENS = 100_000_000
_ELEMENTS = 10**15


def _count(doc: str, maximum: int = _COUNT, *, minimum: int = 1, nullable: bool = False) -> Field:
    return Field("integer", doc, minimum=minimum, maximum=maximum, nullable=nullable)


def _flag(doc: str) -> Field:
    return Field("boolean", doc)


LORA: dict[str, Field] = {
    "rank": _count("rank of the two factors", 65536),
    "alpha": Field("number", "scaling; no memory", nullable=True),
    "targets": Field("strings", "`all-linear`, `default` (PEFT's table), a regular expression, or module name endings"),
    "dropout": Field("number", "above 0, each target keeps a dropped copy of its input", minimum=0, maximum=1),
    "dora": _flag("weight-decomposed LoRA"),
    "modules_to_save": Field("strings", "modules trained in full beside the adapter"),
    "dtype": Field("choice", "dtype of adapter weights", _HALF),
    "kernels": _flag("fused LoRA autograd functions"),
    "target_parameters": Field("strings", "three-dimensional expert parameters that get adapters"),
    "block_size": _count("oft, boft: features that are turned together; null: PEFT's default", 65536, nullable=True),
}
QUANTIZATION: dict[str, Field] = {
    "bits": Field("integer", "bits of a stored weight", minimum=1, maximum=8),
    "type": Field("choice", "format", ("nf4", "fp4", "int8", "gptq", "awq", "aqlm", "hqq", "fp8", "nvfp4")),
    "double_quant": _flag("absmax values quantised again"),
    "block_size": _count("weights that share an absmax", 1 << 20),
    "group_size": Field("integer", "gptq, awq: inputs that share a scale; -1: all", minimum=-1, maximum=1 << 20),
    "skip": Field("strings", "linear modules left as they are"),
    "storage": Field("string", "bnb_4bit_quant_storage"),
    "kbit_preparation": _flag("peft.prepare_model_for_kbit_training: other half-precision parameters become fp32"),
    "experts": Field(
        "choice",
        "expert parameters: as loaded; fused: packed and dequantised whole; linear: a linear module an expert",
        ("loaded", "fused", "linear"),
    ),
}
PRECISION: dict[str, Field] = {
    "weights": Field("choice", "dtype in which the model is loaded; auto: the checkpoint's", (*_HALF, "auto")),
    "trainable_weights": Field("choice", "dtype of trainable base parameters; null: as weights", _HALF, nullable=True),
    "autocast": Field(
        "choice",
        "torch.autocast dtype; null: the forward runs in the dtype of the weights; fp8: a float8 recipe",
        ("bf16", "fp16", "fp8"),
        nullable=True,
    ),
    "gradients": Field("choice", "dtype of gradients; null: as the parameter", _HALF, nullable=True),
    "optimizer": Field("choice", "dtype of optimizer states; null: as the parameter", _HALF, nullable=True),
    "master_weights": _flag("a separate fp32 copy of half-precision trainable parameters"),
    "fp32_modules": Field("strings", "name fragments of modules kept in fp32"),
    "fp8": _flag("linear layers compute in float8"),
    "fp8_recipe": Field(
        "choice", "torchao's scaling, or transformer-engine; null: the framework's own", FP8_RECIPES, nullable=True
    ),
    "grad_scaler": _flag("GradScaler of fp16 autocast"),
}
ACTIVATION_CHECKPOINTING: dict[str, Field] = {
    "mode": Field("choice", "none, full, selective or offload", CHECKPOINTING),
    "every": _count("checkpoint every n-th layer", 10_000),
    "reentrant": _flag("torch.utils.checkpoint use_reentrant; true where left out with mode offload"),
    "offload": _flag("checkpoint inputs go to pinned host memory"),
    "save": Field("strings", "selective: operations whose output is kept"),
}
TRAINING: dict[str, Field] = {
    "objective": Field(
        "choice",
        "what is trained; ipo and simpo hold what dpo does, simpo without a reference, rloo what grpo",
        OBJECTIVES,
    ),
    "method": Field("choice", "which parameters are trained", METHODS),
    "virtual_tokens": _count("prompt, p-tuning, prefix: trained tokens in front of a sequence", 65536),
    "micro_batch_size": _count(
        "sequences on one GPU in one forward; pairs for dpo, orpo and reward, rows of all columns for contrastive"
    ),
    "sequence_length": _count("tokens of a sequence after padding or packing", _TOKENS),
    "target_sequence_length": _count(
        "tokens of the decoder's sequence; null: as sequence_length", _TOKENS, nullable=True
    ),
    "packing": _flag("rows are full: samples are packed to sequence_length"),
    "varlen": _flag("packed rows run as one flat row with cumulative lengths"),
    "padding": _flag("batches carry a padding mask, which can cost sdpa its flash kernel"),
    "length_mean": _count(
        "mean tokens of a sample before cutting, where lengths vary; null: all are full", _TOKENS, nullable=True
    ),
    "length_deviation": _count("standard deviation of a sample's tokens", _TOKENS, nullable=True),
    "drops_long": _flag("samples longer than sequence_length are left out, not cut to it"),
    "longest_once": _flag("only the longest sample reaches sequence_length, so full batches never follow each other"),
    "gradient_accumulation_steps": _count("micro batches before a step; above 1, gradients live through the forward"),
    "optimizer": Field("choice", "optimizer", OPTIMIZERS),
    "optimizer_rank": _count("GaLore, APOLLO: rank of their space; null: 128", 1 << 20, minimum=1, nullable=True),
    "optimizer_targets": Field("strings", "GaLore, APOLLO: name fragments of linear layers; none: all but the head"),
    "optimizer_in_backward": _flag("each gradient is applied and freed inside backward"),
    "fp32_embedding_states": _flag("bitsandbytes' 8-bit optimizers: embeddings keep fp32 states, as HF's Trainer asks"),
    "max_grad_norm": Field("number", "clipping; null: none", minimum=0, nullable=True),
    "attention": Field("choice", "attention kernel", ("eager", "sdpa", "flash", "flex")),
    "loss": Field(
        "choice",
        "standard: all logits; chunked: a chunk at a time; fused: never (Liger); cut-cross-entropy: never, in kernels; "
        "token-weighted, dft, eaft, asft: LLaMA-Factory's own over all logits",
        ("standard", "chunked", "fused", "cut-cross-entropy", "token-weighted", "dft", "eaft", "asft"),
    ),
    "liger": Field("strings", "Liger kernels beside the loss: rms_norm swiglu rope layer_norm"),
    "compile": _flag("torch.compile"),
    "freeze": Field("strings", "name fragments of frozen modules"),
    "trainable_layers": Field(
        "integer",
        "method freeze: how many last layers train; null: all",
        minimum=-10_000,
        maximum=10_000,
        nullable=True,
    ),
    "trainable_patterns": Field("strings", "method freeze: name fragments that stay trainable"),
    "reference_model": Field(
        "choice", "second model of dpo, kto, grpo, ppo", ("none", "copy", "adapter", "precomputed")
    ),
    "vocab_size": _count("embedding rows after resizing; null: as the config says", 10_000_000, nullable=True),
    "num_generations": _count("grpo: completions of one prompt"),
    "completion_length": _count("grpo, ppo: tokens generated for a completion", _TOKENS, nullable=True),
    "reward_model": Field(
        "choice",
        "ppo: none, copy (a second frozen model) or adapter (another adapter on the policy)",
        ("none", "copy", "adapter"),
    ),
    "value_model": Field(
        "choice", "ppo: copy (a model of its own) or head (a linear layer on the policy)", ("copy", "head")
    ),
    "reward_model_name": Field(
        "string",
        "ppo: model of the reward model's shape, and of a value model of its own; null: the policy",
        nullable=True,
    ),
    "rollouts": _count(
        "ppo: completions a GPU gathers for an update; null: micro batch times accumulation", nullable=True
    ),
    "rollout_batch_size": _count("ppo: completions generated and scored at a time; null: a micro batch", nullable=True),
    "mini_batches": _count("ppo: parts into which the gathered completions are divided"),
    "columns": _count(
        "contrastive: texts of a row that are embedded: 2 a pair, 3 with a hard negative", 100, minimum=2
    ),
    "pooling": Field("choice", "contrastive: what makes the embedding of a text", ("mean", "cls", "last-token")),
    "embedding_mini_batch": _count(
        "contrastive: rows embedded at a time, gradients cached (GradCache); null: a column at once", nullable=True
    ),
    "vllm_memory_share": Field("number", "share of the GPU that a colocated vLLM engine takes", minimum=0, maximum=1),
    "images": _count("images in a sequence", 100_000, minimum=0),
    "image_pixels": _count("pixels of one image after resizing; null: the processor's default", 10**9, nullable=True),
    "eval_micro_batch_size": _count("rows of an evaluation forward; null: no evaluation", nullable=True),
}
PARALLELISM: dict[str, Field] = {
    "strategy": Field("choice", "how the run is divided; fsdp is fsdp2", STRATEGIES),
    "gpus": _count("GPUs in all; null: those of the target", nullable=True),
    "shard": _count("data-parallel shard size (hsdp); null: all data-parallel ranks", nullable=True),
    "reshard_after_forward": _flag("FSDP; false keeps gathered parameters until backward"),
    "tensor": _count("tensor-parallel size"),
    "pipeline": _count("pipeline stages"),
    "context": _count("context-parallel size"),
    "expert": _count("expert-parallel size"),
    "sequence_parallel": _flag("norms and dropout divided along the sequence, with tensor parallelism"),
    "offload": Field("choice", "what lives in host memory", ("none", "optimizer", "parameters", "all", "experts")),
    "expert_format": Field(
        "choice", "frozen experts in host memory, with offload: experts", ("bf16", "int8", "fp8", "rawint4", "mxfp4")
    ),
    "reduce_bucket_elements": _count(
        "DeepSpeed reduce bucket; -1: hidden_size^2", _ELEMENTS, minimum=-1, nullable=True
    ),
    "allgather_bucket_elements": _count(
        "DeepSpeed allgather bucket; without an effect on memory", _ELEMENTS, minimum=-1, nullable=True
    ),
    "prefetch_bucket_elements": _count("ZeRO-3 prefetch bucket", _ELEMENTS, minimum=-1, nullable=True),
    "persistence_threshold_elements": _count(
        "ZeRO-3: parameters below it stay replicated", _ELEMENTS, minimum=-1, nullable=True
    ),
    "max_live_elements": _count(
        "ZeRO-3: parameters gathered at a time, as far as they are prefetched", _ELEMENTS, minimum=0, nullable=True
    ),
    "max_reuse_elements": _count(
        "ZeRO-3: parameters used again within it stay gathered", _ELEMENTS, minimum=0, nullable=True
    ),
    "sub_group_elements": _count("ZeRO-3: what one call of the optimizer updates", _ELEMENTS, minimum=0, nullable=True),
    "contiguous_gradients": Field("boolean", "DeepSpeed: gradients are copied into a reduce bucket", nullable=True),
    "overlap_comm": Field("boolean", "DeepSpeed: a second reduce bucket in stages 1 and 2", nullable=True),
    "communication_dtype": Field(
        "choice",
        "DeepSpeed: dtype of gradients on their way; null: the weights'",
        ("fp32", "bf16", "fp16"),
        nullable=True,
    ),
    "immediate_gradients": _flag("DeepSpeed stage 1, bf16 summed in fp32: each gradient is added when it is there"),
    "gradient_as_bucket_view": _flag("DDP gradients are views of its buckets"),
    "wrap": Field("choice", "FSDP unit", ("layer", "none", "size")),
    "state_dict": Field("choice", "form of an FSDP checkpoint", ("full", "sharded"), nullable=True),
}
HARDWARE: dict[str, Field] = {
    "target": Field(
        "string", "[NODESx][COUNTx]GPU[:PARTITION], a cloud instance, or a size: 8xA100-80GB, 16GiB", nullable=True
    ),
    "reserve": Field("integer", "bytes of each GPU that other processes hold", minimum=0, maximum=10**15),
    "host_memory": Field(
        "integer", "bytes of a node's main memory; null: the target's", minimum=0, maximum=10**15, nullable=True
    ),
}
SECTIONS: dict[str, dict[str, Field]] = {
    "training": TRAINING,
    "training.lora": LORA,
    "training.quantization": QUANTIZATION,
    "training.precision": PRECISION,
    "training.activation_checkpointing": ACTIVATION_CHECKPOINTING,
    "parallelism": PARALLELISM,
    "hardware": HARDWARE,
}
"""Section -> its keys. ``precision`` and ``activation_checkpointing`` may also be one of their short names."""
SHORT: dict[str, tuple[str, ...]] = {"precision": PRECISIONS, "activation_checkpointing": CHECKPOINTING}
NESTED = ("lora", "quantization", "precision", "activation_checkpointing")
TOP = ("memlint", "model", "training", "parallelism", "hardware", "versions")
