"""DeepSpeed JSON: a companion that holds ZeRO, offload and precision, joined to the training file that names it."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.deepspeed_config import SIZES, DeepSpeedSettings, batch_problem, read_config
from memlint.dialects.deepspeed_keys import TOP_KEYS
from memlint.dialects.values import Section, as_mapping, show
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob
from memlint.records import replace

VERSION = "0.19.8"
_ENGINE = "DeepSpeed 0.19: runtime/engine.py"
_UNKNOWN = object()
_MARKS = ("zero_optimization", "train_micro_batch_size_per_gpu")
_PARTS = ("fp16", "bf16", "optimizer", "zero_optimization")


class DeepSpeed:
    """The DeepSpeed dialect."""

    name = "deepspeed"
    title = "DeepSpeed JSON"
    version = VERSION
    suffixes = (".json", ".yaml", ".yml")
    markers = (*_MARKS, "train_batch_size")

    def recognise(self, document: Document) -> bool:
        """Whether the mapping is a DeepSpeed config."""
        data = document.mapping
        strange = sum(1 for key in data if key not in TOP_KEYS and not str(key).startswith("_"))
        if any(mark in data for mark in _MARKS):
            # GPT-NeoX and Composer keep DeepSpeed's keys among many of their own.
            return strange <= 1 or strange * 3 <= len(data)
        parts = any(isinstance(data.get(name), dict) for name in _PARTS)
        return "train_batch_size" in data and parts and strange == 0

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Check the file; a job needs the training file that names it."""
        problems: list[Problem] = []
        settings = read_config(Section(document.mapping, problems))
        trouble = batch_problem(settings)
        if trouble is not None:
            problems.append(trouble)
        return Reading(problems=tuple(problems), skipped="DeepSpeed file: checked with the training file that names it")

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write sharding and offload; the rest belongs to the training file."""
        from memlint.dialects.deepspeed_express import express_deepspeed

        return express_deepspeed(changes, data=document.mapping)


DEEPSPEED = DeepSpeed()


def find_config(
    draft: JobDraft, section: Section, key: str, context: ReadContext, companions: list[str], *, framework: str
) -> DeepSpeedSettings | None:
    """Read the DeepSpeed config that ``key`` of ``section`` names: an inline mapping, JSON text, or a path.

    A path is taken from the working directory, then beside the document. A file that is not there but has the base
    name of a shipped one is read as that, and said so; any other missing file is MEM008 on the key.
    """
    value = section.raw(key)
    if value is None or value == "" or value is False:
        return None
    inline = as_mapping(value)
    if inline is not None:
        return read_config(Section(inline, section.problems, prefix=section.path(key), file=section.file))
    if not isinstance(value, str):
        section.bad(key, "a path or a mapping")
        return None
    found = context.companion(value, beside=draft.document)
    if found is not None:
        if not isinstance(found.data, dict):
            reason = found.problems[0].message if found.problems else "it holds no mapping"
            section.problem("MEM008", key, f"DeepSpeed file `{show(value, 200)}` cannot be read: {reason}")
            return None
        companions.append(found.path)
        return read_config(Section(found.data, section.problems, file=found.path))
    return _missing(draft, section, key, value, framework)


def _missing(draft: JobDraft, section: Section, key: str, path: str, framework: str) -> DeepSpeedSettings | None:
    from memlint.dialects.deepspeed_shipped import shipped_config, stage_from_name

    shipped = shipped_config(path, framework)
    quiet: list[Problem] = []
    if shipped is not None:
        content, source = shipped
        draft.assumptions.append(f"`{show(path, 200)}` is not here; read as the file of that name in {source}")
        settings = read_config(Section(content, quiet), shipped=source)
        return replace(settings, keys={}, source=source)
    guess = stage_from_name(path)
    stage = None if guess is None else guess["zero_optimization"]["stage"]
    taken = "sharding is unknown" if stage is None else f"ZeRO stage {stage} is assumed from its name"
    section.problem("MEM008", key, f"DeepSpeed file `{show(path, 200)}` does not exist; {taken}", label="not found")
    if guess is None:
        draft.assumptions.append(f"DeepSpeed file `{show(path, 200)}` is missing: computed without sharding")
        return None
    draft.assumptions.append(f"DeepSpeed file `{show(path, 200)}` is missing: ZeRO stage {stage} assumed from its name")
    return replace(read_config(Section(guess, quiet)), keys={}, source=f"name of `{path}`")


def join_deepspeed(
    draft: JobDraft,
    section: Section,
    key: str,
    context: ReadContext,
    companions: list[str],
    *,
    framework: str,
) -> DeepSpeedSettings | None:
    """Read what ``key`` (``deepspeed``) names and set the fields it decides; return the settings, None when absent.

    Call it last: batch, accumulation, clipping, precision, method and optimizer must be in the draft, because ``auto``
    is filled from them and a number that contradicts them is reported (the Trainer refuses to start:
    transformers 5.24 integrations/deepspeed.py ``fill_match``).
    """
    settings = find_config(draft, section, key, context, companions, framework=framework)
    if settings is not None:
        apply_settings(draft, settings, section, key)
    return settings


def apply_settings(draft: JobDraft, settings: DeepSpeedSettings, section: Section, key: str) -> None:
    """Set the job fields that DeepSpeed decides, and report contradictions with the training arguments."""
    here = section.path(key)
    asked = draft.get("training.precision.autocast", _UNKNOWN)

    def put(name: str, value: Any, field: str) -> None:
        if field in settings.keys:
            draft.set(name, value, key=settings.keys[field], file=settings.file)
        elif settings.source is not None:
            draft.set(name, value, key=here, file=section.file)
        else:
            draft.set(name, value, default=f"default of DeepSpeed 0.19: runtime/zero/config.py ({field})")

    put("parallelism.strategy", f"zero{settings.stage}", "stage")
    offload_param = settings.offload_param and settings.stage == 3
    offload_optimizer = settings.offload_optimizer and settings.stage > 0
    if offload_optimizer or offload_param:
        kind = "all" if offload_optimizer and offload_param else "parameters" if offload_param else "optimizer"
        put("parallelism.offload", kind, "offload_param" if offload_param else "offload_optimizer")
    for name, field in (
        *[(name, field) for name, (field, _, _) in SIZES.items()],
        ("parallelism.contiguous_gradients", "contiguous_gradients"),
        ("parallelism.overlap_comm", "overlap_comm"),
        ("parallelism.communication_dtype", "communication"),
        ("parallelism.immediate_gradients", "immediate"),
    ):
        value = getattr(settings, field)
        if value is not None:
            put(name, value, field)
    if settings.tensor > 1:
        put("parallelism.tensor", settings.tensor, "tensor")
    if settings.sequence > 1:
        put("parallelism.context", settings.sequence, "sequence")
    draft.assumptions.extend(settings.unmodelled)
    if settings.compile:
        put("training.compile", True, "compile")
    if settings.optimizer is not None:
        put("training.optimizer", settings.optimizer, "optimizer")
    _apply_precision(draft, settings, asked, put)
    if settings.source is None:
        _report_conflicts(draft, settings, asked, section.problems)


def _apply_precision(draft: JobDraft, settings: DeepSpeedSettings, asked: Any, put: Any) -> None:
    """Parameters in the engine's dtype with fp32 masters (``_cast_module_mixed_precision``); no autocast of its own."""
    fp16 = settings.fp16 if settings.fp16 is not None else asked == "fp16"
    bf16 = settings.bf16 if settings.bf16 is not None else asked == "bf16"
    if not (bf16 or fp16):
        put("training.precision.autocast", settings.autocast, "autocast")
        if settings.stage > 0:
            # ZeRO clones its own fp32 partitions even of fp32 parameters (zero/stage_1_and_2.py).
            draft.set("training.precision.master_weights", True, default=_ENGINE)
        return
    dtype, field = ("bf16", "bf16") if bf16 else ("fp16", "fp16")
    put("training.precision.weights", dtype, field)
    draft.set("training.precision.trainable_weights", None, default=_ENGINE)
    draft.set("training.precision.fp32_modules", (), default=_ENGINE)
    draft.set("training.precision.autocast", settings.autocast, default=_ENGINE)
    draft.set("training.precision.grad_scaler", False, default=_ENGINE)
    plain = settings.bf16_without_master and bf16
    if plain:
        put("training.precision.master_weights", False, "bf16_without_master")
    else:
        draft.set("training.precision.master_weights", True, default=_ENGINE)
    states = "bf16" if plain and settings.bf16_states else "fp32"
    if states == "bf16":
        put("training.precision.optimizer", states, "bf16_states")
    else:
        draft.set("training.precision.optimizer", states, default=_ENGINE)
    if settings.grad_accum_fp32:
        put("training.precision.gradients", "fp32", "grad_accum_fp32")
    if draft.get("training.method") in ("lora", "qlora") and settings.stage < 3:
        # Below stage 3 the engine casts every floating parameter, adapters and k-bit norms included.
        draft.set("training.lora.dtype", dtype, default=_ENGINE)
        if draft.get("training.method") == "qlora":
            draft.set("training.quantization.kbit_preparation", False, default=_ENGINE)


