"""LLaMA-Factory v0: data types, fine-tuning method, quantisation, and frozen parts."""

from __future__ import annotations

from memlint.dialects.llamafactory_base import VERSION, Run
from memlint.dialects.values import as_mapping, as_strings

METHODS = ("lora", "oft", "freeze", "full")

VISION = (
    "vision_tower",
    "visual.patch_embed",
    "visual.blocks",
    "visual.pos_embed",
    "vision_model",
    "audio_tower",
    "vpm",
)
PROJECTOR = ("multi_modal_projector", "visual.merger", "visual.deepstack_merger_list", "resampler", "embed_vision")
LANGUAGE = ("language_model", "lm_head")
"""Name fragments of model/model_utils/visual.py, of all registered models together: a text model has none of the first
two, so the defaults (towers frozen) change nothing there."""

_ADAPTER = "model/adapter.py"
_PROJECTOR = "freeze_multi_modal_projector"
_ARGUMENTS = "hparams/finetuning_args.py"


def read_precision(run: Run) -> None:
    """Autocast from the Trainer's switches; weights in the checkpoint's dtype; trainable weights cast to fp32."""
    cfg = run.cfg
    bf16, fp16 = cfg.flag("bf16"), cfg.flag("fp16")
    if bf16 and fp16:
        run.reject("fp16", "`fp16` and `bf16` cannot both be true; keep `bf16`")
        fp16 = False
    if bf16 or fp16:
        run.put("training.precision.autocast", "bf16" if bf16 else "fp16", "bf16" if bf16 else "fp16")
    else:
        stated = cfg.has("bf16", "fp16")
        if stated is not None:
            run.put("training.precision.autocast", None, stated)
        else:
            run.choose("training.precision.autocast", "bf16", None, None, None)
    if fp16 and not bf16:
        run.put("training.precision.grad_scaler", True, "fp16")
    run.default("training.precision.weights", "auto", "model/loader.py: torch_dtype auto, the checkpoint's own")
    _trainable(run)
    if cfg.flag("upcast_layernorm"):
        run.put("training.precision.fp32_modules", ("[^.]*norm", r"\bln_"), "upcast_layernorm")
    if cfg.flag("fp8"):
        run.put("training.precision.fp8", True, "fp8")
        if str(cfg.raw("fp8_backend", "")).lower() == "te":
            run.put("training.precision.fp8_recipe", "transformer-engine", "fp8_backend")
        if run.bits is not None:
            run.reject("fp8", "`fp8` is not compatible with `quantization_bit`; remove one")


def _trainable(run: Run) -> None:
    """``init_adapter``: trainable parameters become fp32 unless pure_bf16, BAdam, or ZeRO-3 without quantisation."""
    cfg = run.cfg
    for key in ("pure_bf16", "use_badam"):
        if cfg.flag(key):
            if key == "pure_bf16" and run.zero3:
                run.reject(key, "`pure_bf16` is incompatible with DeepSpeed ZeRO-3; remove it")
            run.put("training.precision.trainable_weights", None, key)
            return
    if run.zero3 and run.bits is None:
        run.default("training.precision.trainable_weights", None, f"{_ADAPTER}: init_adapter under ZeRO-3")
        return
    run.default("training.precision.trainable_weights", "fp32", f"{_ADAPTER}: cast_trainable_params_to_fp32")


def read_method(run: Run) -> None:
    """``finetuning_type`` with its own settings, then quantisation and frozen towers."""
    cfg = run.cfg
    native = "qlora" if run.method == "lora" and run.bits == 4 else run.method
    if native == "qlora":
        run.put("training.method", native, "quantization_bit")
    else:
        run.choose(
            "training.method", "finetuning_type", native if cfg.has("finetuning_type") else None, native, _ARGUMENTS
        )
    if run.method in ("lora", "oft"):
        _read_adapter(run)
    elif run.method == "freeze":
        _read_freeze(run)
    if run.bits is not None:
        _read_quantization(run)
    _read_towers(run)
    if cfg.flag("resize_vocab") or cfg.has("add_tokens", "add_special_tokens"):
        run.assume("added tokens may enlarge the embeddings; the published vocabulary is used")
        if run.bits is not None:
            run.reject(
                cfg.has("resize_vocab", "add_tokens", "add_special_tokens") or "quantization_bit",
                "the embeddings of a quantised model cannot be resized",
            )


