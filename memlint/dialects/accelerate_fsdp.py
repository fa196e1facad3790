"""FSDP settings, as accelerate, the HF Trainer and axolotl write them (keys with or without the ``fsdp_`` prefix).

Source: accelerate 1.15.0 ``utils/dataclasses.py`` (FullyShardedDataParallelPlugin), ``utils/fsdp_utils.py``
(fsdp2_prepare_model) and ``accelerator.py`` (prepare_model).
"""

from __future__ import annotations

from typing import Any

from memlint.dialects.base import JobDraft
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section, as_bool, as_int, show, words

_PLUGIN = "accelerate 1.15: utils/dataclasses.py"
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""FSDP_SHARDING_STRATEGY of accelerate, in the order of its numbers 1 to 5."""

_PLAIN = words(
    """version sharding_strategy reshard_after_forward offload_params cpu_offload auto_wrap_policy
    transformer_layer_cls_to_wrap min_num_params activation_checkpointing activation_checkpointing_offload
    backward_prefetch forward_prefetch use_orig_params sync_module_states cpu_ram_efficient_loading state_dict_type
    final_state_dict_type mixed_precision_policy limit_all_gathers ignored_modules ignored_params xla xla_fsdp_v2
    xla_fsdp_grad_ckpt xla_fsdp_settings cpu_offload_pin_memory enable_selective_activation_checkpointing
    transformer_cls_names_to_wrap fsdp_plugin"""
)
FSDP_KEYS = _PLAIN | {f"fsdp_{name}" for name in _PLAIN}
_WANTED = (
    "offload_params",
    "sharding_strategy",
    "reshard_after_forward",
    "auto_wrap_policy",
    "activation_checkpointing",
    "transformer_layer_cls_to_wrap",
)


def apply_fsdp(
    draft: JobDraft,
    section: Section,
    *,
    version: int,
    wrap: str,
    source: str,
    options: tuple[str, ...] = (),
    options_key: str | None = None,
    outer: Section | None = None,
    gpus_per_node: int | None = None,
) -> None:
    """Set the job fields of an FSDP config.

    ``version`` and ``wrap`` (``layer``, ``none``, ``size``) are the framework's defaults, ``source`` names it. The
    legacy option words of the HF Trainer (``full_shard auto_wrap offload``) come in ``options``, read from
    ``options_key`` of ``outer``. Call it after precision, method and checkpointing are in the draft.
    """
    section.problems.extend(_misses(section))
    version = _version(section, version)

    def put(name: str, value: Any, key: str | None) -> None:
        if key is not None:
            draft.set(name, value, key=section.path(key), file=section.file)
        elif options and outer is not None and options_key is not None:
            draft.set(name, value, key=outer.path(options_key), file=outer.file)
        else:
            draft.set(name, value, default=f"default of {source}")

    shard_key, word = _sharding(section, version, options)
    if word == "no_shard":
        put("parallelism.strategy", "ddp", shard_key)
    elif word.startswith("hybrid"):
        put("parallelism.strategy", "hsdp", shard_key)
        if gpus_per_node:
            draft.set(
                "parallelism.shard", gpus_per_node, assumed=f"hybrid sharding within nodes of {gpus_per_node} GPUs"
            )
    else:
        put("parallelism.strategy", "fsdp" if version == 2 else "fsdp1", shard_key or _name(section, "version"))
    put("parallelism.reshard_after_forward", word in ("full_shard", "hybrid_shard"), shard_key)

    offload_key = _name(section, "offload_params") or _name(section, "cpu_offload")
    if (offload_key is not None and _flag(section, offload_key)) or "offload" in options:
        put("parallelism.offload", "all", offload_key)
    wrap_key = _name(section, "auto_wrap_policy")
    if wrap_key is not None:
        policy = section.text(wrap_key, ("transformer_based_wrap", "size_based_wrap", "no_wrap"))
        wrap = {"transformer_based_wrap": "layer", "size_based_wrap": "size", "no_wrap": "none"}.get(policy or "", wrap)
    put("parallelism.wrap", wrap, wrap_key)
    state_key = _name(section, "state_dict_type")
    if state_key is not None:
        kind = section.text(state_key, ("full_state_dict", "sharded_state_dict", "local_state_dict"))
        if kind is not None:
            put("parallelism.state_dict", "full" if kind == "full_state_dict" else "sharded", state_key)
    _checkpointing(draft, section, put)
    _precision(draft, version)


def _misses(section: Section) -> Any:
    wanted = [name if not any(str(k).startswith("fsdp_") for k in section.data) else f"fsdp_{name}" for name in _WANTED]
    return near_misses(section.data, wanted, FSDP_KEYS, prefix=section.prefix, file=section.file)


def _name(section: Section, name: str) -> str | None:
    return section.has(f"fsdp_{name}", name)


def _flag(section: Section, key: str) -> bool:
    value = section.raw(key)
    if isinstance(value, dict):
        return True
    return bool(section.flag(key))


def _version(section: Section, default: int) -> int:
    key = _name(section, "version")
    if key is None:
        return default
    found = section.integer(key)
    if found not in (1, 2):
        if found is not None:
            section.bad(key, "1 or 2")
        return default
    return found


def _sharding(section: Section, version: int, options: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the key that decides (None: a default or the option words) and the strategy word."""
    key = _name(section, "reshard_after_forward")
    if version == 2 and key is not None:
        flag = as_bool(section.raw(key))
        if flag is None:
            section.bad(key, "true or false with FSDP2")
        else:
            return key, "full_shard" if flag else "shard_grad_op"
    if version == 1:
        named = _name(section, "sharding_strategy")
        key = named or (key if key is not None and as_bool(section.raw(key)) is None else None)
        if key is not None:
            value = section.raw(key)
            number = as_int(value)
            if number is not None and 1 <= number <= len(_STRATEGIES):
                return key, _STRATEGIES[number - 1]
            word = section.text(key, _STRATEGIES)
            if word is not None:
                return key, word
    named = _name(section, "sharding_strategy")
    if version == 2 and named is not None and isinstance(section.raw(named), str):
        word = section.raw(named).lower()
        if word in ("no_shard", "hybrid_shard", "hybrid_shard_zero2"):
            section.problem(
                "MEM007",
                named,
                f"`{named}: {show(section.raw(named))}` is ignored by FSDP2; use `reshard_after_forward`",
                label="has no effect",
            )
    for word in options:
        if word in _STRATEGIES:
            return None, word
    return None, "full_shard"


