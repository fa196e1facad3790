"""DeepSpeed files that frameworks ship and example configs name, for when the file is not in the repository.

Only what decides memory is kept: ``zero_optimization``, the precision switches, and the optimizer. Sources:
axolotl 0.18.0 ``deepspeed_configs/`` (commit 067b021), LLaMA-Factory 0.9.6 ``examples/deepspeed/`` (commit ff6d4d1),
ms-swift ``swift/config/``. The ``gather`` switches do not change the step's peak and are left out.
"""

from __future__ import annotations

from typing import Any

_CPU = {"device": "cpu", "pin_memory": True}
_AUTO: dict[str, Any] = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
_BF16: dict[str, Any] = {"bf16": {"enabled": True}}
_AUTO_BUCKETS = {
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
_AXOLOTL_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    **_AUTO_BUCKETS,
}
_AXOLOTL_2 = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "contiguous_gradients": True, "overlap_comm": True}
_LIMITS = {
    "sub_group_size": 10**9,
    "stage3_max_live_parameters": 10**9,
    "stage3_max_reuse_distance": 10**9,
}
_FACTORY = {"overlap_comm": False, "contiguous_gradients": True}
_FACTORY_BUCKETS = {**_FACTORY, "allgather_bucket_size": 5 * 10**8, "reduce_bucket_size": 5 * 10**8}
_FACTORY_3 = {"stage": 3, **_FACTORY, **_AUTO_BUCKETS, **_LIMITS}
_SWIFT_BUCKETS = {**_FACTORY, "allgather_bucket_size": 2 * 10**8, "reduce_bucket_size": 2 * 10**8}

SHIPPED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "axolotl": (
        "axolotl 0.18: deepspeed_configs/",
        {
            "zero1.json": {"zero_optimization": {"stage": 1, "overlap_comm": True}, **_AUTO},
            "zero1_torch_compile.json": {
                "zero_optimization": {"stage": 1, "overlap_comm": True},
                "compile": {"disable": False, "backend": "inductor"},
                **_AUTO,
            },
            "zero2.json": {"zero_optimization": _AXOLOTL_2, **_AUTO},
            "zero2_torch_compile.json": {
                "zero_optimization": _AXOLOTL_2,
                "compile": {"disable": False, "backend": "inductor"},
                **_AUTO,
            },
            "zero3.json": {"zero_optimization": _AXOLOTL_3, **_AUTO},
            "zero3_bf16.json": {"zero_optimization": _AXOLOTL_3, **_BF16},
            "zero3_bf16_cpuoffload_all.json": {
                "zero_optimization": {**_AXOLOTL_3, "offload_optimizer": _CPU, "offload_param": _CPU},
                **_BF16,
            },
            "zero3_bf16_cpuoffload_params.json": {
                "zero_optimization": {**_AXOLOTL_3, "offload_param": _CPU},
                **_BF16,
            },
        },
    ),
    "llamafactory": (
        "LLaMA-Factory 0.9.6: examples/deepspeed/",
        {
            "ds_z0_config.json": {"zero_optimization": {"stage": 0, **_FACTORY_BUCKETS}, **_AUTO},
            "ds_z2_config.json": {"zero_optimization": {"stage": 2, **_FACTORY_BUCKETS}, **_AUTO},
            "ds_z2_offload_config.json": {
                "zero_optimization": {"stage": 2, "offload_optimizer": _CPU, **_FACTORY_BUCKETS},
                **_AUTO,
            },
            "ds_z2_autotp_config.json": {
                "zero_optimization": {"stage": 2, **_FACTORY_BUCKETS},
                "tensor_parallel": {"autotp_size": 2},
                **_AUTO,
            },
            "ds_z3_config.json": {"zero_optimization": _FACTORY_3, **_AUTO},
            "ds_z3_offload_config.json": {
                "zero_optimization": {**_FACTORY_3, "offload_optimizer": _CPU, "offload_param": _CPU},
                **_AUTO,
            },
            "ds_z3_fp8_config.json": {
                "zero_optimization": {
                    **_FACTORY_3,
                    "offload_optimizer": {"device": "cpu", "pin_memory": False},
                    "reduce_bucket_size": 12845056,
                    "stage3_prefetch_bucket_size": 11560550,
                    "stage3_param_persistence_threshold": 35840,
                },
                "bf16": {"enabled": "auto"},
                "fp16": {"enabled": False},
            },
        },
    ),
    "ms-swift": (
        "ms-swift: swift/config/",
        {
            "zero0.json": {"zero_optimization": {"stage": 0, **_SWIFT_BUCKETS}, **_AUTO},
            "zero1.json": {"zero_optimization": {"stage": 1, **_SWIFT_BUCKETS}, **_AUTO},
            "zero2.json": {"zero_optimization": {"stage": 2, **_SWIFT_BUCKETS}, **_AUTO},
            "zero2_offload.json": {
                "zero_optimization": {"stage": 2, "offload_optimizer": _CPU, **_SWIFT_BUCKETS},
                **_AUTO,
            },
            "zero3.json": {"zero_optimization": _FACTORY_3, **_AUTO},
            "zero3_offload.json": {
                "zero_optimization": {**_FACTORY_3, "offload_optimizer": _CPU, "offload_param": _CPU},
                **_AUTO,
            },
        },
    ),
}
"""Framework -> (where its files come from, base name -> memory-relevant content)."""


def shipped_config(path: str, framework: str) -> tuple[dict[str, Any], str] | None:
    """Return the content of the shipped file with the base name of ``path``, and its source; None when unknown.

    The set of ``framework`` is searched first, then those of the others, since configs are carried between frameworks.
    """
    name = path.replace("\\", "/").rpartition("/")[2]
    for owner in (framework, *(known for known in SHIPPED if known != framework)):
        source, files = SHIPPED.get(owner, ("", {}))
        if name in files:
            return files[name], source + name
    return None


def stage_from_name(path: str) -> dict[str, Any] | None:
    """Return the least config that a file name states (``zero3_offload.json``, ``ds_z2.json``), or None.

    Used only where the file itself is missing, and said so.
    """
    import re

    name = path.replace("\\", "/").rpartition("/")[2].lower()
    found = re.search(r"(?:zero|stage|[_-]z|^z)[_-]?([0-3])", name)
    if found is None:
        return None
    stage = int(found.group(1))
    zero: dict[str, Any] = {"stage": stage}
    if "offload" in name and stage > 0:
        zero["offload_optimizer"] = _CPU
        if stage == 3:
            zero["offload_param"] = _CPU
    return {"zero_optimization": zero, **_AUTO}
