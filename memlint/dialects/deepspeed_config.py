"""What a DeepSpeed config says about memory, checked key by key.

Source: DeepSpeed 0.19.8, ``runtime/{config,constants,precision_config}.py`` and ``runtime/zero/config.py``.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from memlint.dialects.base import Problem
from memlint.dialects.deepspeed_keys import TOP_KEYS, WANTED_TOP, WANTED_ZERO, ZERO_KEYS
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section, as_float, as_int, as_mapping, is_auto, show
from memlint.records import dataclass

AUTO = -1
"""An ``auto`` bucket that the Hugging Face filler computes from hidden_size once the model is known."""

SIZES: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "parallelism.reduce_bucket_elements": ("reduce_bucket", ("reduce_bucket_size",), True),
    "parallelism.allgather_bucket_elements": ("allgather_bucket", ("allgather_bucket_size",), True),
    "parallelism.prefetch_bucket_elements": (
        "prefetch_bucket",
        ("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
        True,
    ),
    "parallelism.persistence_threshold_elements": (
        "persistence_threshold",
        ("stage3_param_persistence_threshold", "param_persistence_threshold"),
        True,
    ),
    "parallelism.max_live_elements": ("max_live", ("stage3_max_live_parameters", "max_live_parameters"), False),
    "parallelism.max_reuse_elements": ("max_reuse", ("stage3_max_reuse_distance", "max_reuse_distance"), False),
    "parallelism.sub_group_elements": ("sub_group", ("sub_group_size",), False),
}
"""Native field -> settings field, its keys (DeepSpeed takes the names without ``stage3_`` too), and whether the Hugging
Face integration fills in an ``auto``. Sizes in elements."""

_FP32 = ("fp32", "float32", "float", "torch.float32")
_WIRE = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
_DEVICES = ("none", "cpu", "nvme")
OPTIMIZERS: dict[str, str] = {
    "adam": "adamw-fused",
    "adamw": "adamw-fused",
    "onebitadam": "adamw-fused",
    "zerooneadam": "adamw-fused",
    "lamb": "adamw-fused",
    "onebitlamb": "adamw-fused",
    "lion": "lion",
    "muon": "muon",
    "adagrad": "adagrad",
    "sgd": "sgd",
}
"""``optimizer.type`` (lower case) -> native name: Adam becomes FusedAdam, a multi-tensor kernel without temporaries
(DeepSpeed 0.19.8 runtime/engine.py ``_configure_basic_optimizer``); LAMB holds the same two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSettings:
    """Memory-relevant content of one DeepSpeed config. ``None`` means absent or ``auto`` where that is the same."""

    stage: int = 0
    offload_optimizer: bool = False
    offload_param: bool = False
    bf16: bool | None = None
    """``bf16.enabled``: None when the section is absent or says ``auto``."""
    fp16: bool | None = None
    bf16_without_master: bool = False
    """bf16_master_weights_and_grads: no fp32 master copy."""
    bf16_states: bool = False
    """bf16_optimizer_states: Adam moments in bf16."""
    grad_accum_fp32: bool = False
    communication: str | None = None
    """communication_data_type."""
    immediate: bool | None = None
    """bf16.immediate_grad_update."""
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    train_batch_size: int | None = None
    gradient_clipping: float | None = None
    reduce_bucket: int | None = None
    """Elements; AUTO where the Hugging Face filler decides."""
    allgather_bucket: int | None = None
    prefetch_bucket: int | None = None
    persistence_threshold: int | None = None
    max_live: int | None = None
    max_reuse: int | None = None
    sub_group: int | None = None
    contiguous_gradients: bool | None = None
    overlap_comm: bool | None = None
    optimizer: str | None = None
    """Native name of ``optimizer.type``; None: the client's optimizer."""
    autocast: str | None = None
    """torch_autocast dtype when enabled."""
    tensor: int = 1
    sequence: int = 1
    compile: bool = False
    checkpointing_section: bool = False
    """``activation_checkpointing`` asks for something, which models of transformers never look at."""
    unmodelled: tuple[str, ...] = ()
    """Settings in use that change memory and are not followed, as sentences for the user."""
    keys: Mapping[str, tuple[str | int, ...]]
    """Field name -> key path inside the file, for origins."""
    file: str | None = None
    """Companion file; None when inline in the document."""
    source: str | None = None
    """Where the content comes from when it is not the user's own file (a shipped set)."""


