"""The jobs: small Llama models under the stages of ZeRO, one setting varied at a time and some together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.job import Lora, Precision, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

Spec = dict[str, Any]
"""What differs from BASE: a JSON object."""
MODEL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 768,
    "vocab_size": 4096,
}
BASE: Spec = {
    "model": {},
    "lora": 0,
    "world": 1,
    "micro": 1,
    "sequence": 64,
    "accumulation": 1,
    "precision": "bf16",
    "clip": 1.0,
    "checkpointing": "full",
    "optimizer": "adamw-fused",
    "zero": {},
}
STAGE_3 = {"stage3_prefetch_bucket_size": 58982, "stage3_param_persistence_threshold": 2560}
SMALL, MIDDLE = {"reduce_bucket_size": 65536}, {"reduce_bucket_size": 1500000}
OVERLAP = {"reduce_bucket_size": 300000, "overlap_comm": True}
PLAIN = {"reduce_bucket_size": 300000, "contiguous_gradients": False}
BOTH = {"reduce_bucket_size": 300000, "contiguous_gradients": False, "overlap_comm": True}
HUGE = {"reduce_bucket_size": 20000000}
WIDE = {"vocab_size": 32768, "num_hidden_layers": 2}
"""More vocabulary than layers."""
DEEP = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 12, "vocab_size": 1024}
BUCKETS = {"small": SMALL, "middle": MIDDLE, "overlap": OVERLAP, "plain": PLAIN, "both": BOTH, "huge": HUGE}
VARIED: dict[str, Spec] = {
    "tied": {"model": {"tie_word_embeddings": True}, "zero": SMALL},
    "tied middle": {"model": {"tie_word_embeddings": True}, "zero": MIDDLE},
    "accumulation 3": {"accumulation": 3, "zero": MIDDLE},
    "fp16": {"precision": "fp16", "zero": MIDDLE},
    "fp16 accumulation 2": {"precision": "fp16", "accumulation": 2, "zero": SMALL},
    "fp32": {"precision": "fp32", "zero": MIDDLE},
    "lora": {"lora": 8, "zero": SMALL},
    "lora accumulation 2": {"lora": 8, "accumulation": 2, "zero": MIDDLE},
    "no clipping": {"clip": None, "zero": MIDDLE},
    "no checkpointing": {"checkpointing": "none", "zero": MIDDLE, "micro": 2},
    "no checkpointing small": {"checkpointing": "none", "zero": SMALL, "micro": 2},
    "reentrant": {"checkpointing": "reentrant", "zero": MIDDLE, "accumulation": 2},
    "round robin": {"zero": {**MIDDLE, "round_robin_gradients": True}, "accumulation": 2},
    "wide": {"model": WIDE, "zero": MIDDLE},
    "wide accumulation 2": {"model": WIDE, "zero": SMALL, "accumulation": 2},
    "deep": {"model": DEEP, "zero": MIDDLE},
    "deep small": {"model": DEEP, "zero": {"reduce_bucket_size": 40000}},
    "deep none": {"model": DEEP, "zero": {"reduce_bucket_size": 300000}, "checkpointing": "none", "micro": 2},
    "foreach": {"optimizer": "adamw-foreach", "zero": MIDDLE},
    "for loop": {"optimizer": "adamw-for-loop", "zero": MIDDLE},
    "sgd": {"optimizer": "sgd", "zero": MIDDLE},
    "long": {"sequence": 512, "micro": 2, "zero": SMALL},
    "long overlap": {"sequence": 512, "micro": 2, "zero": OVERLAP, "accumulation": 2},
}
ONLY_3: dict[str, Spec] = {
    "sub groups": {"zero": {**SMALL, "sub_group_size": 200000}},
    "sub groups middle": {"zero": {**MIDDLE, "sub_group_size": 2000000}},
    "sub groups foreach": {"zero": {**SMALL, "sub_group_size": 500000}, "optimizer": "adamw-foreach"},
    "sub groups wide": {"model": WIDE, "zero": {**SMALL, "sub_group_size": 3000000}},
    "live": {"zero": {**SMALL, "stage3_max_live_parameters": 500000}},
    "reuse": {"zero": {**SMALL, "stage3_max_live_parameters": 2000000, "stage3_max_reuse_distance": 300000}},
    "all persist": {"zero": {**SMALL, "stage3_param_persistence_threshold": 10000000}},
    "none persist": {"zero": {**SMALL, "stage3_param_persistence_threshold": 0}},
    "ahead": {"zero": {**SMALL, "stage3_prefetch_bucket_size": 2000000, "stage3_max_live_parameters": 3000000}},
    "none ahead": {"zero": {**SMALL, "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}},
}

SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
WIRE = {"communication_data_type": "fp32"}
AT_ONCE = {**SUMS, "bf16": {"immediate_grad_update": True}}
BARE = {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
DTYPES: dict[str, Spec] = {
    "sums": {"config": SUMS, "zero": MIDDLE},
    "sums small": {"config": SUMS, "zero": SMALL},
    "sums accumulation 2": {"config": SUMS, "zero": MIDDLE, "accumulation": 2},
    "sums wire": {"config": {**SUMS, **WIRE}, "zero": MIDDLE},
    "wire": {"config": WIRE, "zero": MIDDLE},
    "wire small": {"config": WIRE, "zero": SMALL},
    "no masters": {"config": BARE, "zero": MIDDLE},
}
ONLY_1: dict[str, Spec] = {
    "at once": {"config": AT_ONCE, "zero": MIDDLE},
    "at once accumulation 2": {"config": AT_ONCE, "zero": MIDDLE, "accumulation": 2},
    "fp16 sums": {"config": SUMS, "zero": MIDDLE, "precision": "fp16"},
    "fp16 sums small": {"config": SUMS, "zero": SMALL, "precision": "fp16"},
    "fp16 sums accumulation 2": {"config": SUMS, "zero": SMALL, "precision": "fp16", "accumulation": 2},
    "fp16 sums plain": {"config": SUMS, "zero": PLAIN, "precision": "fp16"},
    "fp16 sums overlap": {"config": SUMS, "zero": OVERLAP, "precision": "fp16"},
    "sums lora": {"config": SUMS, "zero": MIDDLE, "lora": 8},
    "sums tied": {"config": SUMS, "zero": MIDDLE, "model": {"tie_word_embeddings": True}},
    "at once tied": {"config": AT_ONCE, "zero": MIDDLE, "model": {"tie_word_embeddings": True}},
    "sums foreach": {"config": SUMS, "zero": MIDDLE, "optimizer": "adamw-foreach"},
}
ONLY_2: dict[str, Spec] = {
    "sums plain": {"config": SUMS, "zero": PLAIN},
    "sums overlap": {"config": SUMS, "zero": OVERLAP},
    "wire plain": {"config": WIRE, "zero": PLAIN},
    "sums deep": {"config": SUMS, "zero": SMALL, "model": DEEP},
}
WITHOUT_ZERO: dict[str, Spec] = {
    "bf16": {},
    "fp16": {"precision": "fp16"},
    "fp32": {"precision": "fp32"},
    "wire": {"config": WIRE},
    "tied": {"model": {"tie_word_embeddings": True}},
    "lora": {"lora": 8},
    "no clipping": {"clip": None},
    "foreach": {"optimizer": "adamw-foreach"},
    "accumulation 2": {"accumulation": 2},
    "no checkpointing": {"checkpointing": "none", "micro": 2},
}
"""Stage 0: DeepSpeed divides nothing, and averages and steps gradients in its own way."""


def points() -> Iterator[tuple[str, Spec]]:
    """Every (name, spec); the spec holds every key."""
    for stage in (1, 2, 3):
        own = STAGE_3 if stage == 3 else {}
        for world in (1, 4):
            for accumulation in (1, 2):
                for name, zero in BUCKETS.items():
                    if stage < 3 or name in ("small", "middle"):
                        yield _point(stage, world, name, {"accumulation": accumulation, "zero": zero}, own)
        for name, spec in {**VARIED, **(ONLY_3 if stage == 3 else {})}.items():
            for world in (1, 4):
                # Whose parameters round_robin_gradients gives to which rank is not followed.
                if name != "round robin" or world == 1 or stage == 3:
                    yield _point(stage, world, name, spec, own)
        for world in (2, 8):
            for name in ("small", "middle"):
                yield _point(stage, world, name, {"zero": BUCKETS[name]}, own)
        for name, spec in {**DTYPES, **(ONLY_1 if stage == 1 else ONLY_2 if stage == 2 else {})}.items():
            for world in (1, 4):
                # Two tensors of masters, states and sums, as trainers group them: the sums are then averaged together.
                together = stage == 1 and "data_types" in spec["config"]
                groups = {"groups": 2} if together else {}
                yield _point(stage, world, name, {**spec, **groups}, own)
    for name, spec in WITHOUT_ZERO.items():
        for world in (1, 4):
            yield _point(0, world, name, {**spec, "zero": {}}, {})


def _point(stage: int, world: int, name: str, spec: Spec, own: dict[str, Any]) -> tuple[str, Spec]:
    whole = {**BASE, **spec, "world": world}
    whole["model"] = {**MODEL, **spec.get("model", {})}
    whole["zero"] = {"stage": stage, **own, **spec["zero"]}
    return f"zero{stage} x{world} a{whole['accumulation']} {name}", whole


def job_of(spec: Spec) -> TrainingJob:
    """The same job as memlint's."""
    zero, precision, own = spec["zero"], spec["precision"], spec.get("config", {})
    config = {"model_type": "llama", **spec["model"], "_attn_implementation": "eager"}
    fields: dict[str, Any] = {
        "training.precision": Precision(
            weights=precision,
            autocast=None,
            master_weights="bf16_master_weights_and_grads" not in own.get("bf16", {})
            and (precision != "fp32" or zero["stage"] > 0),
            gradients=own.get("data_types", {}).get("grad_accum_dtype"),
        ),
        "training.attention": "eager",
        "training.checkpointing.mode": "none" if spec["checkpointing"] == "none" else "full",
        "training.checkpointing.reentrant": spec["checkpointing"] == "reentrant",
        "training.sequence_length": spec["sequence"],
        "training.micro_batch_size": spec["micro"],
        "training.gradient_accumulation_steps": spec["accumulation"],
        "training.max_grad_norm": spec["clip"],
        "training.optimizer": spec["optimizer"],
        "parallelism.strategy": f"zero{zero['stage']}",
        "parallelism.gpus": spec["world"],
        "parallelism.reduce_bucket_elements": zero.get("reduce_bucket_size"),
        "parallelism.prefetch_bucket_elements": zero.get("stage3_prefetch_bucket_size"),
        "parallelism.persistence_threshold_elements": zero.get("stage3_param_persistence_threshold"),
        "parallelism.max_live_elements": zero.get("stage3_max_live_parameters"),
        "parallelism.max_reuse_elements": zero.get("stage3_max_reuse_distance"),
        "parallelism.sub_group_elements": zero.get("sub_group_size"),
        "parallelism.overlap_comm": zero.get("overlap_comm"),
        "parallelism.contiguous_gradients": zero.get("contiguous_gradients"),
        "parallelism.communication_dtype": own.get("communication_data_type"),
        "parallelism.immediate_gradients": own.get("bf16", {}).get("immediate_grad_update", False),
    }
    if spec["lora"]:
        fields |= {
            "training.method": "lora",
            "training.lora": Lora(rank=spec["lora"], targets=("q_proj", "v_proj"), dtype=precision),
        }
    architecture = read_config(config)
    assert isinstance(architecture, Architecture), architecture
    return replace_fields(TrainingJob(model="zero", architecture=architecture), fields)
