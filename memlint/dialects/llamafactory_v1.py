"""LLaMA-Factory v1 (``USE_V1=1``): ``model``, ``peft_config``, ``dist_config``, ``micro_batch_size``.

Source: LLaMA-Factory 0.9.5 v1/config, v1/core/{model_engine,base_trainer}.py, v1/plugins.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.deepspeed import join_deepspeed
from memlint.dialects.llamafactory_base import PINS, VERSION, Run, interpolated
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section
from memlint.document.model import Document

RELEVANT = (
    "batching_strategy",
    "cutoff_len",
    "dist_config",
    "enable_activation_checkpointing",
    "flash_attn",
    "global_batch_size",
    "kernel_config",
    "micro_batch_size",
    "optim_config",
    "peft_config",
    "quant_config",
)

_MARKS = ("model_class", "peft_config", "dist_config", "train_dataset", "kernel_config", "quant_config")
_PLUGINS = "v1/plugins/model_plugins"
_ENGINE = "v1/core/model_engine.py"
_TRAINER = "v1/core/base_trainer.py"
_ARGUMENTS = "v1/config/training_args.py"
_ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash"}
_STRATEGIES = ("normal", "padding_free", "dynamic_batching", "dynamic_padding_free")


def recognise_v1(document: Document) -> bool:
    """Whether the mapping has ``model`` as a name beside v1's plugin sections."""
    data = document.mapping
    if not isinstance(data.get("model"), str) or "model_name_or_path" in data:
        return False
    own = sum(key in data for key in _MARKS)
    peft = data.get("peft_config")
    export = isinstance(peft, dict) and "export_dir" in peft
    return own >= 2 or export


def read_v1(document: Document, context: ReadContext) -> Reading:
    """Turn the file into one job, or say why it trains nothing."""
    from memlint.dialects.llamafactory_keys import OWN

    problems: list[Problem] = []
    data = interpolated(document, problems)
    problems.extend(near_misses(data, RELEVANT, OWN))
    cfg = Section(data, problems)
    peft = cfg.section("peft_config")
    if peft is not None and peft.has("export_dir"):
        return Reading(problems=tuple(problems), skipped="merges and exports a model")
    model = cfg.text("model")
    if not cfg.has("train_dataset") or not model:
        return Reading(problems=tuple(problems), skipped="no `train_dataset`: nothing is trained")
    run = Run(cfg=cfg, draft=JobDraft(f"LLaMA-Factory {VERSION}", document), context=context, problems=problems)
    run.draft.versions.update({**PINS, **context.versions})
    run.put("model", model, "model")
    _batch(run)
    _precision_and_method(run, peft)
    _kernels(run)
    _optimizer(run)
    _parallelism(run)
    return Reading(jobs=(run.draft.build(),), problems=tuple(problems), companions=tuple(run.companions))