def read_config(section: Section, *, shipped: str | None = None) -> DeepSpeedSettings:
    """Read a DeepSpeed mapping; problems go to ``section.problems`` on their exact key.

    ``shipped`` names the source when the content is a framework's own file.
    """
    section.problems.extend(near_misses(section.data, WANTED_TOP, TOP_KEYS, prefix=section.prefix, file=section.file))
    keys: dict[str, tuple[str | int, ...]] = {}
    values: dict[str, Any] = {}

    def keep(field: str, where: Section, name: str, value: Any) -> None:
        if value is not None:
            values[field] = value
            keys[field] = where.path(name)

    for field, name in (
        ("micro_batch_size", "train_micro_batch_size_per_gpu"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("train_batch_size", "train_batch_size"),
    ):
        keep(field, section, name, section.integer(name, minimum=1))
    keep("gradient_clipping", section, "gradient_clipping", section.number("gradient_clipping", minimum=0))
    _precision(section, keep)
    zero = section.section("zero_optimization")
    if zero is not None:
        _zero(zero, keep)
    optimizer = section.section("optimizer")
    if optimizer is not None and optimizer.has("type"):
        kind = optimizer.text("type")
        if kind is not None:
            keep("optimizer", optimizer, "type", OPTIMIZERS.get(kind.lower().replace("_", ""), "adamw-fused"))
    tensor = section.section("tensor_parallel")
    if tensor is not None:
        size = tensor.integer("autotp_size", minimum=0)
        if size:
            keep("tensor", tensor, "autotp_size", size)
    sequence = section.integer("sequence_parallel_size", minimum=1)
    if sequence:
        keep("sequence", section, "sequence_parallel_size", sequence)
    compiling = section.data.get("compile")
    if isinstance(compiling, dict) and (compiling.get("disable") is False or compiling.get("deepcompile") is True):
        keep("compile", section, "compile", True)
    checkpointing = section.data.get("activation_checkpointing")
    if isinstance(checkpointing, dict) and any(
        checkpointing.get(name) is True for name in ("partition_activations", "cpu_checkpointing")
    ):
        keep("checkpointing_section", section, "activation_checkpointing", True)
    return DeepSpeedSettings(keys=keys, file=section.file, source=shipped, **values)


def _precision(section: Section, keep: Any) -> None:
    for field in ("bf16", "fp16"):
        name = "bfloat16" if field == "bf16" and section.has("bfloat16") else field
        value = section.raw(name)
        if isinstance(value, bool):
            section.bad(name, "a mapping with `enabled`")
            continue
        part = section.section(name)
        if part is None:
            continue
        keep(field, part, "enabled", part.flag("enabled"))
        if field == "bf16":
            keep(
                "bf16_without_master", part, "bf16_master_weights_and_grads", part.flag("bf16_master_weights_and_grads")
            )
            keep("immediate", part, "immediate_grad_update", part.flag("immediate_grad_update"))
            keep("bf16_states", part, "bf16_optimizer_states", part.flag("bf16_optimizer_states"))
    types = section.section("data_types")
    if types is not None and types.raw("grad_accum_dtype") in _FP32:
        keep("grad_accum_fp32", types, "grad_accum_dtype", True)
    if section.has("communication_data_type"):
        wire = _WIRE.get(str(section.raw("communication_data_type")).lower())
        if wire is None:
            section.bad("communication_data_type", "`fp32`, `fp16` or `bf16`")
        keep("communication", section, "communication_data_type", wire)
    autocast = section.section("torch_autocast")
    if autocast is not None and autocast.flag("enabled"):
        dtype = autocast.raw("dtype", "bfloat16")
        keep("autocast", autocast, "enabled", "fp16" if dtype in ("float16", "fp16") else "bf16")


def _zero(zero: Section, keep: Any) -> None:
    zero.problems.extend(near_misses(zero.data, WANTED_ZERO, ZERO_KEYS, prefix=zero.prefix, file=zero.file))
    if is_auto(zero.raw("stage")):
        zero.bad("stage", "0, 1, 2 or 3")
    stage = zero.integer("stage", minimum=0, maximum=3)
    keep("stage", zero, "stage", stage)
    for field in ("offload_optimizer", "offload_param"):
        part = zero.section(field)
        if part is None:
            continue
        device = part.raw("device", "none")
        if device is not False and (not isinstance(device, str) or device.lower() not in (*_DEVICES, "auto")):
            part.bad("device", "`none`, `cpu` or `nvme`")
            continue
        keep(field, zero, field, isinstance(device, str) and device.lower() in ("cpu", "nvme"))
    if zero.flag("cpu_offload") and not zero.has("offload_optimizer"):
        keep("offload_optimizer", zero, "cpu_offload", True)
    if (stage or 0) < 3 and isinstance(zero.data.get("offload_param"), dict):
        device = zero.data["offload_param"].get("device")
        if device in ("cpu", "nvme"):
            zero.problem(
                "MEM007",
                "offload_param",
                f"`offload_param` has no effect with `stage: {show(stage or 0)}`; only stage 3 partitions parameters",
                label="ignored",
                on_key=True,
            )
    for field, names, fills_in in SIZES.values():
        name = zero.has(*names)
        if name is None:
            continue
        automatic = is_auto(zero.raw(name))
        if automatic and not fills_in:
            zero.bad(name, "a whole number (nobody fills it in)")
        else:
            keep(field, zero, name, AUTO if automatic else zero.integer(name, minimum=0))
    keep("contiguous_gradients", zero, "contiguous_gradients", zero.flag("contiguous_gradients"))
    keep("overlap_comm", zero, "overlap_comm", zero.flag("overlap_comm"))
    if stage == 3:
        keep("unmodelled", zero, "stage", tuple(_not_followed(zero)) or None)


def _not_followed(zero: Section) -> Iterator[str]:
    """DeepSpeed 0.19.8 runtime/zero/{config,offload_config}.py; all of it is for stage 3 alone."""
    part = as_mapping(zero.data.get("offload_optimizer")) or {}
    ratio = as_float(part.get("ratio"))
    if ratio is not None and ratio < 1 and part.get("device") in ("cpu", "nvme"):
        yield f"`ratio: {ratio:g}` leaves a part of the optimizer on the GPU: counted as if all of it were offloaded"
    if (as_int(zero.data.get("zero_hpz_partition_size")) or 1) > 1:
        yield "`zero_hpz_partition_size` keeps a second partition of the parameters on each node: not counted"
    if (as_int(zero.data.get("mics_shard_size")) or 0) > 0:
        yield "`mics_shard_size` shards within groups of GPUs: counted as if over all of them"


def batch_problem(settings: DeepSpeedSettings) -> Problem | None:
    """Return a train batch that its own factors do not divide."""
    micro, steps, total = settings.micro_batch_size, settings.gradient_accumulation_steps, settings.train_batch_size
    if micro and total and total % (micro * (steps or 1)):
        return Problem(
            code="MEM603",
            key=settings.keys["train_batch_size"],
            message=f"`train_batch_size: {total}` is no multiple of micro batch {micro} x accumulation {steps or 1}",
            file=settings.file,
        )
    return None