def _read_adapter(run: Run) -> None:
    cfg = run.cfg
    if run.method == "oft":
        block = cfg.integer("oft_block_size", minimum=1)
        run.choose("training.lora.block_size", "oft_block_size", block, 32, _ARGUMENTS)
        targets = as_strings(cfg.raw("oft_target"))
        if targets and targets != ("all",):
            run.no_effect(
                "oft_target", f"`oft_target` has no effect in {VERSION}: OFT goes to the modules of `lora_target`"
            )
    else:
        rank = run.choose("training.lora.rank", "lora_rank", cfg.integer("lora_rank", minimum=1), 8, _ARGUMENTS)
        run.choose("training.lora.alpha", "lora_alpha", cfg.number("lora_alpha"), float(2 * rank), _ARGUMENTS)
        run.choose("training.lora.dropout", "lora_dropout", cfg.number("lora_dropout", minimum=0), 0.0, _ARGUMENTS)
        if cfg.flag("use_dora"):
            run.put("training.lora.dora", True, "use_dora")
    targets = cfg.strings("lora_target")
    named = None if targets is None else "all-linear" if targets == ("all",) else targets
    run.choose("training.lora.targets", "lora_target", named, "all-linear", _ARGUMENTS)
    extra = cfg.strings("additional_target")
    if extra:
        run.put("training.lora.modules_to_save", extra, "additional_target")
    elif cfg.flag("resize_vocab"):
        # A resized vocabulary makes both embeddings trainable (_setup_lora_tuning); adding tokens alone does so too,
        # because the tokenizer patch switches resize_vocab on.
        run.put("training.lora.modules_to_save", ("embed_tokens", "lm_head"), "resize_vocab")
    elif cfg.has("add_tokens", "add_special_tokens"):
        key = cfg.has("add_tokens", "add_special_tokens") or "add_tokens"
        run.put("training.lora.modules_to_save", ("embed_tokens", "lm_head"), key)
    run.draft.set("training.lora.dtype", "fp32", default="PEFT 0.18: autocast_adapter_dtype")
    if cfg.flag("use_unsloth"):
        run.put("training.lora.kernels", True, "use_unsloth")


def _read_freeze(run: Run) -> None:
    cfg = run.cfg
    layers = cfg.integer("freeze_trainable_layers")
    if layers == 0:
        run.reject("freeze_trainable_layers", "`freeze_trainable_layers: 0` trains no layer")
    run.choose("training.trainable_layers", "freeze_trainable_layers", layers or None, 2, _ARGUMENTS)
    modules = cfg.strings("freeze_trainable_modules")
    if modules and modules != ("all",):
        run.assume("`freeze_trainable_modules` is not modelled: the trainable layers train in full")
    if cfg.flag("use_llama_pro"):
        run.assume("`use_llama_pro` spreads the trainable layers over the model; computed as the last ones")