def _checkpointing(draft: JobDraft, section: Section, put: Any) -> None:
    key = _name(section, "activation_checkpointing")
    if key is None or not _flag(section, key):
        return
    if draft.get("training.checkpointing.mode", "none") != "none":
        origin = draft.origins.get("training.checkpointing.mode")
        if origin is not None and origin.key:
            section.problem(
                "MEM007",
                key,
                f"`{key}` and gradient checkpointing of the training arguments are both on; keep one",
                label="the Trainer refuses both",
            )
        return
    put("training.checkpointing.mode", "full", key)
    put("training.checkpointing.reentrant", False, key)
    offload = _name(section, "activation_checkpointing_offload")
    if offload is not None and _flag(section, offload):
        put("training.checkpointing.offload", True, offload)


def _precision(draft: JobDraft, version: int) -> None:
    """Mixed precision makes accelerate hold trainable parameters in fp32; FSDP2 skips models with 4-bit weights."""
    if draft.get("training.precision.autocast") is None:
        return
    if version == 2 and draft.get("training.method") == "qlora":
        return
    where = "accelerate 1.15: utils/fsdp_utils.py" if version == 2 else "accelerate 1.15: accelerator.py"
    draft.set("training.precision.trainable_weights", "fp32", default=where)
    if draft.get("training.lora.dtype", "fp32") != "fp32":
        # Adapters too, whatever the trainer has cast them to.
        draft.set("training.lora.dtype", "fp32", default=where)
