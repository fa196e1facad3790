"""TRL's ModelConfig: load dtype, attention, LoRA, quantisation.

Source: TRL 1.16.0 ``trainer/model_config.py``, ``trainer/utils.py`` (get_peft_config, get_quantization_config,
create_model_from_path), ``trainer/sft_trainer.py``.
"""

from __future__ import annotations

from memlint.dialects.hf_trainer_args import Arguments, is_v4
from memlint.dialects.names import attention_name, dtype_name
from memlint.dialects.values import Section, is_auto, show

_CONFIG = "TRL 1.16: trainer/model_config.py"
_TRAINER = "TRL 1.16: trainer/sft_trainer.py"
_CASTING = "TRL before 0.27: trainer/utils.py peft_module_casting_to_bf16"


def apply_model(arguments: Arguments, version: tuple[int, ...], trainer: str) -> None:
    """Set weights dtype, attention, method, LoRA and quantisation."""
    kwargs = arguments.section.section("model_init_kwargs")
    _dtype(arguments, kwargs, version)
    _attention(arguments, kwargs)
    section = arguments.section
    peft = section.flag("use_peft") or False
    four, eight = section.flag("load_in_4bit") or False, section.flag("load_in_8bit") or False
    if four and eight:
        section.problem("MEM003", "load_in_8bit", "`load_in_8bit` and `load_in_4bit` cannot both be true; keep one")
        eight = False
    if not peft:
        _without_peft(arguments, four or eight)
        return
    arguments.put("training.method", "qlora" if four or eight else "lora", "use_peft")
    _lora(arguments)
    if four or eight:
        _quantized(arguments, four, version, trainer)
    elif trainer == "reward":
        return


def _without_peft(arguments: Arguments, quantized: bool) -> None:
    section, draft = arguments.section, arguments.draft
    arguments.default("training.method", "full", _CONFIG)
    if quantized:
        key = "load_in_4bit" if section.flag("load_in_4bit") else "load_in_8bit"
        section.problem(
            "MEM007",
            key,
            f"`{key}` without `use_peft: true`: quantised weights cannot be trained; add `use_peft: true`",
            label="the Trainer refuses to train a quantised model",
        )
        draft.assumptions.append(f"`{key}` left out of account, since nothing trainable remains without adapters")
    for key in ("lora_r", "lora_target_modules"):
        if section.has(key):
            section.problem(
                "MEM007",
                key,
                f"`{key}` has no effect without `use_peft: true`; the whole model is trained",
                label="ignored",
                on_key=True,
            )
            break


def _dtype(arguments: Arguments, kwargs: Section | None, version: tuple[int, ...]) -> None:
    section = arguments.section
    place: Section | None = None
    key: str | None = None
    for candidate in (kwargs, section):
        if candidate is not None and key is None:
            key = candidate.has("dtype", "torch_dtype")
            place = candidate if key is not None else None
    draft = arguments.draft
    stated = "dtype" in section.data or "torch_dtype" in section.data
    if place is None or key is None:
        if version >= (0, 27) and not stated:
            arguments.default("training.precision.weights", "fp32", _CONFIG)
        elif version >= (0, 27) or not is_v4(arguments.context):
            # `dtype: null` reaches from_pretrained as None, which is "auto" in transformers 5.
            draft.set("training.precision.weights", "auto", default="default of transformers 5.24: modeling_utils.py")
        else:
            draft.set("training.precision.weights", "fp32", default="default of transformers 4.57: modeling_utils.py")
        return
    value = place.raw(key)
    if is_auto(value):
        draft.set("training.precision.weights", "auto", key=place.path(key), file=place.file)
        return
    dtype = dtype_name(value)
    if dtype is None:
        place.problem(
            "MEM003", key, f"`{key}: {show(value)}` is no dtype; use `bfloat16`, `float16`, `float32` or `auto`"
        )
        arguments.default("training.precision.weights", "fp32", _CONFIG)
        return
    draft.set("training.precision.weights", dtype, key=place.path(key), file=place.file)


