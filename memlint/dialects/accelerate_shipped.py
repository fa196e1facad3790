"""Launch configs that TRL ships and a recipe may name (``accelerate_config: zero2``).

Source: TRL 1.16.0 ``trl/accelerate_configs/*.yaml``, named in ``trl/cli/accelerate_config.py``; each says 8 processes.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "bf16", "num_processes": 8}
_NO_OFFLOAD = {"offload_optimizer_device": "none", "offload_param_device": "none"}

SHIPPED: dict[str, dict[str, Any]] = {
    "single_gpu": {**_COMMON, "distributed_type": "NO"},
    "multi_gpu": {**_COMMON, "distributed_type": "MULTI_GPU"},
    "zero1": {**_COMMON, "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 1}},
    "zero2": {**_COMMON, "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2, **_NO_OFFLOAD}},
    "zero3": {**_COMMON, "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, **_NO_OFFLOAD}},
    "fsdp1": {
        **_COMMON,
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": "FULL_SHARD",
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
    },
    "fsdp2": {
        **_COMMON,
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
    },
}


def shipped_config(name: str) -> tuple[dict[str, Any], str] | None:
    """Return the launch config TRL ships under ``name`` and its source; None when there is none."""
    stem = name.replace("\\", "/").rpartition("/")[2].removesuffix(".yaml")
    content = SHIPPED.get(stem)
    return None if content is None else (content, f"TRL 1.16: accelerate_configs/{stem}.yaml")