def _read_quantization(run: Run) -> None:
    cfg, bits = run.cfg, run.bits
    if run.method not in ("lora", "oft"):
        run.reject("quantization_bit", f"`quantization_bit` needs `finetuning_type: lora`, not `{run.method}`")
        return
    method = cfg.text("quantization_method", ("bnb", "hqq", "eetq")) or "bnb"
    allowed = {"bnb": (4, 8), "hqq": (1, 2, 3, 4, 5, 6, 8), "eetq": (8,)}[method]
    if bits not in allowed:
        choices = ", ".join(str(bit) for bit in allowed)
        run.reject("quantization_bit", f"`quantization_bit: {bits}` does not exist for `{method}`; choose {choices}")
        bits = 4 if method != "eetq" else 8
    run.put("training.quantization.bits", bits, "quantization_bit")
    if method == "hqq":
        run.put("training.quantization.type", "hqq", "quantization_method")
    elif bits == 8:
        run.put("training.quantization.type", "int8", "quantization_bit")
        run.put("training.quantization.double_quant", False, "quantization_bit")
    else:
        kind = cfg.text("quantization_type", ("nf4", "fp4"))
        run.choose("training.quantization.type", "quantization_type", kind, "nf4", "hparams/model_args.py")
        double = cfg.flag("double_quantization")
        run.choose("training.quantization.double_quant", "double_quantization", double, True, "hparams/model_args.py")
        compute = run.draft.get("training.precision.autocast") or ("bf16" if cfg.flag("pure_bf16") else None)
        run.default(
            "training.quantization.storage", compute or "fp32", "model/model_utils/quantization.py: the compute dtype"
        )
    # LLaMA-Factory prepares the model itself and leaves norms and embeddings in the checkpoint's dtype.
    run.default("training.quantization.kbit_preparation", False, "model/model_utils/checkpointing.py")


def _read_towers(run: Run) -> None:
    cfg = run.cfg
    frozen: list[str] = []
    stated: str | None = None
    # Of what is outside of the layers only these train (model/adapter.py _setup_freeze_tuning).
    extra = (cfg.strings("freeze_extra_modules") or ()) if run.method == "freeze" else ()
    trained = (*extra,)
    for key, names, default in (
        ("freeze_vision_tower", VISION, True),
        (_PROJECTOR, PROJECTOR, True),
        ("freeze_language_model", LANGUAGE, False),
    ):
        flag = cfg.flag(key)
        stated = stated or (key if flag is not None else None)
        if default if flag is None else flag:
            frozen.extend(names)
        elif run.method == "freeze" and key == _PROJECTOR:
            trained = (*trained, *names)
    if trained:
        run.put("training.trainable_patterns", trained, "freeze_extra_modules" if extra else _PROJECTOR)
    run.choose(
        "training.freeze", stated or "freeze_vision_tower", tuple(frozen) if stated else None, tuple(frozen), _ARGUMENTS
    )


KT_FORMATS = ("bf16", "int8", "fp8", "rawint4", "mxfp4")
"""kt-kernel 0.7.2 sft/config.py kt_expert_weight_format."""


def read_kt(run: Run) -> None:
    """KTransformers keeps the experts on the host."""
    cfg = run.cfg
    if not cfg.flag("use_kt"):
        return
    if run.method == "oft":
        run.reject("use_kt", "`use_kt` does not go with `finetuning_type: oft`; use `lora`")  # model/adapter.py
    if run.draft.get("parallelism.strategy") == "zero3":
        run.reject("use_kt", "`use_kt` is incompatible with DeepSpeed ZeRO-3; drop one of them")  # hparams/parser.py
    run.put("parallelism.offload", "experts", "use_kt")
    settings = as_mapping(cfg.raw("kt_config")) or {}
    form = str(settings.get("kt_expert_weight_format") or "bf16").strip().lower()
    if form not in KT_FORMATS:
        form = "bf16"
    run.put("parallelism.expert_format", form, "kt_config" if settings else "use_kt")
    run.assume(
        f"`use_kt` holds the routed experts ({form}) and their adapters in host memory and computes them on the CPU "
        "(kt-kernel 0.7.2); cached activations and the kernels' own copies there are not counted"
    )
    if settings.get("kt_num_gpu_experts"):
        run.assume("`kt_num_gpu_experts` is not followed: all experts are counted on the host")
    if cfg.flag("kt_use_lora_experts") or settings.get("kt_use_lora_experts"):
        run.assume("`kt_use_lora_experts` is not followed: its further experts on the GPU are left out")
