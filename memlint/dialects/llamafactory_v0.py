"""LLaMA-Factory v0: the flat form with ``model_name_or_path``, ``stage`` and ``finetuning_type``."""

from __future__ import annotations

from memlint.dialects.accelerate_fsdp import apply_fsdp
from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.deepspeed import apply_settings, find_config
from memlint.dialects.llamafactory_base import PINS, TRAINER, VERSION, Run, interpolated
from memlint.dialects.llamafactory_megatron import is_megatron, read_megatron
from memlint.dialects.llamafactory_model import METHODS, read_kt, read_method, read_precision
from memlint.dialects.llamafactory_ppo import read_ppo
from memlint.dialects.llamafactory_train import (
    STAGES,
    other_settings,
    read_attention,
    read_batch,
    read_checkpointing,
    read_evaluation,
    read_images,
    read_loss,
    read_objective,
    read_optimizer,
    read_sequence,
)
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section, as_bool, as_mapping, as_strings
from memlint.document.model import Document

RELEVANT = (
    "cutoff_len",
    "deepspeed",
    "disable_gradient_checkpointing",
    "double_quantization",
    "enable_liger_kernel",
    "finetuning_type",
    "flash_attn",
    "freeze_vision_tower",
    "fsdp",
    "fsdp_config",
    "gradient_accumulation_steps",
    "image_max_pixels",
    "lora_rank",
    "lora_target",
    "model_name_or_path",
    "neat_packing",
    "optim",
    "packing",
    "per_device_eval_batch_size",
    "per_device_train_batch_size",
    "pipeline_model_parallel_size",
    "pure_bf16",
    "quantization_bit",
    "quantization_method",
    "stage",
    "tensor_model_parallel_size",
    "use_unsloth_gc",
)
"""Keys whose misspelling changes memory (LLaMA-Factory refuses unknown keys, unless ALLOW_EXTRA_ARGS is set)."""

_TRAINING = (
    "per_device_train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_gpu_train_batch_size",
)
_FSDP_WORDS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")


def recognise_v0(document: Document) -> bool:
    """Whether the mapping has LLaMA-Factory's own keys: method or stage, or template with cutoff."""
    data = document.mapping
    if "base_model" in data or "training_args" in data or "dataset_mixer" in data:
        return False
    if data.get("finetuning_type") in METHODS:
        return True
    if data.get("stage") in STAGES and ("model_name_or_path" in data or "template" in data):
        return True
    return "template" in data and ("cutoff_len" in data or "model_name_or_path" in data) and "image" not in data


def read_v0(document: Document, context: ReadContext) -> Reading:
    """Turn the file into one job, or say why it trains nothing."""
    from memlint.dialects.llamafactory_keys import KNOWN

    problems: list[Problem] = []
    data = interpolated(document, problems)
    problems.extend(near_misses(data, RELEVANT, KNOWN))
    cfg = Section(data, problems)
    skipped = _nothing_to_train(cfg)
    model = cfg.text("model_name_or_path") if skipped is None else None
    if skipped is None and not model:
        skipped = "no model: `model_name_or_path` comes from the command line"
    if skipped is not None or model is None:
        return Reading(problems=tuple(problems), skipped=skipped)
    run = Run(cfg=cfg, draft=JobDraft(f"LLaMA-Factory {VERSION}", document), context=context, problems=problems)
    run.draft.versions.update({**PINS, **context.versions})
    run.put("model", model, "model_name_or_path")
    if not cfg.flag("do_train"):
        run.assume("`do_train` is not set; computed as if it were")
    _read(run)
    return Reading(jobs=(run.draft.build(),), problems=tuple(problems), companions=tuple(run.companions))


def _nothing_to_train(cfg: Section) -> str | None:
    data = cfg.data
    if data.get("export_dir") and not as_bool(data.get("do_train")):
        return "merges and exports a model"
    if as_bool(data.get("do_train")) is False or (as_bool(data.get("do_predict")) and not data.get("do_train")):
        return "evaluates or predicts: `do_train` is off"
    trains = any(key in data for key in _TRAINING)
    if data.get("do_train") is None and not trains:
        return "inference: nothing is trained"
    if data.get("tokenized_path") and not trains:
        return "preprocesses a dataset into `tokenized_path`"
    return None