def _attention(arguments: Arguments, kwargs: Section | None) -> None:
    section = arguments.section
    place = kwargs if kwargs is not None and kwargs.has("attn_implementation") else section
    value = place.text("attn_implementation")
    if value is None:
        flash = section.has("use_flash_attention_2")
        if flash is not None and section.flag(flash):
            arguments.put("training.attention", "flash", flash)
        else:
            arguments.default("training.attention", "sdpa", "transformers 5.24: modeling_utils.py")
        return
    native = attention_name(value)
    if native is None:
        place.problem(
            "MEM003",
            "attn_implementation",
            f"`attn_implementation: {show(value)}` is not known; use `sdpa`, `flash_attention_2` or `eager`",
        )
        native = "sdpa"
    arguments.draft.set("training.attention", native, key=place.path("attn_implementation"), file=place.file)


def _lora(arguments: Arguments) -> None:
    section = arguments.section
    arguments.choose("training.lora.rank", "lora_r", section.integer("lora_r", minimum=1), 16, _CONFIG)
    arguments.choose("training.lora.alpha", "lora_alpha", section.number("lora_alpha"), 32.0, _CONFIG)
    arguments.choose("training.lora.dropout", "lora_dropout", section.number("lora_dropout", minimum=0), 0.05, _CONFIG)
    targets = section.raw("lora_target_modules")
    if isinstance(targets, list) and len(targets) == 1 and targets[0] in ("all-linear", "all_linear"):
        targets = "all-linear"
    if isinstance(targets, str):
        names: str | tuple[str, ...] = targets
        if "," in targets:
            names = tuple(part.strip() for part in targets.split(","))
        arguments.put("training.lora.targets", names, "lora_target_modules")
    elif targets is not None:
        listed = section.strings("lora_target_modules")
        if listed:
            arguments.put("training.lora.targets", listed, "lora_target_modules")
    else:
        arguments.default("training.lora.targets", "default", "PEFT 0.21: utils/constants.py, the table by model type")
    saved = section.strings("lora_modules_to_save")
    if saved:
        arguments.put("training.lora.modules_to_save", saved, "lora_modules_to_save")
    elif section.raw("lora_task_type") in ("SEQ_CLS", "TOKEN_CLS"):
        # PeftModelForSequenceClassification trains these in full (peft 0.21 peft_model.py).
        arguments.put("training.lora.modules_to_save", ("classifier", "score"), "lora_task_type")
    parameters = section.strings("lora_target_parameters")
    if parameters:
        arguments.put("training.lora.target_parameters", parameters, "lora_target_parameters")
    if section.flag("use_dora"):
        arguments.put("training.lora.dora", True, "use_dora")
    arguments.default("training.lora.dtype", "fp32", "PEFT 0.21: autocast_adapter_dtype")


def _quantized(arguments: Arguments, four: bool, version: tuple[int, ...], trainer: str) -> None:
    section = arguments.section
    if four:
        arguments.put("training.quantization.bits", 4, "load_in_4bit")
        kind = section.text("bnb_4bit_quant_type", ("nf4", "fp4"))
        arguments.choose("training.quantization.type", "bnb_4bit_quant_type", kind, "nf4", _CONFIG)
        double = section.flag("use_bnb_nested_quant")
        arguments.choose("training.quantization.double_quant", "use_bnb_nested_quant", double, False, _CONFIG)
        storage = section.text("bnb_4bit_quant_storage")
        arguments.choose("training.quantization.storage", "bnb_4bit_quant_storage", storage, "uint8", _CONFIG)
    else:
        arguments.put("training.quantization.bits", 8, "load_in_8bit")
        arguments.put("training.quantization.type", "int8", "load_in_8bit")
        arguments.default("training.quantization.double_quant", False, _CONFIG)
    # prepare_model_for_kbit_training was dropped with 0.27; trainable weights become bf16 since 0.26.
    prepared = version < (0, 27)
    bf16 = arguments.draft.get("training.precision.autocast") == "bf16"
    if prepared and four and bf16 and trainer != "reward":
        # It casts embeddings and head back and leaves the norms in fp32 (0.11 and 0.24: trainer/utils.py).
        prepared = False
        arguments.default("training.precision.fp32_modules", ("[^.]*norm", r"\bln_"), _CASTING)
    arguments.default("training.quantization.kbit_preparation", prepared, _TRAINER)
    if version >= (0, 26):
        arguments.default("training.lora.dtype", "bf16", _TRAINER)