def _batch(run: Run) -> None:
    cfg = run.cfg
    kind = cfg.text("model_class", ("llm", "cls", "other"))
    if kind == "cls":
        run.put("training.objective", "reward", "model_class")
    else:
        run.default("training.objective", "causal-lm", "v1/trainers/sft_trainer.py")
        if "dpo" in str(cfg.raw("train_dataset")).lower():
            run.assume("the stage is named on the command line; computed as SFT")
    micro = run.choose(
        "training.micro_batch_size", "micro_batch_size", cfg.integer("micro_batch_size", minimum=1), 1, _ARGUMENTS
    )
    total = cfg.integer("global_batch_size", minimum=1)
    gpus = run.context.gpus
    if total is not None and total % micro:
        run.cfg.problem(
            "MEM603", "global_batch_size", f"`global_batch_size: {total}` is no multiple of micro batch {micro}"
        )
    if total is not None:
        run.put("training.gradient_accumulation_steps", max(1, total // (micro * (gpus or 1))), "global_batch_size")
        if gpus is None:
            run.assume("`global_batch_size` is spread over one GPU: the number of GPUs is not in the config")
    else:
        run.default("training.gradient_accumulation_steps", 1, f"{_ARGUMENTS}: DP size x micro batch")
    run.choose("training.sequence_length", "cutoff_len", cfg.integer("cutoff_len", minimum=1), 2048, _ARGUMENTS)
    attention = cfg.text("flash_attn", _ATTENTION)
    run.choose(
        "training.attention",
        "flash_attn",
        _ATTENTION[attention] if attention else None,
        "sdpa",
        "v1/config/model_args.py",
    )
    strategy = cfg.text("batching_strategy", _STRATEGIES) or "normal"
    flat = strategy.endswith("padding_free")
    if flat and run.draft.get("training.attention") != "flash":
        run.reject("batching_strategy", f"`{strategy}` needs `flash_attn: flash_attention_2`")
    if flat:
        run.put("training.varlen", True, "batching_strategy")
    run.default("training.padding", not flat, "v1/core/utils/batching.py")
    norm = cfg.number("max_grad_norm", minimum=0)
    run.choose("training.max_grad_norm", "max_grad_norm", norm, 1.0, _ARGUMENTS)
    checkpointing = cfg.flag("enable_activation_checkpointing")
    mode = None if checkpointing is None else "full" if checkpointing else "none"
    run.choose("training.checkpointing.mode", "enable_activation_checkpointing", mode, "full", _ARGUMENTS)
    run.default("training.checkpointing.reentrant", False, _TRAINER)


def _precision_and_method(run: Run, peft: Section | None) -> None:
    """Full tuning casts the whole model to fp32; adapters leave it in the checkpoint's dtype. There is no autocast."""
    name = peft.text("name") if peft is not None else None
    run.default("training.precision.autocast", None, f"{_TRAINER}: no autocast; FSDP2 casts its units")
    if peft is None or name is None:
        run.default("training.method", "full", _ENGINE)
        run.default("training.precision.weights", "fp32", f"{_ENGINE}: model.to(float32)")
    elif name == "freeze":
        run.put("training.method", "freeze", peft.path("name"))
        run.default("training.precision.weights", "auto", _ENGINE)
        cast = peft.flag("cast_trainable_params_to_fp32")
        if cast is not None:
            run.put(
                "training.precision.trainable_weights",
                "fp32" if cast else None,
                peft.path("cast_trainable_params_to_fp32"),
            )
        else:
            run.default("training.precision.trainable_weights", "fp32", f"{_PLUGINS}/peft.py")
        _freeze(run, peft)
    else:
        run.default("training.precision.weights", "auto", _ENGINE)
        _lora(run, peft)
    _quantization(run)


def _pick(run: Run, part: Section, name: str, key: str, value: Any, fallback: Any) -> None:
    if value is not None:
        run.put(name, value, part.path(key))
    else:
        run.default(name, fallback, f"{_PLUGINS}/peft.py")


def _freeze(run: Run, peft: Section) -> None:
    layers = peft.integer("freeze_trainable_layers")
    _pick(run, peft, "training.trainable_layers", "freeze_trainable_layers", layers or None, 2)
    extra = peft.strings("freeze_extra_modules")
    if extra:
        run.put("training.trainable_patterns", tuple(extra), peft.path("freeze_extra_modules"))


def _lora(run: Run, peft: Section) -> None:
    run.put("training.method", "lora", peft.path("name"))
    _pick(run, peft, "training.lora.rank", "r", peft.integer("r", minimum=1), 8)
    _pick(run, peft, "training.lora.alpha", "lora_alpha", peft.number("lora_alpha"), 16.0)
    _pick(run, peft, "training.lora.dropout", "lora_dropout", peft.number("lora_dropout", minimum=0), 0.05)
    targets = peft.strings("target_modules")
    named = None if targets is None else "all-linear" if targets == ("all",) else targets
    _pick(run, peft, "training.lora.targets", "target_modules", named, "all-linear")
    if peft.flag("use_dora"):
        run.put("training.lora.dora", True, peft.path("use_dora"))
    saved = peft.strings("modules_to_save")
    if saved:
        run.put("training.lora.modules_to_save", saved, peft.path("modules_to_save"))
    run.draft.set("training.lora.dtype", "fp32", default="PEFT 0.18: autocast_adapter_dtype")


def _quantization(run: Run) -> None:
    part = run.cfg.section("quant_config")
    if part is None:
        return
    bits = part.integer("quantization_bit")
    if bits is None and part.raw("name") == "auto":
        run.cfg.problem("MEM007", "quant_config", "`quant_config` quantises nothing without `quantization_bit`")
        return
    if bits not in (None, 4, 8):
        part.bad("quantization_bit", "4 or 8")
        bits = None
    if run.draft.get("training.method") != "lora":
        run.reject(
            "quant_config", "`quant_config` needs `peft_config: {name: lora}`: full tuning casts the model to fp32"
        )
        return
    where = f"{_PLUGINS}/quantization.py"
    path = part.path("quantization_bit")
    if bits is None:
        run.default("training.quantization.bits", 4, where)
    else:
        run.put("training.quantization.bits", bits, path)
    if bits == 8:
        run.put("training.quantization.type", "int8", path)
        run.put("training.quantization.double_quant", False, path)
    else:
        run.put("training.method", "qlora", path)
        kind = part.text("quantization_type", ("nf4", "fp4"))
        _pick(run, part, "training.quantization.type", "quantization_type", kind, "nf4")
        double = part.flag("double_quantization")
        _pick(run, part, "training.quantization.double_quant", "double_quantization", double, True)
        run.default("training.quantization.storage", "fp16", where)
    run.default("training.quantization.kbit_preparation", False, where)


def _kernels(run: Run) -> None:
    part = run.cfg.section("kernel_config")
    if part is not None and part.raw("name") == "liger_kernel":
        _liger(run, part)
    if run.draft.get("training.objective") == "reward":
        run.default("training.loss", "standard", "v1/trainers/rm_trainer.py")
    else:
        # SFT weighs its loss token by token, from logits that it asks the model for with the labels still among its
        # arguments: the model takes a loss of its own as well, which nobody reads.
        run.default("training.loss", "token-weighted", f"{_TRAINER}: compute_log_probs")


def _liger(run: Run, part: Section) -> None:
    """Liger's layers: those that ``include_kernels`` names (v1/plugins/model_plugins/kernels/interface.py)."""
    included = part.raw("include_kernels")
    if not included:
        part.problem(
            "MEM007",
            "name",
            f"`liger_kernel` applies nothing without `include_kernels` in LLaMA-Factory {VERSION}; add"
            " `include_kernels: auto`",
            label="has no effect",
        )
        return
    known = ("rope", "rms_norm", "swiglu")
    named = tuple(word.strip() for word in str(included).split(","))
    kept = known if included is True or named == ("auto",) else tuple(name for name in known if name in named)
    if kept:
        run.put("training.liger", kept, part.path("include_kernels"))
    # require_logits: its cross entropy takes the place of both of the step's.
    run.assume("Liger's cross entropy works in place, which is not modelled: computed with PyTorch's")


def _optimizer(run: Run) -> None:
    part = run.cfg.section("optim_config")
    if part is not None and part.raw("name") == "muon":
        run.put("training.optimizer", "muon", part.path("name"))
    else:
        # torch.optim.AdamW without arguments: foreach on CUDA.
        run.default("training.optimizer", "adamw", _TRAINER)


def _parallelism(run: Run) -> None:
    cfg = run.cfg
    part = cfg.section("dist_config")
    name = part.text("name") if part is not None else None
    if part is None or name is None:
        if (run.context.gpus or 1) > 1:
            run.default("parallelism.strategy", "ddp", f"{_TRAINER}: DistributedDataParallel")
        else:
            run.default("parallelism.strategy", "none", _TRAINER)
        return
    if name == "deepspeed":
        if part.has("config_file"):
            join_deepspeed(run.draft, part, "config_file", run.context, run.companions, framework="llamafactory")
        else:
            run.reject("dist_config", "`dist_config: {name: deepspeed}` needs `config_file`")
        return
    if name not in ("fsdp2", "fsdpturbo"):
        run.reject("dist_config", f"`dist_config` name `{name[:40]}` is not known; choose `fsdp2` or `deepspeed`")
        return
    run.put("parallelism.strategy", "fsdp", part.path("name"))
    if cfg.flag("bf16") is not False:
        # MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32): units are gathered and computed in bf16.
        run.choose("training.precision.autocast", "bf16", "bf16" if cfg.flag("bf16") else None, "bf16", _ARGUMENTS)
    reshard = part.flag("reshard_after_forward")
    where = "v1/plugins/trainer_plugins/distributed/fsdp2.py"
    if reshard is not None:
        run.put("parallelism.reshard_after_forward", reshard, part.path("reshard_after_forward"))
    else:
        run.default("parallelism.reshard_after_forward", True, where)
    if part.flag("offload_params"):
        run.put("parallelism.offload", "all", part.path("offload_params"))
    run.default("parallelism.wrap", "layer", where)
    for key, field in (("cp_size", "parallelism.context"), ("ep_size", "parallelism.expert")):
        size = part.integer(key, minimum=1)
        if size is not None:
            run.put(field, size, part.path(key))
    if name == "fsdpturbo":
        run.assume(f"`fsdpturbo` is not in LLaMA-Factory {VERSION}; computed as FSDP2")