def _read(run: Run) -> None:
    cfg = run.cfg
    run.stage = cfg.text("stage", STAGES) or "sft"
    run.method = cfg.text("finetuning_type", METHODS) or "lora"
    run.bits = cfg.integer("quantization_bit", minimum=1, maximum=8)
    settings = find_config(run.draft, cfg, "deepspeed", run.context, run.companions, framework="llamafactory")
    run.zero3 = settings is not None and settings.stage == 3
    part, words = _fsdp(run)
    read_objective(run)
    read_batch(run)
    read_attention(run)
    read_sequence(run)
    read_precision(run)
    read_method(run)
    read_checkpointing(run)
    read_loss(run)
    read_optimizer(run)
    read_evaluation(run)
    read_images(run)
    other_settings(run)
    if run.stage == "ppo":
        read_ppo(run)
    if is_megatron(run):
        read_megatron(run)
        return
    if settings is not None and part is not None:
        run.reject("fsdp", "`fsdp` and `deepspeed` cannot be used together; keep one")
    if settings is not None:
        apply_settings(run.draft, settings, cfg, "deepspeed")
    elif part is not None:
        _apply_fsdp(run, part, words)
    elif (run.context.gpus or 1) > 1:
        run.default("parallelism.strategy", "ddp", "launcher.py: torchrun over all visible GPUs")
    else:
        run.default("parallelism.strategy", "none", "launcher.py: one process")
    workers = cfg.integer("ray_num_workers", minimum=1)
    if workers is not None and workers > 1:
        run.put("parallelism.gpus", workers, "ray_num_workers")
    read_kt(run)


def _fsdp(run: Run) -> tuple[Section | None, tuple[str, ...]]:
    """Return the FSDP section and the option words of ``fsdp``; None where FSDP is off."""
    cfg = run.cfg
    value = cfg.raw("fsdp")
    if value is None or value is False or value == "" or value == []:
        if cfg.raw("fsdp_config"):
            run.no_effect("fsdp_config", "`fsdp_config` has no effect without `fsdp`")
        return None, ()
    words: tuple[str, ...] = ()
    if as_bool(value) is not True:
        words = tuple(word.lower() for text in as_strings(value) or () for word in text.split())
        for word in words:
            if word not in _FSDP_WORDS:
                run.reject("fsdp", f"unknown `fsdp` option `{word[:40]}`")
    part = _fsdp_section(run)
    version = part.raw("version", part.raw("fsdp_version"))
    run.fsdp_version = 2 if version in (2, "2") else 1
    return part, words


def _fsdp_section(run: Run) -> Section:
    cfg = run.cfg
    value = cfg.raw("fsdp_config")
    if isinstance(value, str) and as_mapping(value) is None:
        found = run.context.companion(value, beside=run.draft.document)
        if found is None or not isinstance(found.data, dict):
            cfg.problem("MEM008", "fsdp_config", f"FSDP file `{value[:80]}` does not exist", label="not found")
            return Section({}, run.problems)
        run.companions.append(found.path)
        return Section(found.data, run.problems, file=found.path)
    return cfg.section("fsdp_config") or Section({}, run.problems)


def _apply_fsdp(run: Run, part: Section, words: tuple[str, ...]) -> None:
    cfg = run.cfg
    wrapped = (
        "auto_wrap" in words
        or part.has("transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap") is not None
        or cfg.has("fsdp_transformer_layer_cls_to_wrap") is not None
    )
    if run.draft.get("training.checkpointing.mode") != "none" and (
        part.has("activation_checkpointing", "fsdp_activation_checkpointing")
    ):
        run.assume("checkpointing is on through LLaMA-Factory and FSDP; counted once")
        kept = {key: value for key, value in part.data.items() if not key.endswith("activation_checkpointing")}
        part = Section(kept, part.problems, prefix=part.prefix, file=part.file)
    apply_fsdp(
        run.draft,
        part,
        version=run.fsdp_version,
        wrap="layer" if wrapped else "none",
        source=TRAINER,
        options=words,
        options_key="fsdp" if words else None,
        outer=cfg,
    )