def _report_conflicts(draft: JobDraft, settings: DeepSpeedSettings, asked: Any, problems: list[Problem]) -> None:
    def clash(field: str, name: str, value: Any, theirs: Any) -> None:
        problems.append(
            Problem(
                code="MEM007",
                key=settings.keys.get(field, ()),
                message=f"`{name}: {_text(value)}` contradicts {_text(theirs)} of the training arguments; "
                f"the Trainer refuses to start: use `auto`",
                label=f"the training file says {_text(theirs)}",
                file=settings.file,
            )
        )

    for field, name, native in (
        ("micro_batch_size", "train_micro_batch_size_per_gpu", "training.micro_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps", "training.gradient_accumulation_steps"),
        ("gradient_clipping", "gradient_clipping", "training.max_grad_norm"),
    ):
        value, theirs = getattr(settings, field), draft.get(native)
        if value is not None and theirs is not None and value != theirs:
            clash(field, name, value, theirs)
    for field, on in (("bf16", settings.bf16), ("fp16", settings.fp16)):
        if on is not None and asked is not _UNKNOWN and on != (asked == field):
            clash(field, f"{field}.enabled", on, f"`{field}: {_text(asked == field)}`")
    on_host = settings.offload_optimizer and settings.stage
    if settings.bf16_without_master and not settings.bf16_states and not on_host:
        problems.append(
            Problem(
                code="MEM503",
                key=settings.keys["bf16_without_master"],
                message="DeepSpeed does not start: `bf16_master_weights_and_grads` needs "
                "`bf16_optimizer_states: true` or the optimizer on the CPU",
                label="refused",
                file=settings.file,
                on_key=True,
            )
        )
    micro = draft.get("training.micro_batch_size")
    steps = draft.get("training.gradient_accumulation_steps", 1)
    total = settings.train_batch_size
    if total and micro and steps:
        gpus = draft.get("parallelism.gpus")
        alone = draft.get("parallelism.tensor", 1) == draft.get("parallelism.context", 1) == 1
        if total % (micro * steps) or (gpus is not None and alone and total != micro * steps * gpus):
            problems.append(
                Problem(
                    code="MEM603",
                    key=settings.keys["train_batch_size"],
                    message=f"`train_batch_size: {total}` is not micro batch {micro} x accumulation {steps} x "
                    f"{gpus or 'any number of'} GPUs: use `auto`",
                    file=settings.file,
                )
            )
        elif gpus is None:
            draft.set(
                "parallelism.gpus",
                total // (micro * steps),
                key=settings.keys["train_batch_size"],
                file=settings.file,
            )
    if settings.checkpointing_section and draft.get("training.checkpointing.mode", "none") == "none":
        problems.append(
            Problem(
                code="MEM007",
                key=settings.keys["checkpointing_section"],
                message="`activation_checkpointing` of DeepSpeed does not reach transformers models; "
                "switch on gradient checkpointing in the training file",
                label="has no effect",
                file=settings.file,
                on_key=True,
            )
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
