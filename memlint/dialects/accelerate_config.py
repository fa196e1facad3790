"""What an accelerate launch config decides: GPU count, sharding, offload, mixed precision.

Source: accelerate 1.15.0 ``commands/config/config_args.py``, ``utils/dataclasses.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects.accelerate_fsdp import apply_fsdp
from memlint.dialects.base import JobDraft, Problem, ReadContext
from memlint.dialects.deepspeed import apply_settings, find_config
from memlint.dialects.deepspeed_config import DeepSpeedSettings
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section, show, words

_PLUGIN = "accelerate 1.15: utils/dataclasses.py"

TOP_KEYS = words(
    """compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
    gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function
    enable_cpu_affinity
    fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config ipex_config
    downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config
    dynamo_backend fp16 ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version
    transformers_version py_version sagemaker_inputs_file sagemaker_metrics_file additional_args """
)
DEEPSPEED_KEYS = words(
    """zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path offload_param_nvme_path
    gradient_clipping gradient_accumulation_steps zero3_init_flag zero3_save_16bit_model deepspeed_config_file
    deepspeed_moe_layer_cls_names deepspeed_hostfile deepspeed_multinode_launcher deepspeed_exclusion_filter
    deepspeed_inclusion_filter zero_force_ds_cpu_optimizer"""
)
_TYPES = words(
    """no multi_cpu multi_gpu multi_npu multi_mlu multi_sdaa multi_musa multi_xpu multi_hpu multi_neuron deepspeed fsdp
    tp xla tpu megatron_lm data_parallel model_parallel"""
)
_MAX_GPUS = 1_000_000


def join_accelerate(
    draft: JobDraft, section: Section, key: str, context: ReadContext, companions: list[str], *, framework: str
) -> bool:
    """Read the launch config that ``key`` names (a path, or a name TRL ships) into the draft; False when there is none.

    Call it last, like :func:`memlint.dialects.deepspeed.join_deepspeed`.
    """
    path = section.text(key)
    if not path:
        return False
    found = context.companion(path, beside=draft.document)
    if found is not None and isinstance(found.data, dict):
        companions.append(found.path)
        apply_accelerate(draft, Section(found.data, section.problems, file=found.path), context, companions, framework)
        return True
    from memlint.dialects.accelerate_shipped import shipped_config

    shipped = shipped_config(path)
    if shipped is None:
        section.problem(
            "MEM008", key, f"accelerate file `{show(path, 200)}` does not exist; sharding is unknown", label="not found"
        )
        draft.assumptions.append(f"accelerate file `{show(path, 200)}` is missing: computed without sharding")
        return False
    content, source = shipped
    draft.assumptions.append(f"`{key}: {show(path, 200)}` is {source}")
    quiet: list[Problem] = []
    apply_accelerate(draft, Section(content, quiet), context, companions, framework, shipped=(key, section))
    return True


def apply_accelerate(
    draft: JobDraft,
    section: Section,
    context: ReadContext,
    companions: list[str],
    framework: str,
    *,
    shipped: tuple[str, Section] | None = None,
) -> None:
    """Set GPU count, sharding, offload and mixed precision from a launch config.

    ``shipped`` is the key (and its section) that named a file of the framework's own; origins then point there.
    """
    section.problems.extend(
        near_misses(
            section.data,
            ("distributed_type", "mixed_precision", "num_processes", "deepspeed_config", "fsdp_config"),
            TOP_KEYS,
            prefix=section.prefix,
            file=section.file,
        )
    )

    def put(name: str, value: Any, part: Section, key: str) -> None:
        if shipped is not None:
            draft.set(name, value, key=shipped[1].path(shipped[0]), file=shipped[1].file)
        elif part.has(key):
            draft.set(name, value, key=part.path(key), file=part.file)
        else:
            draft.set(name, value, default=f"default of {_PLUGIN}")

    kind = _distributed_type(section)
    gpus = section.integer("num_processes", minimum=-1, maximum=_MAX_GPUS)
    machines = section.integer("num_machines", minimum=1, maximum=_MAX_GPUS) or 1
    if gpus is not None and gpus > 0:
        put("parallelism.gpus", gpus if kind != "no" else 1, section, "num_processes")
    precision = _mixed_precision(section)
    if precision in ("bf16", "fp16", "fp8") and draft.get("training.precision.autocast") is None:
        put("training.precision.autocast", "bf16" if precision == "fp8" else precision, section, "mixed_precision")
    if precision == "fp8":
        put("training.precision.fp8", True, section, "mixed_precision")
        recipe = section.section("fp8_config")
        if recipe is not None and str(recipe.raw("backend", "")).upper() == "TE":
            put("training.precision.fp8_recipe", "transformer-engine", recipe, "backend")
    dynamo = section.section("dynamo_config")
    if dynamo is not None and str(dynamo.raw("dynamo_backend", "no")).lower() not in ("no", "false"):
        put("training.compile", True, dynamo, "dynamo_backend")
    if kind == "deepspeed":
        _deepspeed(draft, section, context, companions, framework, shipped)
    elif kind == "fsdp":
        part = section.section("fsdp_config") or Section({}, section.problems, file=section.file)
        apply_fsdp(
            draft,
            part,
            version=1,
            wrap="none",
            source=_PLUGIN,
            gpus_per_node=gpus // machines if gpus and gpus > 0 else None,
        )
    elif kind.startswith("multi") and (gpus is None or gpus != 1):
        put("parallelism.strategy", "ddp", section, "distributed_type")
    _parallelism(draft, section, gpus, put)


def _distributed_type(section: Section) -> str:
    value = section.raw("distributed_type")
    if value is None or value is False:
        # YAML 1.1 reads a bare NO as false; accelerate itself writes 'NO' in quotes.
        return "no"
    return section.text("distributed_type", sorted(_TYPES)) or "no"


def _mixed_precision(section: Section) -> str | None:
    value = section.raw("mixed_precision")
    if value is None and section.raw("fp16") is True:
        return "fp16"
    if value is None or value is False:
        return None
    return section.text("mixed_precision", ("no", "fp16", "bf16", "fp8"))


def _deepspeed(
    draft: JobDraft,
    section: Section,
    context: ReadContext,
    companions: list[str],
    framework: str,
    shipped: tuple[str, Section] | None,
) -> None:
    part = section.section("deepspeed_config") or Section({}, section.problems, file=section.file)
    part.problems.extend(
        near_misses(
            part.data,
            ("zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file"),
            DEEPSPEED_KEYS,
            prefix=part.prefix,
            file=part.file,
        )
    )
    if part.has("deepspeed_config_file") and part.raw("deepspeed_config_file") != "none":
        _ignored_beside_file(part)
        settings = find_config(draft, part, "deepspeed_config_file", context, companions, framework=framework)
        if settings is not None:
            apply_settings(draft, settings, part, "deepspeed_config_file")
        return
    keys = {}
    stage = part.integer("zero_stage", minimum=0, maximum=3)
    if stage is None:
        stage = 2
    for field, name in (
        ("stage", "zero_stage"),
        ("offload_optimizer", "offload_optimizer_device"),
        ("offload_param", "offload_param_device"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("gradient_clipping", "gradient_clipping"),
    ):
        if part.has(name):
            keys[field] = part.path(name)
    settings = DeepSpeedSettings(
        stage=stage,
        offload_optimizer=_device(part, "offload_optimizer_device"),
        offload_param=_device(part, "offload_param_device"),
        gradient_accumulation_steps=part.integer("gradient_accumulation_steps", minimum=1),
        gradient_clipping=part.number("gradient_clipping", minimum=0),
        keys={} if shipped is not None else keys,
        file=part.file,
        source=_PLUGIN if shipped is not None else None,
    )
    if stage < 3 and settings.offload_param and shipped is None:
        part.problem(
            "MEM007",
            "offload_param_device",
            f"`offload_param_device` has no effect with ZeRO stage {stage}; only stage 3 partitions parameters",
            label="ignored",
        )
    where, key = (shipped[1], shipped[0]) if shipped is not None else (part, "zero_stage")
    apply_settings(draft, settings, where, key)


def _device(part: Section, name: str) -> bool:
    value = part.raw(name, "none")
    if value is False:
        return False
    return part.text(name, ("none", "cpu", "nvme")) in ("cpu", "nvme") if part.has(name) else False


def _ignored_beside_file(part: Section) -> None:
    """Accelerate raises when these stand beside ``deepspeed_config_file`` (``_deepspeed_config_checks``)."""
    for name in (
        "zero_stage",
        "offload_optimizer_device",
        "offload_param_device",
        "gradient_clipping",
        "gradient_accumulation_steps",
        "zero3_save_16bit_model",
    ):
        if part.has(name):
            part.problem(
                "MEM007",
                name,
                f"`{name}` must not stand beside `deepspeed_config_file`; set it in that file",
                label="accelerate refuses both",
                on_key=True,
            )


def _parallelism(draft: JobDraft, section: Section, gpus: int | None, put: Any) -> None:
    part = section.section("parallelism_config")
    if part is None:
        return
    product = 1
    for short, field in (
        ("tp_size", "parallelism.tensor"),
        ("cp_size", "parallelism.context"),
        ("sp_size", "parallelism.context"),
        ("dp_shard_size", "parallelism.shard"),
        ("dp_replicate_size", None),
    ):
        name = part.has(f"parallelism_config_{short}", short)
        size = part.integer(name, minimum=1) if name is not None else None
        if size is None or name is None:
            continue
        product *= size
        if field is not None and size > 1:
            put(field, size, part, name)
        elif short == "dp_replicate_size" and size > 1 and draft.get("parallelism.strategy") == "fsdp":
            put("parallelism.strategy", "hsdp", part, name)
    if gpus and gpus > 0 and product > 1 and gpus % product:
        section.problem(
            "MEM007",
            "num_processes",
            f"`num_processes: {gpus}` is no multiple of the {product} GPUs of `parallelism_config`",
        )
